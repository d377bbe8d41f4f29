"""Files that are GGUF but no model we can run."""

from __future__ import annotations

import shutil

import gguf
import pytest

from gguf_maker import write_random_model
from localspec.errors import ModelFileError
from localspec.gguf_file.check import check_model_file


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
