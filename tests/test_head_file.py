"""What is known of a head from its file's header, and that libllama agrees."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
from head_driver import Weights, in_a_child
from head_maker import ALL, INSIDE, NUM_HEADS, write_head_model
from hybrid_maker import NUM_LAYERS

from localspec.errors import ModelFileError
from localspec.gguf_file.architectures import architecture
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head import check_target, head_facts, head_misfit
from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.shape import ModelShape
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions

# Of the made ones those that libllama does not load if they state a head that is not there.
REFUSED = ("qwen35", "nemotron_h_moe")


@pytest.fixture(scope="module")
def made(tmp_path_factory, demo_target):
    folder = tmp_path_factory.mktemp("heads")
    return {
        (name, part): write_head_model(
            folder / f"{name}-{part}.gguf", demo_target, name, part=part
        )
        for name in ALL
        for part in ("whole", "trunk", "head")
    }


def changed(header: Header, **stated) -> Header:
    """The header with other numbers under the names of its architecture."""
    mine = {f"{header.architecture}.{key}": value for key, value in stated.items()}
    return replace(header, metadata={**header.metadata, **mine})


def without(header: Header, *parts: str) -> Header:
    """The header without the tensors whose names have one of these parts."""
    kept = [one for one in header.tensors if not any(part in one.name for part in parts)]
    return replace(header, tensors=tuple(kept))


def why_not(header: Header) -> str:
    facts = head_facts(header)
    assert facts is not None
    return facts.why_not


@pytest.mark.parametrize("name", INSIDE)
def test_a_head_inside_and_a_head_alone_are_told_apart(made, name):
    inside = head_facts(check_model_file(made[name, "whole"]))
    alone = head_facts(check_model_file(made[name, "head"]))
    assert inside is not None
    assert alone == replace(inside, is_apart=True)
    assert not inside.is_apart
    assert inside.why_not == ""
    assert inside.num_layers == NUM_HEADS[name]
    assert inside.num_chained == NUM_HEADS[name]
    assert not inside.shares_cache


def test_the_head_of_gemma_4_is_a_file_of_another_architecture(made):
    assert head_facts(check_model_file(made["gemma4", "whole"])) is None
    facts = head_facts(check_model_file(made["gemma4", "head"]))
    assert facts is not None
    assert facts.is_apart
    assert facts.shares_cache
    assert facts.num_chained == 1
    assert facts.why_not == ""
    assert facts.num_layers == 2


def test_a_model_without_a_head_has_none(demo_target):
    assert head_facts(check_model_file(demo_target)) is None


def test_what_a_head_weighs_is_what_lies_in_its_file(made):
    sizes = {
        one.name: one.size_bytes for one in check_model_file(made["step35", "head"]).tensors
    }
    shared = {"output.weight", "token_embd.weight", "output_norm.weight"}
    facts = head_facts(check_model_file(made["step35", "whole"]))
    assert facts is not None
    assert facts.num_bytes == sum(size for name, size in sizes.items() if name not in shared)
    # A decode computes one of the three layers, and the logits.
    assert facts.num_read_bytes == facts.num_bytes // 3 + sizes["output.weight"]
    facts = head_facts(check_model_file(made["gemma4", "head"]))
    assert facts is not None
    assert facts.num_bytes == facts.num_read_bytes
    assert facts.num_bytes == check_model_file(made["gemma4", "head"]).weights_bytes


def test_tables_of_the_head_are_its_own(made):
    """Of one for tokens a row is read, one for logits is read instead of the model's."""
    header = check_model_file(made["qwen35", "whole"])
    plain = head_facts(header)
    output = next(one for one in header.tensors if one.name == "output.weight")

    def with_table(name: str) -> Header:
        table = Tensor(f"blk.4.nextn.{name}.weight", 0, output.shape, 0, 7)
        return replace(header, tensors=(*header.tensors, table))

    assert plain is not None
    tokens = head_facts(with_table("embed_tokens"))
    assert tokens == replace(plain, num_bytes=plain.num_bytes + 7)
    logits = head_facts(with_table("shared_head_head"))
    read = plain.num_read_bytes - output.size_bytes + 7
    assert logits == replace(plain, num_bytes=plain.num_bytes + 7, num_read_bytes=read)


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("part", ["nextn.eh_proj", "nextn.enorm", "nextn.hnorm"])
def test_a_head_that_lacks_a_tensor_is_of_no_use(made, name, part):
    last = NUM_LAYERS + NUM_HEADS[name] - 1
    header = without(check_model_file(made[name, "whole"]), f"blk.{last}.{part}")
    assert f"lacks blk.{last}.{part}.weight" in why_not(header)


def test_layers_that_libllama_does_not_compute_are_of_no_use(made):
    header = check_model_file(made["glm4moe", "whole"])

    def called(architecture: str) -> Header:
        stated = {
            key.replace("glm4moe.", f"{architecture}."): value
            for key, value in header.metadata.items()
        }
        stated["general.architecture"] = architecture
        return replace(header, metadata=stated)

    assert why_not(called("glm-dsa")) == ""
    assert "'glm4'" in why_not(called("glm4"))
    assert "'glm5-next'" in why_not(called("glm5-next"))
    assert "'llama'" in why_not(called("llama"))
    assert "latent" in why_not(called("deepseek2"))
    latent = changed(called("deepseek2"), **{"attention.key_length_mla": 32})
    assert why_not(latent) == ""
    scaled = changed(latent, **{"attention.temperature_scale": 0.1})
    assert "latent" in why_not(scaled)
    assert "blk.4.attn_qkv.weight" in why_not(called("mimo2"))
    assert "2 MTP layers of 'glm4moe'" in why_not(
        replace(
            changed(header, nextn_predict_layers=2),
            tensors=(
                *header.tensors,
                *(Tensor(f"blk.3.nextn.{part}.weight", 0, (1,), 0, 1)
                  for part in ("eh_proj", "enorm", "hnorm")),
            ),
        )
    )  # fmt: skip


def test_an_assistant_that_libllama_does_not_open_is_of_no_use(made):
    header = check_model_file(made["gemma4", "head"])
    assert "1 MTP layers, it has 2" in why_not(changed(header, nextn_predict_layers=1))
    assert "0 MTP layers, it has 2" in why_not(changed(header, nextn_predict_layers=0))
    assert "width" in why_not(changed(header, embedding_length_out=32))


@pytest.mark.parametrize("name", ALL)
def test_a_head_alone_is_no_target(made, name):
    header = check_model_file(made[name, "head"])
    with pytest.raises(ModelFileError, match=r"head alone") as raised:
        check_target(header)
    assert "head=" in raised.value.hint
    check_target(check_model_file(made[name, "whole"]))


@pytest.mark.process
@pytest.mark.parametrize("name", INSIDE)
def test_libllama_ends_the_process_with_such_a_target(made, name):
    decode = "Context(Weights(Path({!r}))).decode([5, 6], 0, 1)"
    assert in_a_child(decode.format(str(made[name, "whole"]))) == 0
    assert in_a_child(decode.format(str(made[name, "head"]))) < 0


@pytest.mark.parametrize("name", INSIDE)
def test_a_model_whose_head_was_left_out(made, name):
    """libllama loads some of them; the others are refused with words."""
    assert architecture(name).is_head_required is (name in REFUSED)
    if name in REFUSED:
        with pytest.raises(ValueError, match="does not load"):
            Weights(made[name, "trunk"])
        with pytest.raises(
            ModelFileError, match=r"1 MTP layers and lacks their tensors"
        ) as raised:
            check_model_file(made[name, "trunk"])
        assert "converted without" in raised.value.hint
    else:
        Weights(made[name, "trunk"]).close()
        header = check_model_file(made[name, "trunk"])
        check_target(header)
        assert "lacks blk.4.nextn.eh_proj.weight" in why_not(header)


# --- what fits ---


@pytest.mark.parametrize("name", ALL)
def test_a_head_fits_the_model_that_it_was_made_for(made, name):
    target = check_model_file(made[name, "whole"])
    assert head_misfit(target, check_model_file(made[name, "head"])) == ""


def test_also_the_model_without_its_head(made):
    """As converters leave it out: neither the tensors nor the key are there."""
    header = check_model_file(made["step35", "trunk"])
    bare = changed(header, nextn_predict_layers=0, block_count=NUM_LAYERS)
    assert head_misfit(bare, check_model_file(made["step35", "head"])) == ""


def test_what_does_not_fit_is_said_with_both_values(made, demo_target):
    head = check_model_file(made["qwen35", "head"])
    target = check_model_file(made["qwen35", "whole"])
    assert head_misfit(target, check_model_file(demo_target)).endswith("has no head")
    other = head_misfit(check_model_file(made["glm4moe", "whole"]), head)
    assert other == "it is of 'qwen35', the target of 'glm4moe'"
    for stated, words in (
        ({"embedding_length": 128}, "rows of width 64, the target has 128"),
        ({"block_count": 9}, "a number of layers of 4, the target has 8"),
        ({"attention.head_count": 4}, "a number of attention heads of 2, the target has 4"),
        ({"attention.key_length": 64}, "keys of width 32, the target has 64"),
        ({"attention.value_length": 64}, "values of width 32, the target has 64"),
    ):
        assert words in head_misfit(changed(target, **stated), head)
    assert "lacks" in head_misfit(target, without(head, "nextn.hnorm"))


def test_tokens_are_compared(made):
    head = check_model_file(made["qwen35", "head"])
    target = check_model_file(made["qwen35", "whole"])
    tokens = list(target.tokens)
    few = [b"renamed", *tokens[1:]]
    assert head_misfit(replace(target, tokens=few), head) == ""
    count = len(tokens)
    assert head_misfit(replace(target, tokens=[*tokens, b"more"]), head) == (
        f"it has {count} tokens, the target has {count + 1}"
    )
    turned = [*reversed(tokens[: count // 2]), *tokens[count // 2 :]]
    said = head_misfit(replace(target, tokens=turned), head)
    assert f"of its {count} tokens differ" in said
    assert repr(tokens[0]) in said
    wordpiece = {**target.metadata, "tokenizer.ggml.model": "bert"}
    assert "type 2" in head_misfit(replace(target, metadata=wordpiece), head)


def test_an_assistant_wants_the_last_layers_of_its_target(made):
    head = check_model_file(made["gemma4", "head"])
    target = check_model_file(made["gemma4", "whole"])
    pattern = "attention.sliding_window_pattern"
    for stated, words in (
        ({"embedding_length": 128}, "rows of width 64, the target has 128"),
        ({pattern: (True, True, False, True)}, "last layer"),
        ({pattern: (True, True, True, True)}, "last layer"),
        ({"attention.head_count_kv": 2}, "share 1 heads of keys, the target's have 2"),
        ({"attention.head_count_kv": (1, 1, 2, 1)}, "share 1 heads of keys"),
        ({"attention.key_length_swa": 16}, "attention.key_length_swa is 32, the target's 16"),
    ):
        assert words in head_misfit(changed(target, **stated), head)
    assert head_misfit(changed(target, **{"attention.head_count_kv": (2, 2, 1, 1)}), head) == ""
    assert head_misfit(changed(target, **{"attention.head_count_kv": (1,)}), head) != ""
    assert head_misfit(target, changed(head, **{pattern: (True, True, True, False) * 3})) == ""
    other = head_misfit(check_model_file(made["step35", "whole"]), head)
    assert other == "it is of 'gemma4-assistant', the target of 'step35'"


# --- what a header says of sizes ---


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("part", ["whole", "head"])
def test_numbers_are_those_of_libllama(made, name, part):
    shape = ModelShape(check_model_file(made[name, part]))
    weights = Weights(made[name, part])
    found = weights.numbers()
    weights.close()
    assert found == (shape.num_layers, shape.num_head_layers, shape.row_width)


def test_rows_are_wider_with_hyper_connections():
    metadata = {
        "general.architecture": "deepseek4",
        "deepseek4.embedding_length": 64,
        "deepseek4.hyper_connection.count": 4,
    }
    header = Header(Path("x"), 0, (), metadata, 0)
    assert ModelShape(header).row_width == 256


def test_the_layers_of_a_head_attend_also_in_a_hybrid(made):
    shape = ModelShape(check_model_file(made["qwen35", "whole"]))
    assert shape.kv_heads() == [0, 0, 0, 1]
    assert shape.head_kv_heads() == [1]
    shape = ModelShape(check_model_file(made["nemotron_h_moe", "whole"]))
    assert shape.kv_heads() == [0, 0, 0, 1]
    assert shape.head_kv_heads() == [1]
    assert ModelShape(check_model_file(made["step35", "head"])).head_kv_heads() == [1, 1, 1]
    # The assistant has no cache of its own.
    assert ModelShape(check_model_file(made["gemma4", "head"])).head_kv_heads() == [0, 0]
    assert ModelShape(check_model_file(made["gemma4", "whole"])).head_kv_heads() == []


@pytest.mark.parametrize("name", INSIDE)
def test_weights_that_are_loaded_only_with_a_head(made, name, caplog):
    """Those that libllama says it leaves out."""
    header = check_model_file(made[name, "whole"])
    shape = ModelShape(header)
    with caplog.at_level(logging.DEBUG, "localspec.llama"):
        options = LlamaOptions(context_length=256, with_head=False)
        LlamaModel.open(made[name, "whole"], options).close()
    said = set(re.findall(r"unused tensor (\S+)", caplog.text))
    assert said == {one.name for one in header.tensors if shape.is_head_tensor(one.name)}
    assert said
