"""Models whose attention sees a window of the text: whatever was cut or restored, the text is
that of an engine which has decoded nothing else before."""

from __future__ import annotations

import llama_cpp
import numpy as np
import pytest

import localspec
from gguf_maker import write_random_model
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions

GREEDY = localspec.SamplingParams(temperature=0)
WINDOW = 24
ROUNDING = 0.02  # of logits that spread by 1, between batches of other sizes
LONG = "Tell me a story about a fox, an owl, a river and a lantern, please. " * 6
QUESTIONS = (LONG, "And one about the owl. " * 3, "Thank you!")


@pytest.fixture(scope="module")
def windowed(tmp_path_factory, demo_target):
    """Two models: five layers of six see WINDOW tokens, the sixth sees them all."""
    folder = tmp_path_factory.mktemp("windowed")
    return [
        write_random_model(
            folder / f"{seed}.gguf",
            demo_target,
            architecture="gemma3",
            num_layers=6,
            context_length=1024,
            seed=seed,
            extra={"gemma3.attention.sliding_window": WINDOW},
        )
        for seed in (1, 2)
    ]


def adopted(path):
    """An application's object whose cache holds little more than the window."""
    return llama_cpp.Llama(
        str(path), n_ctx=1024, n_batch=64, n_ubatch=32, swa_full=False, verbose=False
    )


@pytest.fixture(scope="module")
def engine(windowed):
    target, draft = map(adopted, windowed)
    with localspec.load(target=target, draft=draft, draft_tokens=5) as opened:
        yield opened


@pytest.fixture(scope="module")
def fresh_text(windowed):
    """What an engine says that has decoded nothing else."""
    known = {}

    def text(prompt_tokens):
        key = tuple(prompt_tokens)
        if key not in known:
            with localspec.load(target=windowed[0], draft_tokens=0) as other:
                known[key] = other.generate_raw(
                    prompt_tokens, sampling=GREEDY, max_tokens=30
                ).reply()
        return known[key].token_ids

    return text


def ask(chat, text, fresh_text):
    """The next answer, which is that of a fresh engine to the same prompt."""
    prompt = chat.prompt_tokens(text)
    reply = chat.send(text, sampling=GREEDY, max_tokens=30).reply()
    assert reply.token_ids == fresh_text(prompt)
    return reply


def test_two_chats_by_turns(engine, fresh_text):
    """Each switch saves one cache and restores the other: their windows alone."""
    chats = [engine.chat(), engine.chat(system="You are terse.")]
    for question in QUESTIONS:
        for chat in chats:
            ask(chat, question, fresh_text)


def test_retry_undo_and_clear_behind_a_switch(engine, fresh_text):
    """They cut the restored window: by an answer, by a turn, by all."""
    chat, other = engine.chat(), engine.chat(system="You are terse.")

    def interrupted():
        other.send(LONG, sampling=GREEDY, max_tokens=3).reply()
        other.clear()

    first = ask(chat, QUESTIONS[0], fresh_text)
    second = ask(chat, QUESTIONS[1], fresh_text)
    interrupted()
    assert chat.send("", max_tokens=1).reply().token_ids  # a turn that is taken back again
    chat.undo()
    interrupted()
    again = chat.retry(sampling=GREEDY, max_tokens=30)
    assert tuple(t for piece in again for t in piece.token_ids) == second.token_ids
    interrupted()
    assert chat.undo() == QUESTIONS[1]
    ask(chat, QUESTIONS[2], fresh_text)
    interrupted()
    chat.clear()
    assert ask(chat, QUESTIONS[0], fresh_text).token_ids == first.token_ids


def test_cut_at_every_depth(windowed):
    """Decoded here or restored: rows are those of a fresh decode, and nothing raises."""
    model = LlamaModel.open(windowed[0], LlamaOptions(max_outputs=17))
    text = np.random.default_rng(0).integers(5, 4000, 4 * WINDOW).tolist()
    more = [7, 8, 9]
    model.decode(text, 1)
    state = model.cache.save_state()
    num_kept = []
    for depth in range(len(text) + 1):
        expected = fresh_rows(model, [*text[: len(text) - depth], *more])
        for restore in (False, True):
            model.truncate(0)
            if restore:
                model.restore_state(state)
            else:
                model.decode(text, 0)
            model.truncate(len(text) - depth)
            assert model.num_cached in (0, len(text) - depth)
            num_kept.append(model.num_cached)
            missing = [*text[model.num_cached : len(text) - depth], *more]
            np.testing.assert_allclose(model.decode(missing, 3), expected, atol=ROUNDING)
    # What was decoded here is all there; of a restored window hardly a token can be spared.
    assert num_kept[::2] == list(range(len(text), -1, -1))
    assert num_kept[1] == len(text)
    assert not any(num_kept[5::2])
    model.close()


def fresh_rows(model, tokens):
    model.truncate(0)
    return model.decode(tokens, 3).copy()


def test_a_failed_decode_leaves_a_whole_window(windowed, monkeypatch):
    """Batches that were whole stay, with the window that what comes next needs."""
    model = LlamaModel.adopt(adopted(windowed[0]), 3)
    text = np.random.default_rng(1).integers(5, 4000, 600).tolist()
    model.decode(text[:100], 0)
    real = llama_cpp.llama_decode
    counts = []

    def fail_later(context, batch):
        counts.append(batch.n_tokens)
        return -1 if len(counts) > 4 else real(context, batch)

    monkeypatch.setattr(llama_cpp, "llama_decode", fail_later)
    with pytest.raises(localspec.DecodeError):
        model.decode(text[100:], 1)
    monkeypatch.undo()
    assert len(counts) == 5
    assert model.num_cached == 100 + sum(counts[:4])
    rows = model.decode(text[model.num_cached :], 3).copy()
    np.testing.assert_allclose(rows, fresh_rows(model, text), atol=ROUNDING)
    model.close()


def test_idle_time_measures_nothing_in_the_place_of_a_text(windowed, fresh_text):
    """A window that is too small for a step is emptied by it; the text stays right."""
    with localspec.load(target=adopted(windowed[0])) as engine:
        chat, other = engine.chat(), engine.chat()
        ask(chat, QUESTIONS[0], fresh_text)
        ask(other, QUESTIONS[1], fresh_text)
        for each in (chat, other, chat):
            each.prepare()
        ask(chat, QUESTIONS[1], fresh_text)
        ask(other, QUESTIONS[2], fresh_text)
