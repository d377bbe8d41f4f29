"""What is known of a head from its file's header, which target it fits, and how it is named."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

import localspec
from command_line import run
from head_maker import (
    ALL,
    BLOCK_SIZE,
    EAGLE,
    INSIDE,
    LAYERS_READ,
    NUM_HEADS,
    BlockHead,
    write_block_head,
    write_head_model,
    write_medusa_heads,
)
from hybrid_maker import NUM_LAYERS
from localspec.errors import DownloadError, ModelFileError, PairError, PresetError
from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head_facts import check_target, head_facts, head_misfit
from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.shape import ModelShape
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.presets.model_names import Quantized, resolve
from localspec.presets.presets import user_presets_file
from standin_hub import COMMIT, StandinHub

# Heads for qwen3.
BLOCKS = {
    "dflash": BlockHead(),
    "dspark": BlockHead("dspark"),
    "bonus": BlockHead("dspark", from_anchor=False),
    "dflash2": BlockHead("dflash2"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory, demo_target):
    """Paths by name and part: whole, trunk (which lacks the stated head), head."""
    folder = tmp_path_factory.mktemp("heads")
    paths = {
        (name, part): write_head_model(
            folder / f"{name}-{part}.gguf", demo_target, name, part=part
        )
        for name in (*ALL, *EAGLE)
        for part in ("whole", "trunk", "head")
    }
    target = paths["qwen3", "whole"]
    for name, kind in BLOCKS.items():
        paths[name, "head"] = write_block_head(folder / f"{name}.gguf", target, kind)
    paths["medusa", "head"] = write_medusa_heads(folder / "medusa.gguf", target)
    return paths | {(name, "whole"): target for name in (*BLOCKS, "medusa")}


@pytest.fixture
def pair(made):
    """The headers of a target and its head, by the head's name."""
    return lambda name: [check_model_file(made[name, part]) for part in ("whole", "head")]


def changed(header: Header, **stated) -> Header:
    """The header with other numbers under the names of its architecture."""
    mine = {
        key if key.startswith("tokenizer") else f"{header.architecture}.{key}": value
        for key, value in stated.items()
    }
    return replace(header, metadata={**header.metadata, **mine})


def renamed(header: Header, name: str) -> Header:
    """The header as if it were of another architecture with the same numbers."""
    begin = f"{header.architecture}."
    stated = {
        f"{name}.{key.removeprefix(begin)}" if key.startswith(begin) else key: value
        for key, value in header.metadata.items()
    }
    return replace(header, metadata={**stated, "general.architecture": name})


def why_not(header: Header) -> str:
    facts = head_facts(header)
    assert facts is not None
    return facts.why_not


# --- what it is ---


@pytest.mark.parametrize("name", INSIDE)
def test_a_head_inside_and_a_head_alone_are_told_apart(pair, name):
    inside, alone = map(head_facts, pair(name))
    assert inside is not None
    assert alone == replace(inside, is_apart=True)
    assert not inside.is_apart
    assert inside.graph is not HeadGraph.ASSISTANT
    assert inside.why_not == ""
    assert inside.num_layers == inside.num_chained == NUM_HEADS[name]


READS = "reads layers 1, 2, 3"


@pytest.mark.parametrize(
    ("name", "graph", "words"),
    [
        ("gemma4", HeadGraph.ASSISTANT, "2 MTP layers"),
        ("qwen3", HeadGraph.EAGLE3, f"an EAGLE-3 head that {READS}"),
        ("llama", HeadGraph.EAGLE3, f"an EAGLE-3 head that {READS}"),
        ("dflash", HeadGraph.DFLASH, f"a DFlash head that {READS} and drafts up to 7 tokens"),
        ("dspark", HeadGraph.DFLASH, f"a DSpark head that {READS} and drafts up to 8 tokens"),
        ("bonus", HeadGraph.DFLASH, f"a DSpark head that {READS} and drafts up to 7 tokens"),
        ("dflash2", HeadGraph.DFLASH, f"a DFlash2 head that {READS} and drafts up to 7 tokens"),
        ("medusa", HeadGraph.MEDUSA, "4 Medusa heads"),
    ],
)
def test_what_a_head_apart_is(pair, name, graph, words):
    target, head = pair(name)
    facts = head_facts(head)
    assert facts is not None
    assert facts.graph is graph
    assert facts.description.startswith(words)
    assert (facts.is_apart, facts.num_chained, facts.why_not) == (True, 1, "")
    assert (facts.graph is HeadGraph.ASSISTANT) is (name == "gemma4")
    assert facts.layers_read == (tuple(LAYERS_READ) if READS in words else ())
    assert facts.num_bytes == head.weights_bytes  # F32
    sizes = {tensor.name: tensor.size_bytes for tensor in head.tensors}
    if name in EAGLE:
        once = ("fc.weight", "token_embd.weight", "d2t")
        assert facts.num_read_bytes == facts.num_bytes - sum(sizes.get(n, 0) for n in once)
    if name in BLOCKS:
        block = facts.block
        assert block is not None
        assert (block.size, block.first_row) == (BLOCK_SIZE, name != "dspark")
        assert block.num_candidates == (4 if name == "dflash2" else 0)
        assert block.has_confidences is (name in ("dspark", "bonus"))
    assert head_misfit(target, head) == ""


def test_a_model_without_a_head_has_none(demo_target, pair):
    assert head_facts(check_model_file(demo_target)) is None
    assert head_facts(pair("gemma4")[0]) is None


def test_what_a_head_weighs_is_what_lies_in_its_file(pair):
    target, head = pair("step35")
    sizes = {one.name: one.size_bytes for one in head.tensors}
    shared = {"output.weight", "token_embd.weight", "output_norm.weight"}
    facts = head_facts(target)
    assert facts is not None
    assert facts.num_bytes == sum(size for name, size in sizes.items() if name not in shared)
    # A decode computes one of the three layers, and the logits.
    assert facts.num_read_bytes == facts.num_bytes // 3 + sizes["output.weight"]


@pytest.mark.parametrize("name", [*ALL, *EAGLE, *BLOCKS, "medusa"])
def test_a_head_alone_is_no_target(pair, name):
    target, head = pair(name)
    with pytest.raises(ModelFileError, match=r"only a head") as raised:
        check_target(head)
    assert "head=" in raised.value.hint
    check_target(target)
    assert head_misfit(target, head) == ""


@pytest.mark.parametrize("name", INSIDE)
def test_a_model_whose_head_was_left_out(made, pair, name):
    header = check_model_file(made[name, "trunk"])
    check_target(header)
    assert "lacks blk.4.nextn.eh_proj.weight" in why_not(header)
    # As converters leave it out: neither the tensors nor the key are there.
    bare = changed(header, nextn_predict_layers=0, block_count=NUM_LAYERS)
    assert head_misfit(bare, pair(name)[1]) == ""


# --- heads that cannot be used, and targets that they do not fit ---

MASK = "tokenizer.ggml.mask_token_id"


@pytest.mark.parametrize(
    ("name", "stated", "words"),
    [
        ("dflash", {"target_layers": ()}, "does not state which layers of its target it reads"),
        ("dflash", {MASK: 4096}, "its header names no token as the mask"),
        ("dflash", {MASK: None}, "its header names no token as the mask"),
        ("dflash", {"hyper_connection.count": 4}, "DSpark heads of DeepSeek V4's layers"),
        ("medusa", {"block_count": 0}, "its header states no heads"),
        ("medusa", {"residual_count": 2}, "it lacks blk.0.residual.1.weight"),
        ("medusa", {"embedding_length": 32}, "it lacks blk.0.residual.0.weight of the shape"),
    ],
)
def test_heads_that_cannot_be_used(pair, name, stated, words):
    assert words in why_not(changed(pair(name)[1], **stated))


def test_layers_that_libllama_does_not_compute_are_of_no_use(pair):
    for name in INSIDE:
        header, _ = pair(name)
        lost = f"blk.{NUM_LAYERS + NUM_HEADS[name] - 1}.nextn.hnorm.weight"
        kept = tuple(one for one in header.tensors if one.name != lost)
        assert f"lacks {lost}" in why_not(replace(header, tensors=kept))
    header, _ = pair("glm4moe")
    assert why_not(renamed(header, "glm-dsa")) == ""
    for name in ("glm4", "glm5-next", "llama"):
        assert f"MTP layers of {name!r} cannot be used" in why_not(renamed(header, name))
    more = [
        Tensor(f"blk.3.nextn.{part}.weight", 0, (1,), 0, 1)
        for part in ("eh_proj", "enorm", "hnorm")
    ]
    two = replace(changed(header, nextn_predict_layers=2), tensors=(*header.tensors, *more))
    assert "2 MTP layers of 'glm4moe'" in why_not(two)


@pytest.mark.parametrize(
    ("name", "of_target", "of_head", "words"),
    [
        ("qwen35", {"embedding_length": 128}, {}, "rows of width 64, the target has 128"),
        ("gemma4", {"embedding_length": 128}, {}, "rows of width 64, the target has 128"),
        ("qwen3", {}, {"target_hidden_size": 128}, "model of width 128, the target's is 64"),
        ("qwen3", {}, {"target_layers": (1, 2, 5)}, "reads layers (1, 2, 5), the target has 4"),
        ("qwen3", {}, {"target_layers": (1, 2, 4)}, "no access to the last layer of 'qwen3'"),
        ("qwen3", {}, {"embedding_length": 32}, "lacks token_embd.weight, and the target's"),
        ("dflash", {}, {"embedding_length": 32}, "model of width 32, the target's is 64"),
        ("dflash", {}, {"target_layers": (1, 2, 5)}, "reads layers (1, 2, 5), the target has"),
        ("medusa", {"embedding_length": 128}, {}, "model of width 64, the target's is 128"),
    ],
)
def test_what_does_not_fit_is_said_with_both_values(pair, name, of_target, of_head, words):
    target, head = pair(name)
    assert words in head_misfit(changed(target, **of_target), changed(head, **of_head))


def test_heads_of_other_architectures(pair, demo_target):
    target, head = pair("qwen35")
    assert head_misfit(target, check_model_file(demo_target)).endswith("has no head")
    other = head_misfit(pair("glm4moe")[0], head)
    assert other == "it is of 'qwen35', the target of 'glm4moe'"
    other = head_misfit(pair("step35")[0], pair("gemma4")[1])
    assert other == "it is of 'gemma4-assistant', the target of 'step35'"
    target, head = pair("qwen3")
    for name in ("qwen2", "gemma3", "granite", "smollm3", "mistral3"):
        words = f"libllama gives no access to the layers of {name!r}"
        assert head_misfit(renamed(target, name), head) == words
    for name in ("llama", "qwen3moe", "gpt-oss", "gemma4"):
        assert head_misfit(renamed(target, name), head) == ""
    small = replace(head.tensors[0], name="token_embd.weight", shape=(64, 7))
    words = f"its table has 7 tokens, the target {len(target.tokens)}"
    assert words in head_misfit(target, replace(head, tensors=(*head.tensors, small)))


def test_tokens_are_compared(pair):
    target, head = pair("qwen35")
    tokens = list(target.tokens)
    assert head_misfit(replace(target, tokens=[b"renamed", *tokens[1:]]), head) == ""
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


# --- what a header says of sizes ---


def test_the_layers_of_a_head_attend_also_in_a_hybrid(pair):
    for name, kv_heads, of_head in (
        ("qwen35", [0, 0, 0, 1], [1]),
        ("step35", [1, 1, 1, 1], [1, 1, 1]),
    ):
        shape = ModelShape(pair(name)[0])
        assert (shape.kv_heads(), shape.head_kv_heads()) == (kv_heads, of_head)
    # The assistant has no cache of its own.
    assert [ModelShape(one).head_kv_heads() for one in pair("gemma4")] == [[], [0, 0]]


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


# --- what a user sees of it ---


@pytest.mark.parametrize("name", ["qwen3", "dspark", "medusa"])
def test_a_head_given_as_a_draft_is_understood_and_explained(made, name):
    target, head = made[name, "whole"], made[name, "head"]
    texts = []
    for proposer in ("none", "auto"):
        with localspec.load(target=target, draft=head, proposer=proposer) as engine:
            assert (f"{head.name} as its head" in engine.description) is (proposer == "auto")
            greedy = localspec.SamplingParams(temperature=0.0)
            answer = engine.generate_raw([5, 6, 7], max_tokens=60, sampling=greedy)
            texts.append(answer.reply().token_ids)
    assert texts[0] == texts[1]
    shown = run("explain", "--target", target, "--draft", head)
    assert head_facts(check_model_file(head)).description in " ".join(shown.output.split())


def test_a_head_that_does_not_fit_is_refused(made, demo_target):
    with pytest.raises(PairError, match="cannot draft for the target: it"):
        localspec.load(target=demo_target, head=made["medusa", "head"])


# --- named by presets and options, and fetched ---


REPO = "o/headed-GGUF"
TARGET, HEAD = "headed-Q4_0.gguf", "mtp-headed-Q4_0.gguf"


@pytest.fixture
def headed(hub: StandinHub, made) -> None:
    """A target and its head on the hub, which the user's preset `headed` pins."""
    lines = ['\n[headed]\ndescription = "With a head"\ncontext_length = 256\n']
    for role, file, path in (
        ("target", TARGET, made["qwen35", "whole"]),
        ("head", HEAD, made["qwen35", "head"]),
    ):
        served = hub.add(REPO, file, path.read_bytes())
        lines.append(
            f'[headed.{role}]\nrepo = "{REPO}"\nfile = "{file}"\nrevision = "{COMMIT}"\n'
            f'size_bytes = {len(served.content)}\nsha256 = "{served.sha256}"\n'
        )
    with user_presets_file().open("a") as presets:
        presets.writelines(lines)


def stats_of(*arguments: object) -> dict[str, object]:
    result = run(
        "generate", "--raw", "hi", "--json", "--max-tokens", 16, "--draft-tokens", 3, *arguments
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["stats"]


def test_a_preset_without_a_head_says_so():
    with pytest.raises(PresetError, match="'qwen3-8b' has no head") as caught:
        resolve("qwen3-8b", "head")
    assert "inside the target's file needs none" in caught.value.hint


@pytest.mark.usefixtures("headed")
def test_a_quantisation_of_a_head_is_the_file_beside_the_model():
    assert resolve(f"{REPO}:Q4_0", "head").model == Quantized(REPO, "mtp-Q4_0")
    assert resolve(f"{REPO}:mtp-Q4_0", "head").model == Quantized(REPO, "mtp-Q4_0")
    assert resolve(f"{REPO}:Q4_0", "target").model == Quantized(REPO, "Q4_0")
    missing = run("generate", "hi", "--target", "demo", "--head", f"{REPO}:Q4_0")
    assert missing.exit_code == 1
    command = f"download {REPO}:mtp-Q4_0"
    assert f"localspec {command}" in missing.stderr
    (path,) = map(Path, run(*command.split()).stdout.splitlines())
    assert path.name == HEAD
    (model,) = localspec.download(f"{REPO}:Q4_0")
    assert model.name == TARGET
    with pytest.raises(DownloadError, match="0 models in 'mtp-Q8_0'"):
        localspec.download(f"{REPO}:mtp-Q8_0")
    named = ("--target", f"{REPO}:Q4_0", "--head", f"{REPO}:Q4_0")
    assert stats_of(*named, "--proposer", "head")["steps_per_proposer"]["head"] > 0


@pytest.mark.usefixtures("headed")
@pytest.mark.parametrize("proposer", ["head", "auto"])
def test_a_presets_head_proposes(proposer):
    run("download", "headed")
    stats = stats_of("--preset", "headed", "--proposer", proposer)
    assert stats["steps_per_proposer"]["head"] > 0
    assert stats["num_draft_tokens"] > 0
