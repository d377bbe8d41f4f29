"""libllama itself: batches, rows, truncation, refusals. Real files, real decodes."""

from __future__ import annotations

import threading

import llama_cpp
import numpy as np
import pytest

from localspec.errors import (
    CacheError,
    ContextError,
    DecodeError,
    Interrupted,
    ModelFileError,
)
from localspec.llama.model import LlamaModel, LlamaOptions

TEXT = "Once upon a time a fox found a lantern by the river, and it began to shine."


@pytest.fixture(scope="module")
def model(demo_target):
    opened = LlamaModel.open(demo_target, LlamaOptions(max_outputs=17))
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _emptied(request):
    if "model" in request.fixturenames:
        request.getfixturevalue("model").truncate(0)


def close_rows(one: np.ndarray, other: np.ndarray) -> None:
    """Equal up to the rounding between batch sizes, far below what sets tokens apart."""
    np.testing.assert_allclose(one, other, atol=0.25)
    assert np.abs(one - other).mean() < 0.03


def test_rows_are_the_last_ones_in_order(model):
    """The same rows one by one, all at once, and across a split prompt."""
    ids = model.vocabulary.tokenize(TEXT, parse_special=False)
    singles = [model.decode([token], 1)[0].copy() for token in ids]
    for num_logits in (1, 2, 9, min(17, len(ids))):
        model.truncate(0)
        rows = model.decode(ids, num_logits)
        assert rows.shape == (num_logits, model.vocab_size)
        close_rows(rows, np.array(singles[-num_logits:]))


def test_a_prompt_longer_than_a_batch(model):
    """Split so that the rows asked for end in one batch; equal to smaller decodes."""
    ids = (model.vocabulary.tokenize(TEXT, parse_special=False) * 100)[:1030]
    rows = model.decode(ids, 17).copy()
    assert model.num_cached == 1030
    model.truncate(0)
    for start in range(0, 1000, 100):
        model.decode(ids[start : start + 100], 0)
    model.decode(ids[1000:1013], 0)
    close_rows(rows, model.decode(ids[1013:], 17))


def test_misuse_raises_before_it_reaches_c(model):
    """Where libllama would assert, and so end the process."""
    with pytest.raises(ContextError, match="context of"):
        model.decode([1] * (model.context_length + 1), 1)
    with pytest.raises(ContextError):
        model.decode([], 0)
    with pytest.raises(DecodeError, match="18 rows"):
        model.decode([1] * 20, 18)
    with pytest.raises(DecodeError, match="rows"):
        model.decode([1], 2)
    for bad in (-1, model.vocab_size):
        with pytest.raises(DecodeError, match="do not fit a vocabulary"):
            model.decode([1, bad], 1)
    with pytest.raises(CacheError, match="keep 5 of 0"):
        model.truncate(5)
    assert model.num_cached == 0


def decode_for_ever(model, ids):
    """Until somebody interrupts it."""
    kept = model.num_cached
    for _ in range(1000):
        model.decode(ids, 0)
        model.truncate(kept)


def test_interrupt_ends_a_decode_from_another_thread(model):
    """Also while another thread keeps the interpreter busy; then `resume` makes it usable."""
    ids = [7] * 2000
    model.decode(ids[:40], 0)
    busy = threading.Event()
    spinner = threading.Thread(target=lambda: [None for _ in iter(busy.is_set, True)])
    spinner.start()
    timer = threading.Timer(0.05, model.interrupt)
    timer.start()
    try:
        with pytest.raises(Interrupted):
            decode_for_ever(model, ids[:1900])
    finally:
        busy.set()
        spinner.join()
        timer.join()
    cached = model.num_cached
    assert 40 <= cached < 1900  # whole batches stay
    with pytest.raises(Interrupted):
        model.decode([1], 1)
    model.make_ready()
    rows = model.decode([8], 1).copy()
    model.truncate(0)
    close_rows(rows, model.decode([*ids[:cached], 8], 1))


@pytest.mark.parametrize(
    "text",
    ["", "plain", "naïve café", "日本語 😀 e\u0301", "a\0b", "\ud800", "  two\n\n\tthree "],
)
def test_text_survives_the_tokenizer(model, text):
    """Any text, with bytes that no character has and half a surrogate pair as '?'."""
    ids = model.vocabulary.tokenize(text, parse_special=False)
    back = b"".join(map(model.vocabulary.piece, ids)).decode()
    assert back == text.encode(errors="replace").decode()


def test_a_llama_that_embeds_is_refused_and_stays_its_owners(demo_target):
    llama = llama_cpp.Llama(str(demo_target), n_ctx=64, embedding=True, verbose=False)
    with pytest.raises(ModelFileError, match="computes embeddings"):
        LlamaModel.adopt(llama, 1)
    assert any(llama.embed("A fox"))
    llama.close()


def test_libllamas_own_words_are_in_the_error(tmp_path, demo_target):
    """A file that passes our check and not libllama's."""
    data = demo_target.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: len(data) - 1000])
    with pytest.raises(ModelFileError, match=r"not within the file bounds|corrupted"):
        LlamaModel.open(path, LlamaOptions())


def test_a_short_context_holds_what_was_asked_for(demo_target):
    """libllama rounds up; what a user asked for is what they get."""
    model = LlamaModel.open(demo_target, LlamaOptions(context_length=10))
    assert model.max_rollback == model.context_length == 10
    model.decode([5] * 10, 1)
    with pytest.raises(ContextError):
        model.decode([5], 1)
    model.close()


def test_ctrl_c_ends_a_load(tmp_path, demo_target, monkeypatch):
    """Also when it strikes inside of libllama's callbacks, where exceptions are lost."""
    import signal

    from localspec.llama import native

    seen = []
    monkeypatch.setattr(
        native.logger, "log", lambda *_: (seen.append(1), signal.raise_signal(signal.SIGINT))
    )
    with pytest.raises(KeyboardInterrupt):
        LlamaModel.open(demo_target, LlamaOptions())
    monkeypatch.undo()
    assert seen
    LlamaModel.open(demo_target, LlamaOptions()).close()
