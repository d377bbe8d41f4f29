"""A vocabulary read off a header is the one that libllama loads."""

from __future__ import annotations

import threading

import pytest
from llama_chain import vocabulary_of

from gguf_maker import write_random_model, write_spm_model
from localspec.gguf_file.header import read_header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.llama.vocabulary import LlamaVocabulary

BEGINS = "tokenizer.ggml.add_bos_token"


@pytest.mark.parametrize(
    ("name", "drop", "extra"),
    [
        ("demo", (), {}),
        ("spm", (), {}),
        ("silent", (BEGINS,), {}),
        ("llama3", (BEGINS, "tokenizer.ggml.pre"), {"tokenizer.ggml.pre": "llama-bpe"}),
        ("qwen", (BEGINS, "tokenizer.ggml.pre"), {"tokenizer.ggml.pre": "qwen2"}),
        ("tekken", (BEGINS, "tokenizer.ggml.pre"), {"tokenizer.ggml.pre": "tekken"}),
    ],
)
def test_the_facts_are_libllamas(tmp_path, demo_target, name, drop, extra):
    if name == "spm":
        path = write_spm_model(tmp_path / "spm.gguf")
    else:
        path = write_random_model(
            tmp_path / f"{name}.gguf", demo_target, drop=drop, extra=extra, num_padding=3
        )
    found = HeaderVocabulary(read_header(path))
    with vocabulary_of(path) as pointer:
        real = LlamaVocabulary(pointer, lambda: None, threading.Lock())
        assert (found.kind, found.size, found.add_bos) == (real.kind, real.size, real.add_bos)
        assert found.bos == real.bos
        assert found.entries() == real.entries()
