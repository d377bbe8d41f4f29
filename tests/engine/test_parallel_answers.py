"""Several answers at once: they share decodes, and none comes in another's way."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import inside
import localspec
from localspec.errors import BusyError, ClosedError, DecodeError, Interrupted
from localspec.llama import joint_costs, joint_decode
from localspec.llama.joint_costs import LONGEST_STEP
from localspec.llama.joint_decode import JointPart, decode_parts, joinable
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.speculative.model_api import Decode, result_of
from waiting import at_once

GREEDY = localspec.SamplingParams(temperature=0)
ENDLESS = localspec.SamplingParams(temperature=0, ignore_eos=True)
WARM = localspec.SamplingParams(temperature=1.0)
SAMPLED = localspec.SamplingParams(temperature=1.0, ignore_eos=True)
PROMPTS = (
    "Tell me a story about a fox.",
    "Once upon a time there was",
    "The owl and the hen",
    "A long time ago, in a wood",
)


def all_at_once(*works):
    with at_once(*works) as found:
        pass
    return found


def begun_together(engine, *works):
    """As `all_at_once`, of works that ask once each: no answer begins before all are asked."""
    with contextlib.ExitStack() as until_asked:
        until_asked.enter_context(inside.held(inside.worker_of(engine), len(works)))
        with at_once(*works) as found:
            until_asked.close()
    return found


def asking(engine, prompt, **options):
    options = {"sampling": ENDLESS, "max_tokens": 40, **options}
    return lambda: engine.generate_raw(prompt, **options).reply()


@pytest.fixture(scope="module")
def engine():
    """Four lanes over the demo pair, of which the texts that repeat draft, too."""
    with localspec.load(context_length=512, parallel=4) as opened:
        yield opened


@pytest.fixture
def plain():
    with localspec.load(draft_tokens=0, context_length=512, parallel=3) as opened:
        yield opened


def test_answers_share_decodes(plain):
    """As many that are equally fast take hardly more decodes than one of them."""
    assert plain.parallel == 3
    before = plain.num_decodes
    replies = begun_together(plain, *(asking(plain, prompt) for prompt in PROMPTS[:3]))
    assert [len(reply.token_ids) for reply in replies] == [40] * 3
    assert plain.num_decodes - before < 100


@pytest.mark.parametrize(
    "options", [{}, {"draft_tokens": 3}, {"proposer": "lookup"}, {"proposer": "head"}]
)
@pytest.mark.parametrize("sampling", [ENDLESS, SAMPLED])
def test_texts_are_those_alone(
    exact_target, demo_draft, demo_head, monkeypatch, options, sampling
):
    """To the bit with exact settings, whoever drafts, greedy or seeded; in joint decodes."""
    # Of models as small as these, times say by chance whether joining two sizes pays.
    monkeypatch.setattr(joint_costs.RowTimes, "pays", lambda *_: True)
    num_parts = []

    def noting(parts):
        num_parts.append(len(parts))
        decode_parts(parts)

    monkeypatch.setattr(joint_decode, "decode_parts", noting)
    files = {"target": exact_target, "exact": True, "context_length": 512}
    if "proposer" not in options:
        files["draft"] = demo_draft
    elif options["proposer"] == "head":
        files["head"] = demo_head
    said = []
    for parallel in (1, 4):
        with localspec.load(**files, **options, parallel=parallel) as opened:
            works = [asking(opened, each, sampling=sampling, seed=3) for each in PROMPTS]
            if parallel == 1:
                said += [work().token_ids for work in works]
            else:
                assert opened.exactness.joined
                replies = begun_together(opened, *works)
                assert [reply.token_ids for reply in replies] == said
                assert max(num_parts) > 1
                if "draft_tokens" in options:  # else times say how much each of them drafts
                    assert opened.num_decodes < 110


@pytest.fixture(params=[False, True])
def pays(request, monkeypatch):
    """Whether decodes are joined where that takes padding, whatever it costs."""
    monkeypatch.setattr(joint_costs.RowTimes, "pays", lambda *_: request.param)
    return request.param


def decode_all(texts):
    """Drive generators that yield decodes, in joint ones where that goes; what each returns."""
    asked, found = {text: next(text) for text in texts}, {}
    while asked:
        parts = [JointPart(*decode) for decode in asked.values()]
        chosen, _ = joinable(parts, joint_costs.RowTimes())
        decode_parts(chosen)
        for text, part in zip(list(asked), parts, strict=True):
            if part in chosen:
                assert part.error is None
                try:
                    asked[text] = text.send(part.rows)
                except StopIteration as end:
                    found[text] = end.value
                    del asked[text]
    return [found[text] for text in texts]


def test_rows_are_those_alone(cache_kind_file, pays):
    """But for rounding, whether decodes are joined or take turns: of any size, and cut back."""
    options = LlamaOptions(context_length=200, max_outputs=4, num_snapshots=3)
    random = np.random.default_rng(0)
    texts = [random.integers(5, 900, size).tolist() for size in (40, 90, 7)]

    def rows(model, text):
        # Rounding depends on the pieces.
        begin = (len(text) - 1) // LONGEST_STEP * LONGEST_STEP
        for at in range(0, begin, LONGEST_STEP):
            yield Decode(model, text[at : at + LONGEST_STEP], 0)
        found = [(yield Decode(model, text[begin:], 1)).copy()]
        for size in (1, 1, 3, 2, 1, 4):
            found.append((yield Decode(model, text[:size], size)).copy())
            model.truncate(model.num_cached - min(size - 1, model.max_rollback))
            if model.num_cached < len(text):
                found.append((yield Decode(model, text[model.num_cached :], 1)).copy())
        return np.concatenate(found)

    one = LlamaModel.open(cache_kind_file, options)
    alone = []
    for text in texts:
        one.truncate(0)
        alone.append(result_of(rows(one, text)))
    one.close()
    first = LlamaModel.open(cache_kind_file, replace(options, num_sequences=3))
    models = [first, first.sibling(1), first.sibling(2)]
    for _ in range(2):
        for model in models:
            model.truncate(0)
        found = decode_all([rows(*each) for each in zip(models, texts, strict=True)])
        for mine, expected in zip(found, alone, strict=True):
            np.testing.assert_allclose(mine, expected, atol=2e-3)
    first.close()


def test_a_joint_decode_is_one_graph(demo_target):
    """Of several, libllama has the rows that heads read in the order of the graphs."""
    options = LlamaOptions(context_length=512, flash_attention="off", num_sequences=6)
    first = LlamaModel.open(demo_target, options)
    models = [first, *(first.sibling(number) for number in range(1, 6))]
    parts = [JointPart(model, [*range(400, 432)], 1) for model in models]
    chosen, num_rows = joinable(parts, joint_costs.RowTimes())
    assert 32 < num_rows == 32 * len(chosen) <= first.handle.graph_size
    first.close()


def test_lanes_that_are_apart_share_decodes_and_leave_what_lies_between(plain, pays):
    """The text in between is padded where that pays, and is as it was."""
    prompts = [[*range(first, first + 50)] for first in (100, 300, 500)]
    said = [asking(plain, prompt, max_tokens=1)().token_ids for prompt in prompts]
    before = plain.num_decodes
    again = [[*prompts[number], *said[number]] for number in (0, 2)]
    begun_together(plain, *(asking(plain, prompt) for prompt in again))
    assert (plain.num_decodes - before < 75) == pays
    reply = asking(plain, [*prompts[1], *said[1]], max_tokens=20)()
    assert reply.stats.cached_prompt_tokens >= 50  # in its lane
    with localspec.load(draft_tokens=0, context_length=512) as fresh:
        asking(fresh, prompts[1], max_tokens=1)()
        expected = asking(fresh, [*prompts[1], *said[1]], max_tokens=20)()
    assert reply.token_ids == expected.token_ids


def test_what_pays_is_timed():
    times = joint_costs.RowTimes()
    assert not times.pays([1, 1], 3)
    times.learn(1, 1.0)
    assert not times.pays([1, 1], 3)
    times.learn(2, 1.4)
    assert times.expected(3) == pytest.approx(1.8)  # on the line through both
    assert times.pays([1, 1], 3)
    assert not times.pays([1, 1], 4)
    for _ in range(3):
        times.learn(3, 2.5)
    assert not times.pays([1, 1], 3)
    times.learn(8, 2.6)
    assert times.pays([3, 3], 8)


def test_an_answer_says_what_it_waited(plain):
    alone = asking(plain, PROMPTS[0])().stats
    assert alone.waited_time_s == 0.0
    works = [asking(plain, prompt) for prompt in PROMPTS[:2]]
    for reply in begun_together(plain, *works):
        stats = reply.stats
        worked_s = stats.draft_time_s + stats.target_time_s + stats.sampler_time_s
        assert stats.waited_time_s > 0.0
        assert stats.decode_time_s == pytest.approx(worked_s + stats.waited_time_s)
        assert stats.decode_time_s < stats.total_time_s


def test_who_finds_no_lane_is_refused_or_waits(plain):
    with contextlib.ExitStack() as stack:
        for prompt in PROMPTS[:3]:
            stream = stack.enter_context(plain.generate_raw(prompt, sampling=ENDLESS))
            next(stream)
        with pytest.raises(BusyError):
            asking(plain, PROMPTS[3])()
        with at_once(asking(plain, PROMPTS[3], queue=True)) as waiting:
            time.sleep(0.05)
            assert waiting == [None]
            stream.close()
    assert len(waiting[0].token_ids) == 40
    with plain.generate_raw(PROMPTS[0], sampling=ENDLESS) as stream:
        next(stream)
        with pytest.raises(BusyError), inside.lent(plain):
            pass


@pytest.mark.parametrize("way", ["cancel", "close", "drop", "raise"])
def test_one_that_ends_early_leaves_the_others(engine, way):
    expected = asking(engine, PROMPTS[0])().text

    def ends_early():
        stream = engine.generate_raw(PROMPTS[1], sampling=ENDLESS, max_tokens=300)
        for _ in range(3):
            next(stream)
        if way == "cancel":
            stream.cancel()
            return stream.reply().finish_reason
        if way == "close":
            stream.close()
        if way == "raise":
            with stream:
                raise ZeroDivisionError
        del stream
        gc.collect()
        return way

    found = all_at_once(asking(engine, PROMPTS[0]), ends_early, ends_early)
    assert len(found[0].text) == pytest.approx(len(expected), abs=40)
    assert len(found[0].token_ids) == 40
    if way == "raise":
        assert [type(each) for each in found[1:]] == [ZeroDivisionError] * 2
    else:
        assert found[1:] == ["cancelled" if way == "cancel" else way] * 2
    assert len(asking(engine, PROMPTS[2])().token_ids) == 40


def test_closing_ends_all_of_them():
    opened = localspec.load(draft_tokens=2, context_length=512, parallel=3)
    streams = [opened.generate_raw(prompt, sampling=ENDLESS) for prompt in PROMPTS[:3]]
    started = threading.Barrier(4)

    def read(stream):
        next(stream)
        started.wait(60)
        return stream.reply().finish_reason

    with at_once(*(lambda stream=stream: read(stream) for stream in streams)) as found:
        started.wait(60)
        opened.close()
    assert found == ["cancelled"] * 3
    with pytest.raises(ClosedError):
        asking(opened, PROMPTS[0])()


def test_a_long_prompt_lets_a_short_one_through(plain):
    """In between its pieces, of which it tells."""
    lengths, said = [], []
    prompt = [7 * place % 900 + 5 for place in range(450)]

    def short():
        while not lengths:
            time.sleep(0.001)
        reply = asking(plain, PROMPTS[0], max_tokens=8)()
        said.append(len(lengths))
        return reply

    long = asking(plain, prompt, max_tokens=1, on_prompt=lambda done, _: lengths.append(done))
    found = all_at_once(long, short)
    assert [len(reply.token_ids) for reply in found] == [1, 8]
    assert lengths == sorted(lengths)
    assert lengths[0] <= 128


def test_a_decode_that_fails_is_one_texts_own(plain, monkeypatch):
    """A joint one is tried again text by text, and all say what they would have said."""
    expected = [asking(plain, prompt)().token_ids for prompt in PROMPTS[:2]]
    real, joint, poison = joint_decode.llama_cpp.llama_decode, [], 77

    def decode(context, batch):
        sequences = {batch.seq_id[place][0] for place in range(batch.n_tokens)}
        tokens = [batch.token[place] for place in range(batch.n_tokens)]
        if len(sequences) > 1:
            joint.append(sequences)
        if len(sequences) > 1 or poison in tokens:
            real(context, batch)  # which leaves entries behind
            return 1
        return real(context, batch)

    monkeypatch.setattr(joint_decode.llama_cpp, "llama_decode", decode)
    works = [asking(plain, prompt) for prompt in (*PROMPTS[:2], [5, poison])]
    found = begun_together(plain, *works)
    assert [reply.token_ids for reply in found[:2]] == expected
    assert isinstance(found[2], DecodeError)
    assert joint


def test_constraints_and_tools_keep_to_their_own(engine):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    works = [
        asking(engine, PROMPTS[0], sampling=WARM, json_schema=schema, max_tokens=200),
        asking(engine, PROMPTS[1], sampling=WARM, regex="(yes|no)"),
        asking(engine, PROMPTS[2]),
    ]
    found = all_at_once(*works)
    assert found[0].text.startswith("{")
    assert found[1].text in ("yes", "no")
    assert len(found[2].token_ids) == 40


def test_conversations_find_their_caches_again_whoever_answers_beside(engine):
    """Six in four lanes, from as many threads."""

    def talk(number):
        chat = engine.chat(system=f"You are number {number}.")
        options = {"sampling": GREEDY, "max_tokens": 12, "queue": True}
        chat.send(PROMPTS[number % 4], **options).reply()
        cached = []
        for _ in range(3):
            reply = chat.send("Go on, please.", **options).reply()
            cached.append(reply.stats.prompt_tokens - reply.stats.cached_prompt_tokens)
        assert len(chat.messages) == 9
        return max(cached)

    found = all_at_once(*(lambda number=number: talk(number) for number in range(6)))
    assert all(isinstance(most, int) and most < 40 for most in found), found


def test_a_conversation_has_one_answer_at_a_time_whatever_lanes_are_free(engine):
    chat = engine.chat()
    options = {"sampling": GREEDY, "max_tokens": 8}
    with chat.send(PROMPTS[0], sampling=ENDLESS) as stream:
        next(stream)
        with pytest.raises(BusyError, match="last question of this conversation"):
            chat.send(PROMPTS[1], **options).reply()
        questions = [lambda: chat.send(PROMPTS[1], queue=True, **options).reply()] * 3
        with at_once(*questions) as waiting:
            time.sleep(0.05)
            assert len(asking(engine, PROMPTS[2])().token_ids) == 40
            assert waiting == [None] * 3
            stream.close()
    assert all(reply.token_ids for reply in waiting)
    assert len(chat.messages) == 8


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_what_an_answer_that_goes_on_begins_alike_is_copied(exact_target, draft_tokens):
    """In its midst, with tokens that were drafted behind it; and both say what they would."""
    beginning = [5 + 37 * place % 900 for place in range(200)]
    files = {"target": exact_target, "draft": exact_target, "draft_tokens": draft_tokens}
    with localspec.load(**files, exact=True, context_length=512) as alone:
        expected = [asking(alone, [*beginning, 5 + number])().token_ids for number in range(6)]
    with localspec.load(**files, exact=True, context_length=512, parallel=3) as opened:
        begun = threading.Event()

        def first():
            stream = opened.generate_raw([*beginning, 5], sampling=ENDLESS, max_tokens=300)
            said = [next(stream).token_ids]
            begun.set()
            said += [piece.token_ids for piece in stream]
            return tuple(token for tokens in said for token in tokens)

        def others(numbers):
            begun.wait(60)
            return [asking(opened, [*beginning, 5 + number])() for number in numbers]

        found = all_at_once(first, lambda: others([1, 2, 3]), lambda: others([4, 5]))
    assert found[0][:40] == expected[0]
    replies = [*found[1], *found[2]]
    assert [reply.token_ids for reply in replies] == expected[1:]
    assert all(reply.stats.cached_prompt_tokens >= 200 for reply in replies)


def test_a_late_wish_to_end_a_decode_ends_no_other_texts(demo_target):
    """Nor does the wish of one of several."""
    options = LlamaOptions(context_length=64, num_sequences=2)
    first = LlamaModel.open(demo_target, options)
    second = first.sibling(1)
    first.decode([5], 1)
    first.interrupt()
    assert len(second.decode([5], 1)) == 1
    parts = [JointPart(model, [6], 1) for model in (first, second)]
    decode_parts(parts)
    assert isinstance(parts[0].error, Interrupted)
    assert parts[1].rows is not None
    first.close()
