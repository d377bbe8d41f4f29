"""Files that are GGUF but no model we can run."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from typing import Any

import gguf
import pytest

import localspec
from gguf_maker import write_random_model
from localspec.errors import ModelFileError
from localspec.gguf_file.check import check_model_file, check_parts
from localspec.gguf_file.header import read_header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.gguf_file.shape import ModelShape


def test_the_demo_pair_passes(demo_target, demo_draft):
    assert check_model_file(demo_target).architecture
    assert check_model_file(demo_draft).architecture


@pytest.mark.parametrize(
    ("extra", "drop", "message"),
    [
        ({"llama.pooling_type": 1}, (), "embedding model"),
        ({"llama.attention.causal": False}, (), "embedding model"),
        ({"general.type": "adapter"}, (), "is of type 'adapter'"),
        ({}, ("tokenizer.ggml.model",), "no tokenizer"),
        ({"split.count": 2}, (), "not named as one"),
        ({"llama.block_count": 2**31 - 1}, (), "block_count is 2147483647"),
    ],
)
def test_other_kinds_of_file_are_refused(tmp_path, demo_target, extra, drop, message):
    """Embedding models, adapters, no tokenizer, lost names of parts, memory without end."""
    path = write_random_model(tmp_path / "model.gguf", demo_target, extra=extra, drop=drop)
    with pytest.raises(ModelFileError, match=message):
        check_model_file(path)


@pytest.mark.parametrize(
    "key", ["attention.key_length", "expert_used_count", "feed_forward_length"]
)
@pytest.mark.parametrize("numbers", [[math.inf], [math.nan, 1.0]])
def test_numbers_that_are_not_whole_are_refused(tmp_path, demo_target, key, numbers):
    """By the check or by libllama, which finds another type than it wants."""
    extra = {f"llama.{key}": numbers}
    path = write_random_model(tmp_path / "model.gguf", demo_target, extra=extra)
    with pytest.raises(ModelFileError):
        localspec.load(target=path).close()


def test_a_vocabulary_alone_is_refused(tmp_path):
    path = tmp_path / "vocab.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match="no weights"):
        check_model_file(path)


def test_an_image_encoder_is_refused(tmp_path):
    path = tmp_path / "mmproj.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_tensor("v.weight", __import__("numpy").zeros(8, dtype="float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match="image encoder"):
        check_model_file(path)


def test_parts_of_a_split_model(tmp_path, demo_target):
    """The first part is accepted with the others beside it; else the error names the part."""
    made = write_random_model(tmp_path / "m.gguf", demo_target, extra={"split.count": 2})
    first, second = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
    shutil.copy(made, first)
    with pytest.raises(ModelFileError, match=second.name):
        check_model_file(first)
    shutil.copy(made, second)
    assert check_model_file(first)
    with pytest.raises(ModelFileError, match="part 2 of 2") as caught:
        check_model_file(second)
    assert first.name in caught.value.hint


class _Asked(dict[str, Any]):
    """Metadata that notes what it is asked for."""

    def __init__(self, metadata) -> None:
        super().__init__(metadata)
        self.keys_asked = set()

    def get(self, key, default=None):
        self.keys_asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.keys_asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.keys_asked.add(key)
        return super().__contains__(key)


def _keys_of_the_format(names: type, architecture: str) -> set[str]:
    keys = set()
    for value in vars(names).values():
        if isinstance(value, type):
            keys |= _keys_of_the_format(value, architecture)
        elif isinstance(value, str):
            keys.add(value.replace("{arch}", architecture))
    return keys


@pytest.mark.parametrize("state", [{}, {"wkv.head_size": 64}, {"shortconv.l_cache": 3}])
def test_every_key_that_is_asked_for_is_one(demo_target, state):
    """A misspelt one would read as if no file had it."""
    header = read_header(demo_target)
    stated = {f"{header.architecture}.{key}": value for key, value in state.items()}
    asked = _Asked({**header.metadata, **stated})
    del asked["tokenizer.ggml.add_bos_token"]
    header = replace(header, metadata=asked)
    check_parts([header])
    HeaderVocabulary(header)
    shape = ModelShape(header)
    shape.kv_heads()
    shape.state_width()
    assert len(asked.keys_asked) > 20
    assert asked.keys_asked <= _keys_of_the_format(gguf.Keys, header.architecture)
