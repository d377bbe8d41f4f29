"""Really trained models: exact texts, their own template, a call, and JSON by schema.

`LOCALSPEC_REAL_MODELS` names the folder of the files; docs/performance.md says where they are
from. Where it is set, a file that is absent is a failure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

import inside
import localspec
from exact_files import is_known_to_be_exact
from localspec.errors import OptionError
from localspec.evaluation.prompts import Task, built_in_tasks

pytestmark = pytest.mark.slow

SMALL = "SmolLM2-135M-Instruct.Q4_1.gguf"
CODER = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
CODER_DRAFT = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
WAYS = {
    "lookup": {"proposer": "lookup", "draft_tokens": 4},
    "draft": {"proposer": "draft", "draft_tokens": 3},
    "automatic": {},
}


def real(name: str) -> Path:
    """The file of that name; without a folder the test is skipped."""
    folder = os.environ.get("LOCALSPEC_REAL_MODELS")
    if not folder:
        pytest.skip("LOCALSPEC_REAL_MODELS names no folder of really trained models")
    path = Path(folder) / name
    assert path.exists(), f"LOCALSPEC_REAL_MODELS has no {name}"
    return path


def task(kind: str) -> Task:
    """The first built-in task of a kind."""
    return next(each for each in built_in_tasks() if each.kind == kind)


@pytest.fixture(scope="module")
def small() -> Iterator[localspec.Engine]:
    """SmolLM2, which drafts for itself."""
    path = real(SMALL)
    with localspec.load(path, draft=path, context_length=1024) as engine:
        yield engine


@pytest.fixture(scope="module")
def pair() -> Iterator[localspec.Engine]:
    """The 1.5B coder with its 0.5B draft."""
    with localspec.load(real(CODER), draft=real(CODER_DRAFT), context_length=1024) as engine:
        yield engine


@pytest.mark.parametrize(
    ("target", "draft", "kinds", "num_tokens"),
    [
        (SMALL, SMALL, ("code", "edit", "chat"), 32),
        (CODER, CODER_DRAFT, ("code",), 24),
    ],
    ids=["SmolLM2", "coder"],
)
def test_exact_greedy_texts_are_plain_decodings(target, draft, kinds, num_tokens):
    """And so is each token's probability. In a process of its own, whose kernels no other
    model has chosen."""
    files = {"target": real(target), "draft": real(draft)}
    try:
        engine = localspec.IsolatedEngine(**files, exact=True, context_length=1024)
    except OptionError as error:
        if is_known_to_be_exact():
            raise
        pytest.skip(f"this processor's kernels: {error}")
    asked = {"temperature": 0, "max_tokens": num_tokens, "logprobs": 0}
    with engine:
        for kind in kinds:
            plain = task(kind).ask(engine, **asked, draft_tokens=0).reply()
            assert plain.stats.num_draft_tokens == 0
            assert len(plain.token_ids) > num_tokens // 2
            for way, drafting in WAYS.items():
                reply = task(kind).ask(engine, **asked, **drafting).reply()
                assert reply.token_ids == plain.token_ids, (kind, way)
                assert reply.logprobs == plain.logprobs, (kind, way)
                assert reply.stats.exact
                assert way == "automatic" or reply.stats.num_draft_tokens > 0, (kind, way)


def test_the_models_own_template_is_followed_over_several_turns(small):
    """Its default system message, its marks, and its end of a turn."""
    chat = small.chat()
    asked = {"temperature": 0, "max_tokens": 48}
    first = chat.send("What is 2 plus 2?", **asked).reply()
    assert "4" in first.text
    assert first.finish_reason == "stop"
    second = chat.send("Name the days of the week.", **asked).reply()
    assert "Tuesday" in second.text
    assert second.stats.cached_prompt_tokens > first.stats.prompt_tokens
    with inside.lent(small):
        pass
    whole = small.generate(chat.messages[:-1], **asked).reply()
    assert whole.text == second.text
    assert "<|im_" not in first.text + second.text


def test_a_call_of_a_tool_is_made_and_read(pair):
    """By the model's own choice, in its family's form."""
    reply = task("tool").ask(pair, temperature=0, max_tokens=160).reply()
    assert reply.finish_reason == "tool_calls"
    (call,) = reply.tool_calls
    assert call.name == "book_table"
    assert call.arguments["guests"] == 4
    assert call.arguments["date"] == "2030-06-14"
    assert reply.text.strip() == ""


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_json_fits_its_schema(small, temperature):
    asked = task("json")
    reply = asked.ask(small, temperature=temperature, seed=3, max_tokens=700).reply()
    assert reply.finish_reason == "stop"
    jsonschema.validate(json.loads(reply.text), asked.keywords["json_schema"])


def test_a_repeated_text_is_looked_up(pair):
    """An edit repeats its prompt: most of what the lookup proposes is right."""
    reply = task("edit").ask(
        pair, temperature=0, max_tokens=64, proposer="lookup", draft_tokens=4
    )
    stats = reply.reply().stats
    assert stats.num_draft_tokens >= 16
    assert stats.acceptance_rate > 0.5
