"""What is known of a DFlash head from its file's header, and what it spares the process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from block_head_maker import BLOCK_SIZE, BlockHead, write_block_head
from click.testing import CliRunner
from head_driver import in_a_child
from head_maker import LAYERS_READ, write_head_model

import localspec
from gguf_maker import write_random_model
from localspec.cli import main
from localspec.errors import ModelFileError, PairError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head import check_target, head_facts, head_misfit

KINDS = {
    "dflash": BlockHead(),
    "known": BlockHead(num_known=700),
    "dspark": BlockHead("dspark"),
    "bonus": BlockHead("dspark", from_anchor=False),
    "dflash2": BlockHead("dflash2"),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory, demo_target):
    path = tmp_path_factory.mktemp("dflash") / "target.gguf"
    return write_head_model(path, demo_target, "qwen3")


@pytest.fixture(scope="module")
def heads(target):
    return {
        name: write_block_head(target.with_name(f"{name}.gguf"), target, made)
        for name, made in KINDS.items()
    }


@pytest.fixture
def headers(target, heads):
    return check_model_file(target), check_model_file(heads["dflash"])


def changed(header, *, lacks="", **stated):
    mine = {key.replace("__", "."): value for key, value in stated.items()}
    tensors = tuple(one for one in header.tensors if one.name != lacks)
    return replace(header, metadata={**header.metadata, **mine}, tensors=tensors)


@pytest.mark.parametrize(
    ("name", "words", "first_row", "num_candidates", "has_confidences"),
    [
        ("dflash", "a DFlash head that reads layers 1, 2, 3 and drafts up to 7", 1, 0, False),
        ("dspark", "a DSpark head that reads layers 1, 2, 3 and drafts up to 8", 0, 0, True),
        ("bonus", "a DSpark head that reads layers 1, 2, 3 and drafts up to 7", 1, 0, True),
        ("dflash2", "a DFlash2 head that reads layers 1, 2, 3 and drafts up to 7", 1, 4, False),
    ],
)
def test_what_it_is(target, heads, name, words, first_row, num_candidates, has_confidences):
    header = check_model_file(heads[name])
    facts = head_facts(header)
    assert facts is not None
    assert facts.block is not None
    assert facts.description == f"{words} tokens at once"
    assert facts.layers_read == tuple(LAYERS_READ)
    assert (facts.is_apart, facts.num_chained, facts.why_not) == (True, 1, "")
    assert facts.block.size == BLOCK_SIZE
    assert facts.block.first_row == first_row
    assert facts.block.num_candidates == num_candidates
    assert facts.block.has_confidences is has_confidences
    assert facts.num_read_bytes < facts.num_bytes == header.weights_bytes or name == "dflash"
    assert head_misfit(check_model_file(target), header) == ""
    with pytest.raises(ModelFileError, match="holds a head alone"):
        check_target(header)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"dflash__target_layers": ()}, "does not state which layers of its target it reads"),
        ({"tokenizer__ggml__mask_token_id": 4096}, "its header names no token as the mask"),
        ({"tokenizer__ggml__mask_token_id": None}, "its header names no token as the mask"),
        ({"dflash__block_size": 1}, "its header states blocks of 1 tokens"),
        ({"dflash__attention__value_length": 16}, "its keys are 32 wide and its values 16"),
        (
            {"dflash__hyper_connection__count": 4},
            "DSpark heads of DeepSeek V4's layers cannot be used",
        ),
    ],
)
def test_heads_that_libllama_does_not_compute(headers, stated, words):
    facts = head_facts(changed(headers[1], **stated))
    assert facts is not None
    assert words in facts.why_not


def test_a_block_of_dspark_has_a_stated_size(heads):
    facts = head_facts(changed(check_model_file(heads["dspark"]), dflash__block_size=None))
    assert facts is not None
    assert facts.why_not == "its header states blocks of 0 tokens"


def test_own_tokens_need_an_output_of_their_own(target, heads):
    header = check_model_file(heads["known"])
    assert head_misfit(check_model_file(target), header) == ""
    facts = head_facts(changed(header, lacks="output.weight"))
    assert facts is not None
    assert facts.why_not == "it lists its own tokens and lacks output.weight"


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (
            {"dflash__embedding_length": 32},
            "made for a model of width 32, the target's is 64",
        ),
        ({"dflash__target_layers": (1, 2, 5)}, "reads layers (1, 2, 5), the target has 4"),
        ({"dflash__target_layers": (4,)}, "gives nothing of the last layer of 'qwen3'"),
    ],
)
def test_heads_of_other_targets(headers, stated, words):
    target, head = headers
    assert words in head_misfit(target, changed(head, **stated))


@pytest.mark.process
def test_a_target_that_does_not_give_its_layers(heads, tmp_path, demo_target):
    """It would end the process, so libllama is not asked."""
    other = write_random_model(tmp_path / "qwen2.gguf", demo_target, architecture="qwen2")
    with pytest.raises(PairError, match="gives nothing of the layers of 'qwen2'"):
        localspec.load(target=other, head=heads["dflash"])


@pytest.mark.process
@pytest.mark.parametrize("tensor", ["output.weight"])
def test_own_tokens_without_an_output_would_end_the_process(target, heads, tmp_path, tensor):
    """libllama takes the target's output for the head's, and its own tokens are fewer."""
    data = heads["known"].read_bytes()
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(data.replace(tensor.encode(), b"outpux.weight"))
    code = (
        "target = Context(Weights(Path({!r})));"
        "head = Context(Weights(Path({!r})), target, kind_is_mtp=False)"
    )
    assert in_a_child(code.format(str(target), str(heads["known"]))) == 0
    assert in_a_child(code.format(str(target), str(bad))) != 0
    with pytest.raises(PairError, match="lists its own tokens and lacks"):
        localspec.load(target=target, head=bad)


def test_explain_says_what_the_head_is(target, heads):
    result = CliRunner().invoke(
        main, ["explain", "--target", str(target), "--head", str(heads["dspark"])]
    )
    assert result.exit_code == 0, result.output
    assert "a DSpark head that reads layers 1, 2, 3" in " ".join(result.output.split())


def test_a_head_given_as_a_draft_is_understood(target, heads):
    with localspec.load(target=target, draft=heads["dflash"], context_length=256) as engine:
        assert "dflash.gguf as its head" in engine.description


@pytest.mark.parametrize("name", ["dflash", "dspark", "dflash2"])
def test_the_automatic_policy_drafts_and_changes_nothing(target, heads, name):
    sampling = localspec.SamplingParams(temperature=0.0)
    texts = []
    for proposer in ("none", "auto"):
        with localspec.load(target=target, head=heads[name], proposer=proposer) as engine:
            answer = engine.generate_raw([5, 6, 7], max_tokens=60, sampling=sampling)
            texts.append(answer.reply().token_ids)
    assert texts[0] == texts[1]
