"""A keyword that there is not is told with the one that may be meant."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

import localspec
from localspec.presets.preset_file import read_presets


@pytest.fixture(scope="module")
def engine() -> Iterator[localspec.Engine]:
    with localspec.load(draft_tokens=0, num_threads=1) as engine:
        yield engine


@pytest.mark.parametrize(
    ("ask", "wrong", "hint"),
    [
        (localspec.load, "contxt_length", "context_length"),
        (localspec.load, "n_gpu_layers", "num_gpu_layers"),
        (localspec.load, "n_ctx", "context_length"),
        (localspec.load, "model_path", "Give the model first"),
        (localspec.load, "temperature", "Give it with the question."),
        (localspec.load, "zzz", "Known are preset, target, draft"),
        (localspec.IsolatedEngine, "contxt_length", "context_length"),
        (localspec.IsolatedEngine, "n_ctx", "context_length"),
        (localspec.explain, "contxt_length", "context_length"),
    ],
)
def test_of_loading(ask, wrong, hint):
    with pytest.raises(localspec.UnknownKeywordError, match=f"unknown option '{wrong}'") as one:
        ask(**{wrong: 1})
    assert hint in one.value.hint
    assert isinstance(one.value, TypeError)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("temprature", "Perhaps temperature?"),
        ("max_token", "Perhaps max_tokens?"),
        ("repeat_penalty", "Perhaps repetition_penalty?"),
        ("zzz", "Known are "),
    ],
)
def test_of_answers(engine, wrong, hint):
    chat = engine.chat()
    messages = [{"role": "user", "content": "Hi"}]
    for ask in (
        lambda: engine.generate_raw("x", **{wrong: 1}),
        lambda: engine.generate("x", **{wrong: 1}),
        lambda: engine.generate(messages, **{wrong: 1}),
        lambda: chat.send("x", **{wrong: 1}),
        lambda: chat.edit("x", **{wrong: 1}),
    ):
        with pytest.raises(localspec.UnknownKeywordError) as one:
            ask()
        assert str(one.value) == f"unknown option {wrong!r}"
        assert one.value.hint.startswith(hint)
    assert not chat.messages


def test_every_keyword_is_known(engine):
    reply = engine.generate_raw(
        "x", max_tokens=1, temperature=0, top_k=3, seed=1, stop="z"
    ).reply()
    assert len(reply.token_ids) == 1
    assert list(inspect.signature(localspec.load).parameters)[:2] == ["preset", "target"]


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("contxt_length = 5", "contxt_length: is not a key here", "Perhaps context_length?"),
        ("zzz = 5", "zzz: is not a key here", "Known are extends, description"),
        (
            "[a.sampling]\ntemprature = 1",
            "temprature is not a sampling option",
            "Perhaps temperature?",
        ),
        ("[a.draft]\npth = 'x'\npath = 'y'", "pth: is not a key here", "Perhaps path?"),
    ],
)
def test_of_presets(line, what, hint):
    text = f'[a]\nextends = "demo"\n{line}\n'
    with pytest.raises(localspec.PresetError) as one:
        read_presets("mine", text, {"demo": localspec.find_preset("demo")})
    assert what in str(one.value)
    assert one.value.hint.startswith(hint)
