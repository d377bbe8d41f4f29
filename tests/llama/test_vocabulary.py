"""Texts become ids as libllama makes them, however long a run of one character is."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import llama_cpp
import pytest

import inside
from gguf_maker import write_random_model, write_spm_model
from localspec.errors import ClosedError, ContextError
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions

PARAGRAPH = (
    "Once upon a time, a fox met 12 owls; they said: “Who — are you?”\n\n"
    "\tfor i in range(10):  print('é', i)   # 日本語 and emoji 😀😀\r\n"
)
LONG_RUNS = """
import sys
from pathlib import Path
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions

vocabulary = LlamaModel.open(Path(sys.argv[1]), LlamaOptions()).vocabulary
for character in "aA !1é\\n":
    text = "x" + character * 100_000
    ids = vocabulary.tokenize(text, parse_special=True)
    assert b"".join(map(vocabulary.piece, ids)).decode() == text
"""


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    """A vocabulary that puts a space before texts; "</s>" can be merged from its parts."""
    path = tmp_path_factory.mktemp("spm") / "model.gguf"
    model = LlamaModel.open(write_spm_model(path, more=("ab", "bc")), LlamaOptions())
    yield model.vocabulary
    model.close()


@pytest.fixture
def vocabulary_with(tmp_path, demo_target):
    """Makes the demo pair's vocabulary with another pre-tokenizer."""
    models = []

    def make(pre_tokenizer: str):
        key = "tokenizer.ggml.pre"
        path = write_random_model(
            tmp_path / f"{pre_tokenizer}.gguf",
            demo_target,
            drop=(key,),
            extra={key: pre_tokenizer},
        )
        models.append(LlamaModel.open(path, LlamaOptions()))
        return models[-1].vocabulary

    yield make
    for model in models:
        model.close()


@pytest.mark.process
@pytest.mark.parametrize("pre_tokenizer", ["default", "deepseek-v3", "gpt-4o", "tekken"])
def test_long_runs_of_one_character(tmp_path, demo_target, pre_tokenizer):
    """They would overflow the stack of a usual thread and end the process."""
    key = "tokenizer.ggml.pre"
    path = write_random_model(
        tmp_path / "model.gguf", demo_target, drop=(key,), extra={key: pre_tokenizer}
    )
    subprocess.run([sys.executable, "-c", LONG_RUNS, path], cwd=tmp_path, check=True)


@pytest.mark.parametrize("pre_tokenizer", ["default", "qwen2", "tekken", "falcon", "bloom"])
@pytest.mark.parametrize("length", [511, 512, 20_000])
def test_ids_are_those_of_libllama(vocabulary_with, pre_tokenizer, length):
    """On either side of the length from which on texts have a thread of their own."""
    vocabulary = vocabulary_with(pre_tokenizer)
    text = (PARAGRAPH * (length // len(PARAGRAPH) + 1))[:length] + "<|im_end|>"
    data = text.encode()
    ids = (ctypes.c_int32 * len(data))()
    for special in (False, True):
        count = llama_cpp.llama_tokenize(
            inside.vocabulary_pointer(vocabulary),
            data,
            len(data),
            ids,
            len(data),
            False,
            special,
        )
        assert vocabulary.tokenize(text, parse_special=special) == ids[:count]


def test_a_text_longer_than_any_model_reads_is_refused(vocabulary_with):
    with pytest.raises(ContextError, match="9000000 bytes"):
        vocabulary_with("qwen2").tokenize("a" * 9_000_000, parse_special=False)


@pytest.mark.parametrize("text", ["a short one", "a long one " * 100])
def test_nothing_is_freed_while_a_text_is_tokenised(demo_target, text, monkeypatch):
    model = LlamaModel.open(demo_target, LlamaOptions())
    vocabulary, expected = (
        model.vocabulary,
        model.vocabulary.tokenize(text, parse_special=False),
    )
    reached, go_on, found = threading.Event(), threading.Event(), []

    tokenize = llama_cpp.llama_tokenize

    def slow(*arguments):
        reached.set()
        assert go_on.wait(60)
        return tokenize(*arguments)

    monkeypatch.setattr(llama_cpp, "llama_tokenize", slow)
    asking = threading.Thread(
        target=lambda: found.append(vocabulary.tokenize(text, parse_special=False))
    )
    closing = threading.Thread(target=model.close)
    asking.start()
    assert reached.wait(60)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    go_on.set()
    asking.join(60)
    closing.join(60)
    assert found == [expected]
    with pytest.raises(ClosedError, match="closed"):
        vocabulary.tokenize(text, parse_special=False)


def test_a_text_that_goes_on_gets_no_space(spm):
    """Only one that begins does: the first, and one after a control token."""
    a, bos = spm.tokenize("a", parse_special=False)[-1], spm.bos

    def said(text: str, after: int | None) -> str:
        ids = spm.tokenize(text, parse_special=True, after=after)
        return "".join(map(spm.text, ids))

    assert said("abc", None) == said("abc", bos) == "▁abc"
    assert said("abc", a) == "abc"
    assert said(" é", a) == "▁<0xC3><0xA9>"
    assert said("a<s>b", a) == "a<s>▁b"
    assert said("", a) == ""


def test_control_tokens_are_known_by_id_and_by_text(spm):
    assert [token for token in range(spm.size) if spm.is_control(token)] == [0, 1, 2]
    assert spm.control_texts() == ["<unk>", "<s>", "</s>"]
    assert not spm.is_control(-1)
    assert not spm.is_control(spm.size)
