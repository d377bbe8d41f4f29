"""Files that are GGUF but no model we can run."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from typing import Any

import gguf
import pytest
from hybrid_maker import write_hybrid

import localspec
from gguf_maker import write_random_model, write_spm_model
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
    ],
)
def test_other_kinds_of_file_are_refused(tmp_path, demo_target, extra, drop, message):
    """Embedding models, adapters, files without a tokenizer, parts that lost their name."""
    path = write_random_model(tmp_path / "model.gguf", demo_target, extra=extra, drop=drop)
    with pytest.raises(ModelFileError, match=message):
        check_model_file(path)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"block_count": 0}, "block_count is 0"),
        ({"block_count": 1000}, "block_count is 1000"),
        ({"block_count": 2**31 - 1}, "block_count is 2147483647"),
        ({"context_length": 0}, "context_length is 0"),
        ({"context_length": 2**31}, "context_length is 2147483648"),
        ({"embedding_length": 0}, "embedding_length is 0"),
        ({"attention.layer_norm_rms_epsilon": -1.0}, "epsilon is -1"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan"),
        ({"attention.layer_norm_epsilon": float("inf")}, "epsilon is inf"),
        ({"rope.scaling.type": "cubic"}, "'cubic'"),
        ({"expert_count": 2000, "expert_used_count": 2}, "expert_count is 2000"),
        ({"expert_count": 8}, "uses 0 of its 8 experts"),
        ({"expert_count": 8, "expert_used_count": 9}, "uses 9 of its 8 experts"),
        ({"expert_used_count": 2}, "uses 2 of its 0 experts"),
        (
            {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 3},
            "8 experts are in 3 groups",
        ),
        (
            {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4},
            "0 of its 4 groups",
        ),
        ({"nextn_predict_layers": 2}, "2 of its 1 layers"),
        ({"attention.head_count": 3, "attention.head_count_kv": 3}, "width of 64"),
        ({"attention.head_count": 8, "attention.head_count_kv": 3}, "share 3"),
        ({"attention.head_count": [8], "attention.head_count_kv": [5]}, "share 5"),
        ({"attention.value_length": 64}, "keys have a width of 32, its values of 64"),
        ({"rope.dimension_count": 16}, "rope.dimension_count is 16, not 32"),
        ({"rope.dimension_count_swa": 16}, "rope.dimension_count_swa is 16, not 32"),
    ],
)
def test_numbers_that_would_end_the_process_are_refused(tmp_path, demo_target, extra, message):
    """libllama asserts them, or divides by them."""
    stated = {f"llama.{key}": value for key, value in extra.items()}
    path = write_random_model(tmp_path / "model.gguf", demo_target, extra=stated)
    with pytest.raises(ModelFileError, match=message):
        check_model_file(path)


@pytest.mark.parametrize(
    ("architecture", "extra", "message"),
    [
        ("gemma3", {"rope.dimension_count": 33}, "is 33, of keys with 32 numbers"),
        ("gemma3", {"rope.dimension_count": 64}, "is 64, of keys with 32 numbers"),
        ("qwen3", {"rope.dimension_count": 16}, "is 16, not 32"),
        ("qwen3", {"attention.key_length": 16}, "keys have a width of 16"),
    ],
)
def test_widths_of_heads_that_graphs_assert_are_refused(
    tmp_path, demo_target, architecture, extra, message
):
    stated = {f"{architecture}.{key}": value for key, value in extra.items()}
    path = tmp_path / "model.gguf"
    write_random_model(path, demo_target, architecture=architecture, extra=stated)
    with pytest.raises(ModelFileError, match=message):
        check_model_file(path)


@pytest.mark.parametrize(
    ("architecture", "change", "message"),
    [
        ("lfm2", {"attention.head_count": 1}, "1 attention heads of 32 numbers"),
        ("qwen35", {"ssm.inner_size": 32}, "are not 32 together"),
        ("qwen35", {"ssm.group_count": 0}, "are in 0 groups"),
    ],
)
def test_widths_of_hybrid_layers_that_do_not_fit_are_refused(
    tmp_path, demo_target, architecture, change, message
):
    header = check_model_file(write_hybrid(tmp_path / "model.gguf", demo_target, architecture))
    metadata = {**header.metadata, **{f"{architecture}.{k}": v for k, v in change.items()}}
    with pytest.raises(ModelFileError, match=message):
        check_parts([replace(header, metadata=metadata)])


@pytest.mark.parametrize(
    ("name", "kind", "is_right"),
    [
        ("blk.0.attn_k.weight", 26, False),  # whole numbers of 32 bits
        ("blk.0.ffn_down.weight", 28, False),  # float64
        ("blk.0.ffn_gate_tid2eid.weight", 26, True),
        ("d2t", 27, True),
    ],
)
def test_weights_of_whole_numbers_are_refused(tmp_path, demo_target, name, kind, is_right):
    """Found by the campaign of faults: an embedder that had one ended the process."""
    header = check_model_file(write_random_model(tmp_path / "model.gguf", demo_target))
    more = replace(header.tensors[-1], name=name, kind=kind)
    changed = replace(header, tensors=(*header.tensors, more))
    if is_right:
        assert check_parts([changed]).tensors[-1].kind == kind
        return
    with pytest.raises(ModelFileError, match=rf"damaged: its {name} is of the type (I32|F64)"):
        check_parts([changed])


@pytest.mark.parametrize(
    "extra",
    [
        {"attention.head_count_kv": [0]},
        {
            "attention.head_count": 6,
            "attention.key_length": 32,
            "attention.value_length": 32,
        },
        {"expert_count": 8, "expert_used_count": 2},
        {"expert_count": 8, "expert_used_count": [2], "expert_group_count": 1},
        {"rope.scaling.type": "yarn"},
        {"attention.layer_norm_rms_epsilon": 0.0},
        {"nextn_predict_layers": 1},
    ],
)
def test_unusual_but_possible_numbers_pass(tmp_path, demo_target, extra):
    stated = {f"llama.{key}": value for key, value in extra.items()}
    path = write_random_model(tmp_path / "model.gguf", demo_target, extra=stated)
    assert check_model_file(path).architecture == "llama"


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


def test_tokens_that_are_there_twice_are_refused(tmp_path, demo_target):
    path = write_random_model(
        tmp_path / "twice.gguf", demo_target, replace_tokens={9: "twice", 11: "twice"}
    )
    with pytest.raises(ModelFileError, match="1 of its tokens"):
        check_model_file(path)


def test_empty_tokens_may_be_many(tmp_path, demo_target):
    """libllama gives them names."""
    path = write_random_model(
        tmp_path / "empty.gguf", demo_target, replace_tokens={9: "", 11: ""}
    )
    assert check_model_file(path)


def test_a_vocabulary_that_cannot_spell_every_byte_is_refused(tmp_path):
    """Of SentencePiece's kind: libllama would throw at the first such character."""
    assert check_model_file(write_spm_model(tmp_path / "whole.gguf"))
    with pytest.raises(ModelFileError, match="lacks 56 bytes, the first is 0xC8"):
        check_model_file(write_spm_model(tmp_path / "part.gguf", num_bytes=200))


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
    assert len(asked.keys_asked) > 30
    assert asked.keys_asked <= _keys_of_the_format(gguf.Keys, header.architecture)
