"""What is known of an EAGLE-3 head from its file's header, and what it spares the process."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
from head_driver import in_a_child
from head_maker import EAGLE, LAYERS_READ, NUM_DRAFTED, write_head_model

import localspec
from gguf_maker import write_random_model
from localspec.errors import ModelFileError, PairError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head import check_target, head_facts, head_misfit
from localspec.gguf_file.own_tokens import check_own_tokens

GREEDY = localspec.SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory, demo_target):
    folder = tmp_path_factory.mktemp("eagle")
    return {
        (name, part): write_head_model(
            folder / f"{name}-{part}.gguf", demo_target, name, part=part
        )
        for name in EAGLE
        for part in ("whole", "head")
    }


@pytest.fixture
def headers(made):
    """Of the target and of the head that lacks what its target has."""
    return tuple(check_model_file(made["qwen3", part]) for part in ("whole", "head"))


def changed(header, **stated):
    mine = {f"{header.architecture}.{key}": value for key, value in stated.items()}
    return replace(header, metadata={**header.metadata, **mine})


def renamed(header, architecture):
    """The header as if it were of another architecture with the same numbers."""
    begin = f"{header.architecture}."
    known = {
        f"{architecture}.{key.removeprefix(begin)}" if key.startswith(begin) else key: value
        for key, value in header.metadata.items()
    }
    return replace(header, metadata={**known, "general.architecture": architecture})


@pytest.mark.parametrize("name", EAGLE)
def test_what_it_is(made, name):
    header = check_model_file(made[name, "head"])
    facts = head_facts(header)
    assert facts is not None
    assert facts.layers_read == tuple(LAYERS_READ)
    assert facts.description == "an EAGLE-3 head that reads layers 1, 2, 3"
    assert (facts.is_apart, facts.num_chained, facts.shares_cache) == (True, 1, False)
    assert facts.why_not == ""
    assert facts.num_bytes == header.weights_bytes
    sizes = {tensor.name: tensor.size_bytes for tensor in header.tensors}
    once = ("fc.weight", "token_embd.weight", "d2t")
    assert facts.num_read_bytes == facts.num_bytes - sum(sizes.get(one, 0) for one in once)
    assert head_misfit(check_model_file(made[name, "whole"]), header) == ""
    with pytest.raises(ModelFileError, match="holds a head alone"):
        check_target(header)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"target_layers": (1, 2)}, "it reads 2 layers of its target, not 3"),
        ({"block_count": 2}, "it has 2 layers, not one"),
        ({"attention.value_length": 16}, "its keys are 32 wide and its values 16"),
    ],
)
def test_heads_that_libllama_does_not_compute(headers, stated, words):
    facts = head_facts(changed(headers[1], **stated))
    assert facts is not None
    assert facts.why_not == words


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"target_hidden_size": 128}, "made for a model of width 128, the target's is 64"),
        ({"target_layers": (1, 2, 5)}, "reads layers (1, 2, 5), the target has 4"),
        ({"target_layers": (1, 2, 4)}, "gives nothing of the last layer of 'qwen3'"),
        ({"embedding_length": 32}, "lacks token_embd.weight, and the target's is not 32 wide"),
    ],
)
def test_heads_of_other_targets(headers, stated, words):
    target, head = headers
    assert words in head_misfit(target, changed(head, **stated))


def test_a_list_of_tokens_that_is_cut_short_is_not_read(made):
    target, head = (check_model_file(made["llama", part]) for part in ("whole", "head"))
    cut = [replace(one, size_bytes=8) if one.name == "d2t" else one for one in head.tensors]
    assert head_misfit(target, replace(head, tensors=cut)) == "its d2t is cut short"


def test_targets_whose_layers_libllama_does_not_give(headers):
    target, head = headers
    for name in ("qwen2", "gemma3", "granite", "smollm3", "mistral3"):
        words = f"libllama gives nothing of the layers of {name!r}"
        assert head_misfit(renamed(target, name), head) == words
    for name in ("llama", "qwen3moe", "gpt-oss", "gemma4"):
        assert head_misfit(renamed(target, name), head) == ""


@pytest.mark.process
def test_such_a_target_would_end_the_process(made, tmp_path, demo_target):
    """Which is why it is refused before libllama is asked."""
    other = write_random_model(tmp_path / "qwen2.gguf", demo_target, architecture="qwen2")
    code = (
        "context = Context(Weights(Path({!r}))); context.give_layer(1);"
        "context.decode([5, 6], 0, 1)"
    )
    assert in_a_child(code.format(str(made["qwen3", "whole"]))) == 0
    assert in_a_child(code.format(str(other))) < 0
    with pytest.raises(PairError, match="gives nothing of the layers of 'qwen2'"):
        localspec.load(target=other, head=made["qwen3", "head"])


@pytest.mark.process
def test_tokens_that_are_not_there(made, tmp_path, demo_target):
    """libllama would end the process at the first decode."""
    header = check_model_file(made["llama", "head"])
    check_own_tokens(header)
    place = next(one for one in header.tensors if one.name == "d2t")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(made["llama", "head"].read_bytes())
    with bad.open("r+b") as file:
        file.seek(place.offset + 8 * (NUM_DRAFTED - 1))
        file.write(np.int64(1 << 20).tobytes())
    code = (
        "target = Context(Weights(Path({!r})));"
        "head = Context(Weights(Path({!r})), target, kind_is_mtp=False);"
        "head.decode([5], 0, 1)"
    )
    target = str(made["llama", "whole"])
    assert in_a_child(code.format(target, str(made["llama", "head"]))) == 0
    assert in_a_child(code.format(target, str(bad))) < 0
    with pytest.raises(ModelFileError, match=r"d2t of .* names tokens"):
        localspec.load(target=made["llama", "whole"], head=bad)


def test_a_head_given_as_a_draft_is_understood(made):
    target, head = made["qwen3", "whole"], made["qwen3", "head"]
    with localspec.load(target=target, draft=head, context_length=256) as engine:
        assert "qwen3-head.gguf as its head" in engine.description
        assert engine.generate_raw([5, 6, 7], max_tokens=8, sampling=GREEDY).reply().token_ids


def test_a_table_that_is_too_small(headers):
    target, head = headers
    table = gguf.GGMLQuantizationType.F32
    small = replace(head.tensors[0], name="token_embd.weight", kind=table, shape=(64, 7))
    words = f"its table has 7 tokens, the target {len(target.tokens)}"
    assert words in head_misfit(target, replace(head, tensors=(*head.tensors, small)))
