"""The engine on real files: lossless, reproducible, cancellable, and polite about misuse."""

from __future__ import annotations

import itertools
import threading

import llama_cpp
import numpy as np
import pytest

import inside
import localspec
from gguf_maker import write_random_model
from localspec.errors import (
    ContextError,
    EngineError,
    MemoryLimitError,
    ModelFileError,
    OptionError,
)
from localspec.llama.model import LlamaModel
from localspec.planning.plan import Plan
from localspec.streaming.answer_options import AnswerOptions

GREEDY = localspec.SamplingParams(temperature=0)
STORY = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"


def test_pieces_add_up_to_the_reply(engine):
    stream = engine.generate_raw(STORY, sampling=GREEDY)
    pieces = list(stream)
    reply = stream.reply()
    assert "".join(piece.text for piece in pieces) == reply.text
    assert tuple(t for piece in pieces for t in piece.token_ids) == reply.token_ids
    assert reply.finish_reason == "stop"
    assert engine.vocabulary.is_end(reply.token_ids[-1])
    assert "<|im_end|>" not in reply.text


def test_numbers_of_a_reply_agree(engine):
    stats = engine.generate_raw(STORY, seed=1, max_tokens=50).reply().stats
    assert stats.completion_tokens == stats.num_accepted + (
        stats.num_recovered + stats.num_bonus + stats.num_plain
    )
    assert stats.num_draft_tokens == sum(stats.drafted_per_position)
    assert stats.num_accepted == sum(stats.accepted_per_position)
    assert 0 < stats.time_to_first_token_s <= stats.total_time_s
    parts = stats.draft_time_s + stats.target_time_s + stats.sampler_time_s
    assert 0 < parts + stats.time_to_first_token_s <= stats.total_time_s
    assert stats.tokens_per_s > 0
    assert list(stats.accepted_per_position) == sorted(stats.accepted_per_position)[::-1]


def test_a_seed_means_the_same_text_without_a_draft_and_with_any(engine):
    """And by default it is the rule coupled that sees to that."""
    reply = engine.generate_raw(STORY, seed=11, max_tokens=80).reply()
    assert reply.rule == "coupled"
    assert reply.stats.num_accepted > 10
    for k in (0, 1, 8):
        with localspec.load(draft_tokens=k) as other:
            assert other.generate_raw(STORY, seed=11, max_tokens=80).reply().text == reply.text


def test_the_rule_of_verification_can_be_chosen(engine):
    assert engine.generate_raw(STORY, max_tokens=2).reply().rule == "block"
    assert (
        engine.generate_raw(STORY, max_tokens=2, sampling=GREEDY, seed=1).reply().rule
        == "greedy"
    )
    for rule in ("token", "block", "coupled"):
        reply = engine.generate_raw(STORY, max_tokens=40, seed=3, rule=rule).reply()
        assert reply.rule == rule
        assert (
            reply.text
            == engine.generate_raw(STORY, max_tokens=40, seed=3, rule=rule).reply().text
        )


def test_no_seed_is_a_fresh_one(engine):
    texts = {engine.generate_raw(STORY, max_tokens=60).reply().text for _ in range(4)}
    assert len(texts) > 1


def test_a_stop_string_ends_an_answer_and_the_next_goes_on(engine):
    """Also when tokens after it were accepted in the same step."""
    whole = engine.generate_raw(STORY, sampling=GREEDY).reply()
    for stop in (". ", "fox", whole.text[40:44]):
        reply = engine.generate_raw(STORY, sampling=GREEDY, stop=[stop]).reply()
        assert reply.text == whole.text.partition(stop)[0]
        assert reply.finish_reason == "stop"
        assert reply.stats.completion_tokens == len(reply.token_ids)
    assert engine.generate_raw(STORY, sampling=GREEDY).reply().token_ids == whole.token_ids


def test_text_that_waited_for_a_stop_string_is_not_lost(engine):
    """When the answer is closed or cut by max_tokens before the string is decided."""
    whole = engine.generate_raw(STORY, sampling=GREEDY).reply().text
    never = whole[:30] + "\0"
    stream = engine.generate_raw(STORY, sampling=GREEDY, stop=never)
    assert [next(stream).text for _ in range(4)] == [""] * 4
    stream.close()
    assert stream.reply().text
    assert whole.startswith(stream.reply().text)
    cut = engine.generate_raw(STORY, sampling=GREEDY, stop=[never], max_tokens=4).reply()
    assert cut.text == stream.reply().text


def test_closing_waits_for_the_thread_that_reads(engine, monkeypatch):
    """What that thread, and any other, asks for meanwhile is refused, or at its end."""
    answer = engine.generate_raw(STORY)
    begun, may_end = threading.Event(), threading.Event()
    real, read = inside.target(engine).decode, []

    def slow(*arguments):
        begun.set()
        may_end.wait()
        return real(*arguments)

    monkeypatch.setattr(inside.target(engine), "decode", slow)
    reader = threading.Thread(target=lambda: read.extend(answer))
    reader.start()
    begun.wait()
    for ask in (answer.reply, lambda: next(answer)):
        with pytest.raises(EngineError, match="being read elsewhere"):
            ask()
    closer = threading.Thread(target=answer.close)
    closer.start()
    while not inside.record_of(answer).cancellation.is_requested:
        pass
    assert closer.is_alive()
    may_end.set()
    closer.join()
    reader.join()
    assert answer.reply().finish_reason == "cancelled"
    assert list(answer) == []
    assert engine.generate_raw(STORY, max_tokens=2).reply().token_ids


def test_options_are_one_object_or_keywords_or_both(engine):
    """A keyword counts more than the object; another sampling takes all of its place."""
    options = localspec.AnswerOptions.of(temperature=0, max_tokens=3)
    assert len(engine.generate_raw(STORY, options).reply().token_ids) == 3
    assert len(engine.generate_raw(STORY, options, max_tokens=5).reply().token_ids) == 5
    assert engine.generate_raw(STORY, options, top_k=4).reply().rule == "greedy"
    assert engine.generate_raw(STORY, options, temperature=1.0).reply().rule == "block"
    warm = localspec.SamplingParams(temperature=1.0)
    assert engine.generate_raw(STORY, options, sampling=warm).reply().rule == "block"
    chat = engine.chat()
    assert len(chat.send("Hello", options).reply().token_ids) == 3
    assert len(chat.retry(options, max_tokens=2).reply().token_ids) == 2
    for bad in (0.5, {"temperature": 0}):
        with pytest.raises(OptionError, match="the options are"):
            engine.generate("Hello", bad)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda _: AnswerOptions(stop=itertools.repeat("a")), "more than 1024 stop strings"),
        (
            lambda _: AnswerOptions(regex="a", trigger=itertools.repeat("a")),
            "more than 1024 triggers",
        ),
        (lambda engine: engine.detokenize(itertools.repeat(5)), "more than 16777216 token ids"),
        (
            lambda engine: engine.chat().send("a", images=itertools.repeat(b"")),
            "more than 256 pictures",
        ),
    ],
)
def test_an_iterator_without_an_end_is_refused(engine, asked, message):
    with pytest.raises(OptionError, match=message):
        asked(engine)


def test_texts_of_an_iterator_count_in_every_answer(engine):
    whole = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=20).reply().text
    options = AnswerOptions(sampling=GREEDY, max_tokens=20, stop=iter([whole[10:15]]))
    for _ in range(2):
        reply = engine.generate_raw(STORY, options).reply()
        assert reply.stopped_by == whole[10:15]


@pytest.mark.parametrize("params", [GREEDY, localspec.SamplingParams(temperature=1.3)])
def test_logprobs_are_those_of_a_decode_of_the_text(engine, params):
    """Of every token, whether accepted, recovered, bonus or plain."""
    prompt = engine.vocabulary.tokenize(STORY, parse_special=True)
    stream = engine.generate_raw(prompt, sampling=params, seed=3, max_tokens=40, logprobs=4)
    pieces = list(stream)
    reply = stream.reply()
    assert reply.logprobs == tuple(p.logprobs for p in pieces if p.token_ids)
    assert tuple(each.token_id for each in reply.logprobs) == reply.token_ids
    assert min(reply.stats.num_accepted, reply.stats.num_recovered, reply.stats.num_bonus) > 0
    with inside.lent(engine) as loop:
        # One token at a time: what a step scored at once must be the same up to rounding.
        row = loop.target.decode(prompt, 1)[0]
        for each in reply.logprobs:
            exact = row.astype(np.float64)
            exact -= exact.max()
            exact -= np.log(np.exp(exact).sum())
            assert each.before == pytest.approx(exact[each.token_id], abs=0.1)
            best = [exact[top.token_id] for top in each.top_before]
            assert [top.logprob for top in each.top_before] == pytest.approx(best, abs=0.1)
            assert best[0] == pytest.approx(exact.max(), abs=0.05)
            listed = [top.token_id for top in each.top_after]
            assert each.token_id in listed or len(listed) == 4
            row = loop.target.decode([each.token_id], 1)[0]


def test_the_context_ends_an_answer(demo_target):
    with localspec.load(target=demo_target, context_length=40) as small:
        prompt = small.vocabulary.tokenize(STORY, parse_special=True)
        reply = small.generate_raw(prompt, sampling=GREEDY).reply()
        assert len(prompt) + len(reply.token_ids) == 40
        assert reply.finish_reason == "length"
        with pytest.raises(ContextError, match="prompt has 40 tokens; the context holds 40"):
            small.generate_raw([5] * 40).reply()


def test_a_stream_that_was_cancelled_before_it_began_says_nothing(engine):
    """The wish comes from a thread, and touches no other answer and nothing later."""
    chat = engine.chat()
    chat.send("Hello!", sampling=GREEDY).reply()
    stream = chat.send("Tell me a story about a fox.", sampling=GREEDY)
    other = engine.generate_raw(STORY, sampling=GREEDY)
    said = next(other).text
    canceller = threading.Thread(target=stream.cancel)
    canceller.start()
    canceller.join()
    said += "".join(piece.text for piece in other)
    whole = engine.generate_raw(STORY, sampling=GREEDY).reply()
    assert (said, other.reply().finish_reason) == (whole.text, "stop")
    assert list(stream) == []
    assert stream.reply().finish_reason == "cancelled"
    assert stream.reply().token_ids == ()
    assert len(chat.messages) == 2
    stream.cancel()
    assert engine.generate_raw(STORY, sampling=GREEDY).reply().text == whole.text


def test_a_stream_is_cancelled_at_any_moment_of_its_begin(engine):
    """A thread cancels while another reads the first piece: it never runs to its end."""
    for delay in range(0, 4000, 100):
        stream = engine.generate_raw(
            STORY, sampling=localspec.SamplingParams(temperature=0, ignore_eos=True)
        )
        reading = threading.Thread(target=list, args=(stream,))
        reading.start()
        for _ in range(delay):
            pass
        stream.cancel()
        reading.join()
        assert stream.reply().finish_reason == "cancelled"
        assert stream.reply().stats.completion_tokens < 500


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, localspec.DraftOff.NOTHING_REPEATS),
        ({"proposer": "draft"}, localspec.DraftOff.NO_DRAFT),
        ({"proposer": "none"}, localspec.DraftOff.SET_TO_ZERO),
        ({"draft_tokens": 0}, localspec.DraftOff.SET_TO_ZERO),
    ],
)
def test_plain_decoding_and_its_reasons(demo_target, options, reason):
    with localspec.load(target=demo_target, **options) as engine:
        assert engine.generate_raw(STORY, max_tokens=4).reply().stats.draft_off is reason


def test_adopted_llamas_work_as_a_pair(demo_target, demo_draft):
    """Their settings stay, they give the same text, and they are usable afterwards."""
    target = llama_cpp.Llama(str(demo_target), n_ctx=512, verbose=False)
    draft = llama_cpp.Llama(str(demo_draft), n_ctx=512, verbose=False)
    with localspec.load(target=target, draft=draft, draft_tokens=3) as engine:
        assert engine.context_length == 512
        reply = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=40).reply()
    assert reply.stats.num_draft_tokens > 0
    with localspec.load(target=demo_target, context_length=512, draft_tokens=0) as engine:
        assert (
            engine.generate_raw(STORY, sampling=GREEDY, max_tokens=40).reply().text
            == reply.text
        )
    after = target.create_completion("The fox", max_tokens=5, temperature=0)
    assert after["choices"][0]["text"]
    target.close()
    draft.close()


def test_the_same_llama_twice_is_refused(demo_target):
    llama = llama_cpp.Llama(str(demo_target), n_ctx=64, verbose=False)
    with pytest.raises(OptionError, match="same Llama object"):
        localspec.load(target=llama, draft=llama)
    with localspec.load(target=llama), pytest.raises(EngineError, match="in another engine"):
        localspec.load(target=llama)
    localspec.load(target=llama).close()
    llama.close()
    with pytest.raises(localspec.ClosedError, match="is closed"):
        localspec.load(target=llama)


def test_an_adopted_llama_may_be_used_and_closed_by_its_owner(demo_target):
    """In between two answers: the first is not mixed up by it, the second refuses."""
    llama = llama_cpp.Llama(str(demo_target), n_ctx=512, verbose=False)
    engine = localspec.load(target=llama, draft_tokens=0)
    first = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=20).reply()
    llama.create_completion("Seven times eight is", max_tokens=9, temperature=0)
    assert engine.generate_raw(STORY, sampling=GREEDY, max_tokens=20).reply().text == first.text
    llama.close()
    for prompt in (STORY, [5, 6]):
        with pytest.raises(localspec.ClosedError, match="closed by its owner"):
            engine.generate_raw(prompt, max_tokens=2).reply()
    engine.close()


def test_an_adopted_llama_that_its_owner_has_reset_is_read_anew(demo_target):
    """Its cache is as long as before, and of another text."""
    llama = llama_cpp.Llama(str(demo_target), n_ctx=256, verbose=False)
    with localspec.load(target=llama, draft_tokens=0) as engine:
        expected = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=20).reply()
        engine.generate_raw(STORY, sampling=GREEDY, max_tokens=20).reply()
        llama.reset()
        llama.eval([7] * inside.target(engine).num_cached)
        llama.reset()
        again = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=20).reply()
        assert again.stats.cached_prompt_tokens == 0
        assert again.token_ids == expected.token_ids
    llama.close()


def test_nothing_reaches_a_freed_model(demo_draft):
    engine = localspec.load(target=demo_draft)
    chat = engine.chat()
    engine.close()
    assert "im_start" in engine.chat_template
    for use in (
        lambda: chat.send("Hi").reply(),
        lambda: engine.generate_raw("Hi").reply(),
        engine.chat,
    ):
        with pytest.raises(localspec.ClosedError, match="closed"):
            use()


@pytest.mark.parametrize("padded", ["target", "draft"])
def test_vocabularies_padded_to_different_sizes_work(tmp_path, demo_target, padded):
    """As 152 064 and 151 936 do; ids beyond the shared ones never come from the draft."""
    made = {
        role: write_random_model(
            tmp_path / f"{role}.gguf",
            demo_target,
            seed=len(role),
            num_padding=128 if role == padded else 0,
        )
        for role in ("target", "draft")
    }
    flat = localspec.SamplingParams(temperature=1.5, top_k=0, top_p=1, min_p=0, ignore_eos=True)
    with (
        localspec.load(**made, draft_tokens=3) as pair,
        localspec.load(target=made["target"]) as alone,
    ):
        for sampling, num_tokens in ((GREEDY, 30), (flat, 300)):
            both, own = (
                engine.generate_raw(
                    "The fox", sampling=sampling, seed=1, max_tokens=num_tokens
                ).reply()
                for engine in (pair, alone)
            )
            assert both.token_ids == own.token_ids
            assert both.stats.num_draft_tokens > 0
        assert len(both.token_ids) == 300


def test_a_split_model_loads_by_its_first_part(tmp_path, demo_target):
    """Written by libllama's own splitter rules: two parts, the tensors shared out."""
    from gguf_maker import split_model

    first = split_model(demo_target, tmp_path)
    with localspec.load(target=first) as split, localspec.load(target=demo_target) as whole:
        texts = [
            e.generate_raw(STORY, sampling=GREEDY, max_tokens=20).reply().text
            for e in (split, whole)
        ]
    assert texts[0] == texts[1]


def test_loading_reports_its_progress():
    """Over both files, in order, from the caller's thread, to the end."""
    seen, threads = [], set()

    def progress(share: float) -> None:
        seen.append(share)
        threads.add(threading.get_ident())

    localspec.load(progress=progress).close()
    assert seen == sorted(seen)
    assert 0.0 <= seen[0] < 0.5
    assert seen[-1] == 1.0
    assert len(seen) > 4
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_an_exception_in_the_progress_callback_cancels_the_load(at):
    """Whichever model it strikes; the exception reaches the caller, and a load works again."""

    class Stop(Exception):
        pass

    def progress(share: float) -> None:
        if share >= at:
            raise Stop(share)

    with pytest.raises(Stop) as caught:
        localspec.load(progress=progress)
    assert at <= caught.value.args[0] <= 1.0
    localspec.load(draft_tokens=0).close()


@pytest.mark.parametrize("num_plans", [1, 2])
def test_fewer_layers_are_tried_while_memory_runs_out(monkeypatch, caplog, num_plans):
    """Here the draft finds room at the third try; each one before leaves nothing open."""
    opened: list[LlamaModel] = []
    closed: list[LlamaModel] = []
    open_model, close_model = LlamaModel.open, LlamaModel.close
    shortages = iter([False, True, False, True, False, False])

    def open_if_there_is_room(*arguments):
        if next(shortages):
            raise MemoryLimitError("there is no room")
        opened.append(open_model(*arguments))
        return opened[-1]

    def close(model):
        closed.append(model)
        close_model(model)

    monkeypatch.setattr(LlamaModel, "open", open_if_there_is_room)
    monkeypatch.setattr(LlamaModel, "close", close)
    monkeypatch.setattr(Plan, "smaller_plans", lambda plan: iter([plan] * num_plans))
    if num_plans == 1:
        with pytest.raises(MemoryLimitError, match="there is no room"):
            localspec.load()
    else:
        with localspec.load() as engine:
            assert closed == opened[:2]
            assert engine.generate_raw(STORY, max_tokens=2).reply().token_ids
    assert set(closed) == set(opened)
    told = [each for each in caplog.messages if "fewer layers on GPUs" in each]
    assert len(told) == num_plans
    assert all("there is no room" in each for each in told)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"preset": "../../x"}, ModelFileError, "x does not exist"),
        ({"draft": "x.gguf"}, OptionError, "without a target"),
        ({"preset": "demo", "target": "x.gguf"}, OptionError, "both a preset and a target"),
        ({"draft_tokens": -1}, OptionError, "draft tokens is -1"),
        ({"context_length": 0}, OptionError, "context length is 0"),
        ({"memory": "work"}, OptionError, "memory is 'work'"),
        ({"target_options": {"num_threads": 1}}, OptionError, "options are {'num_threads'"),
    ],
)
def test_load_refuses_what_it_cannot_do(arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        localspec.load(**arguments)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens is 0"),
        ({"prompt": "x", "seed": -1}, "seed is -1"),
        ({"prompt": "x", "rule": "exact"}, "no rule of verification 'exact'"),
        ({"prompt": [1, "2"]}, "neither text nor token ids"),
        ({"prompt": [1, 10**6]}, "token id 1000000 is not in this vocabulary"),
    ],
)
def test_stream_refuses_what_it_cannot_do(engine, arguments, message):
    with pytest.raises(OptionError, match=message):
        engine.generate_raw(**arguments).reply()


def test_bad_token_ids_are_an_error_not_a_crash(engine):
    """Also where nobody looked at them before they are decoded."""
    from localspec.chat.prompt_source import ReadySource
    from localspec.errors import DecodeError
    from localspec.streaming.answer_text import Prompt
    from localspec.streaming.record import AnswerRecord

    for bad in (-1, 10**6):
        asked = AnswerRecord(AnswerOptions(), ReadySource(Prompt([1, bad])))
        with pytest.raises(DecodeError, match="do not fit a vocabulary"):
            inside.answer(engine, asked).reply()
    assert engine.generate_raw(STORY, max_tokens=2).reply().token_ids


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda engine: engine.generate_raw(b"text").reply(), "neither text nor token ids"),
        (lambda engine: engine.chat(system=5), "system message is 5"),
        (lambda engine: engine.chat().send(None).reply(), "message is None"),
        (lambda engine: engine.vocabulary.tokenize(5, parse_special=True), "tokenise is 5"),
        (lambda engine: engine.vocabulary.piece(10**6), "token id 1000000 is not in"),
        (lambda _engine: localspec.SamplingParams(logit_bias=[5]), r"logit_bias is \[5\]"),
    ],
)
def test_arguments_of_a_wrong_type_are_ours_to_refuse(engine, use, message):
    """Some of them ended the process, in C."""
    with pytest.raises(OptionError, match=message) as caught:
        use(engine)
    assert caught.value.hint


def test_a_model_takes_no_impossible_number_of_threads():
    engine = localspec.load(draft_tokens=0)
    model = inside.target(engine)
    for count in (0, -1, 10**6):
        with pytest.raises(OptionError, match=f"threads is {count}"):
            model.num_threads = count
    engine.close()
    with pytest.raises(localspec.ClosedError, match="closed"):
        _ = model.num_threads
