"""Medusa heads: what their files must have, and that they read the rows they should."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import gguf
import llama_cpp
import numpy as np
import pytest
from click.testing import CliRunner
from convert_medusa import heads_of
from medusa_file import HeadWeights, write_medusa

import inside
import localspec
from engines import all_at_once, sharing_decodes
from gguf_maker import write_random_model
from localspec.cli import main
from localspec.errors import ModelFileError, PairError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head import check_target, head_facts, head_misfit
from localspec.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PROMPT = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"
NUM_HEADS, NUM_KNOWN = 4, 700
KINDS = {"all": "F32", "some": "F16", "rounded": "BF16"}
SCRIPTS = Path(__file__).parents[1] / "scripts" / "heads"


class Made(NamedTuple):
    """A target, its heads in a file, and their weights as the file has them."""

    target: Path
    path: Path
    heads: list[HeadWeights]
    tokens: np.ndarray | None

    def opened(self, **keywords):
        usual = {"proposer": "head", "head": self.path, "draft_tokens": 3}
        return localspec.load(target=self.target, context_length=1024, **usual | keywords)


def some_heads(target, num_tokens, num_residuals=1):
    """They say what the target says of the same row, or nearly so: some of it comes true."""
    tensor = next(t for t in gguf.GGUFReader(target).tensors if t.name == "token_embd.weight")
    output = gguf.quants.dequantize(tensor.data, tensor.tensor_type)[:num_tokens]
    width = output.shape[1]
    rng = np.random.default_rng(3)
    return [
        HeadWeights(
            [
                (
                    rng.normal(0, 0.1 / np.sqrt(width), (width, width)).astype(np.float32),
                    rng.normal(0, 0.1, width).astype(np.float32),
                )
                for _ in range(num_residuals)
            ],
            output.astype(np.float32),
        )
        for _ in range(NUM_HEADS)
    ]


@pytest.fixture(scope="module", params=list(KINDS))
def made(request, tmp_path_factory, demo_draft):
    """For the demo's draft as the target."""
    kind = gguf.GGMLQuantizationType[KINDS[request.param]]
    tokens = None if request.param == "all" else np.arange(NUM_KNOWN, dtype=np.int64)[::-1]
    path = tmp_path_factory.mktemp("medusa") / f"{request.param}.gguf"
    heads = some_heads(
        demo_draft, None if tokens is None else NUM_KNOWN, 2 if kind.name == "BF16" else 1
    )
    if tokens is not None:
        heads = [HeadWeights(head.residuals, head.output[::-1].copy()) for head in heads]
    write_medusa(path, demo_draft, heads, tokens=tokens, kind=kind)

    def rounded(values):
        return gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)

    as_written = [
        HeadWeights(
            [(rounded(weight), rounded(bias)) for weight, bias in head.residuals],
            rounded(head.output),
        )
        for head in heads
    ]
    return Made(demo_draft, path, as_written, tokens)


class RowReference:
    """What a model's output layer reads, by a fresh decode of all that was said."""

    def __init__(self, path):
        self.model = llama_cpp.Llama(str(path), n_ctx=1024, embedding=True, verbose=False)

    def row(self, text):
        context = self.model.ctx
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        tokens = (llama_cpp.llama_token * len(text))(*text)
        batch = llama_cpp.llama_batch_get_one(tokens, len(tokens))
        assert llama_cpp.llama_decode(context, batch) == 0
        row = llama_cpp.llama_get_embeddings_ith(context, -1)
        return np.ctypeslib.as_array(row, (self.model.n_embd(),)).copy()


@pytest.fixture(scope="module")
def reference(demo_draft):
    one = RowReference(demo_draft)
    yield one
    one.model.close()


def computed(made, head, row):
    """Logits of a head by the paper's formula, in float64."""
    hidden = row.astype(np.float64)
    for weight, bias in made.heads[head].residuals:
        inner = weight.astype(np.float64) @ hidden + bias
        hidden = hidden + inner / (1 + np.exp(-inner))
    logits = made.heads[head].output.astype(np.float64) @ hidden
    if made.tokens is None:
        return logits
    wide = np.full(4096, -np.inf)
    wide[made.tokens] = logits
    return wide


def assert_reads_rightly(engine, made, reference):
    """What the heads say now is what they say of a fresh decode."""
    loop, heads = inside.loop(engine), inside.models(engine).head
    last = loop.target.num_cached - 1
    assert last in heads.rows_at
    row = reference.row(loop.tokens[: last + 1])
    for head in range(NUM_HEADS):
        expected = computed(made, head, row)
        assert expected[np.isfinite(expected)].std() > 0.1
        np.testing.assert_allclose(heads.logits(head, last), expected, atol=0.02)


def text_of(engine, prompt=PROMPT, **keywords):
    return engine.generate_raw(prompt, **({"max_tokens": 40} | keywords)).reply().token_ids


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4, 8, None])
def test_greedy_text_is_plain_and_the_heads_read_rightly(made, reference, num_draft_tokens):
    with made.opened(proposer="none") as engine:
        plain = text_of(engine, sampling=GREEDY)
    with made.opened(draft_tokens=num_draft_tokens) as engine:
        reply = engine.generate_raw(PROMPT, max_tokens=40, sampling=GREEDY).reply()
        assert reply.token_ids == plain
        drafted = reply.stats.drafted_per_position
        if num_draft_tokens is not None:
            most = min(num_draft_tokens, NUM_HEADS)
            assert drafted[most - 1] > 0
            assert not any(drafted[most:])
        assert_reads_rightly(engine, made, reference)


@pytest.mark.parametrize("rule", ["coupled", "token", "block"])
def test_sampled_text(made, reference, rule):
    texts = []
    for count in (0, 1, 3, 8):
        with made.opened(draft_tokens=count) as engine:
            texts.append(text_of(engine, sampling=SAMPLED, seed=5, rule=rule))
            if count:
                assert_reads_rightly(engine, made, reference)
    if rule == "coupled":
        assert texts[1:] == texts[:1] * 3


def test_after_cuts_cancels_and_another_conversation(made, reference):
    with made.opened(proposer="none") as engine:
        plain = text_of(engine, sampling=GREEDY)
    with made.opened() as engine:
        chats = itertools.cycle([engine.chat(), engine.chat()])
        for number in range(4):
            stream = engine.generate_raw(PROMPT, max_tokens=40, sampling=GREEDY)
            pieces = iter(stream)
            for _ in range(2 + 3 * number):
                next(pieces, None)
            stream.close()
            assert_reads_rightly(engine, made, reference)
            inside.loop(engine).truncate(stream.reply().stats.prompt_tokens + 1)
            assert text_of(engine, sampling=GREEDY) == plain
            inside.switch_to(engine, next(chats), ())
            assert text_of(engine, sampling=GREEDY) == plain
            assert_reads_rightly(engine, made, reference)


def last_rows(lane):
    """What the first head says behind each of the text's last tokens whose rows it can read."""
    head = lane.own_models.head
    assert len(head.rows_at) > 20
    return np.array([head.logits(0, place).copy() for place in head.rows_at[-20:]])


def test_answers_at_once_share_decodes_and_give_each_its_rows(made):
    asked = {"max_tokens": 40, "sampling": GREEDY}
    prompts = [PROMPT, *(PROMPT.replace("fox", word) for word in ("owl", "hen", "cat"))]
    rows = {}
    with made.opened() as engine:
        before = engine.num_decodes
        for prompt in prompts:
            engine.generate_raw(prompt, **asked).reply()
            [lane] = inside.lanes(engine)
            rows[tuple(lane.decoder.tokens)] = last_rows(lane)
        num_alone = engine.num_decodes - before
    with made.opened(parallel=4) as engine, sharing_decodes():
        before = engine.num_decodes
        all_at_once(engine, prompts, **asked)
        assert engine.num_decodes - before < 0.75 * num_alone
        for lane in inside.lanes(engine):
            expected = rows.pop(tuple(lane.decoder.tokens))
            np.testing.assert_allclose(last_rows(lane), expected, atol=2e-3)
    assert not rows


def test_rows_that_are_not_there_are_waited_for(made):
    """The prompt's are not: the first step behind it is a plain one."""
    with made.opened() as engine:
        stats = engine.generate_raw(PROMPT, max_tokens=3, sampling=GREEDY).reply().stats
        assert stats.steps_per_length[0] >= 2
        assert {off.value for off in stats.draft_off_steps} == {"head_lacks_rows"}


def test_a_row_may_be_written_to(made):
    """As whoever works out a draft's confidence does."""
    with made.opened() as engine:
        text_of(engine, sampling=GREEDY)
        heads = inside.models(engine).head
        last = heads.rows_at[-1]
        row = heads.logits(0, last)
        before = row.copy()
        row[:] = 7.0
        np.testing.assert_array_equal(heads.logits(0, last), before)


def test_the_targets_logits_stay_as_they_are(made):
    rows = []
    for proposer in ("none", "head"):
        with made.opened(
            proposer=proposer, draft_tokens=0 if proposer == "none" else 1
        ) as engine:
            target = inside.models(engine).target
            target.decode(list(range(5, 35)), 1)
            rows.append(target.decode([7, 8, 9], 3).copy())
    np.testing.assert_array_equal(*rows)


def test_what_it_is(made):
    header = check_model_file(made.path)
    facts = head_facts(header)
    assert facts is not None
    assert facts.description == "4 Medusa heads"
    assert (facts.is_apart, facts.why_not) == (True, "")
    floats = sum(int(np.prod(t.shape)) for t in header.tensors if t.name != "d2t")
    assert facts.num_bytes == 4 * floats
    assert head_misfit(check_model_file(made.target), header) == ""
    with pytest.raises(ModelFileError, match="holds a head alone"):
        check_target(header)


def test_it_is_explained_and_its_name_is_enough(made):
    named = ["--target", str(made.target), "--draft", str(made.path)]
    said = CliRunner().invoke(main, ["explain", "--json", *named])
    head = json.loads(said.stdout)["head"]
    assert (head["description"], head["why_not"]) == ("4 Medusa heads", "")


def written(path, target, change=None, **keywords):
    """Heads whose weights were changed, in a file."""
    heads = some_heads(target, keywords.pop("num_tokens", None))
    if change is not None:
        heads[0] = change(heads[0])
    write_medusa(path, target, heads, **keywords)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda head: HeadWeights(head.residuals * 2, head.output),
            "it lacks blk.1.residual.1.weight",
        ),
        (
            lambda head: HeadWeights(
                [(np.eye(64, dtype=np.float32), head.residuals[0][1])], head.output
            ),
            r"blk.0.residual.0.weight has the shape \(64, 64\), not \(256, 256\)",
        ),
        (
            lambda head: HeadWeights(head.residuals, head.output[:99]),
            r"blk.0.output.weight has the shape \(256, 99\), not \(256, 4096\)",
        ),
    ],
)
def test_heads_that_cannot_be_computed(tmp_path, demo_draft, change, words):
    path = written(tmp_path / "heads.gguf", demo_draft, change)
    with pytest.raises(PairError, match=words):
        localspec.load(target=demo_draft, head=path)


def test_a_file_that_states_no_heads(tmp_path, demo_draft):
    header = check_model_file(written(tmp_path / "heads.gguf", demo_draft))
    metadata = {
        key: value for key, value in header.metadata.items() if "block_count" not in key
    }
    facts = head_facts(replace(header, metadata=metadata))
    assert facts is not None
    assert facts.why_not == "its header states no heads"


def test_types_that_are_not_read(tmp_path, demo_draft):
    path = written(tmp_path / "heads.gguf", demo_draft, kind=gguf.GGMLQuantizationType.Q8_0)
    with pytest.raises(PairError, match="is of type 8, not F32, F16 or BF16"):
        localspec.load(target=demo_draft, head=path)


def test_a_file_that_was_cut_short(tmp_path, demo_draft):
    path = written(tmp_path / "heads.gguf", demo_draft)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(PairError, match="is cut short"):
        localspec.load(target=demo_draft, head=path)


@pytest.mark.parametrize("wrong", [-1, 4096])
def test_tokens_that_are_not_there(tmp_path, demo_draft, wrong):
    tokens = np.arange(NUM_KNOWN, dtype=np.int64)
    tokens[5] = wrong
    path = written(tmp_path / "heads.gguf", demo_draft, num_tokens=NUM_KNOWN, tokens=tokens)
    with pytest.raises(ModelFileError, match=f"d2t of .* names tokens .*{wrong}"):
        localspec.load(target=demo_draft, head=path)


def test_heads_of_another_model(tmp_path, demo_draft):
    path = written(tmp_path / "heads.gguf", demo_draft)
    narrow = write_random_model(tmp_path / "narrow.gguf", demo_draft)
    with pytest.raises(PairError, match="made for a model of width 256, the target's is 64"):
        localspec.load(target=narrow, head=path)


def published(made, naming):
    """The heads under the names of a published file."""
    tensors = {}
    for number, head in enumerate(made.heads):
        last = len(head.residuals)
        for place, (weight, bias) in enumerate(head.residuals):
            if naming == "paper":
                tensors[f"{number}.{place}.linear.weight"] = weight
                tensors[f"{number}.{place}.linear.bias"] = bias
            else:
                tensors[f"blocks.{number}.layers.{place}.weight"] = weight
                tensors[f"blocks.{number}.layers.{place}.bias"] = bias
        output = f"{number}.{last}.weight" if naming == "paper" else f"lm_heads.{number}.weight"
        tensors[output] = head.output
    if made.tokens is not None:
        tensors["token_map"] = made.tokens
    return tensors


@pytest.mark.process
@pytest.mark.parametrize("naming", ["paper", "vllm"])
def test_published_heads_are_converted(made, naming, tmp_path):
    from safetensors.numpy import save_file

    source, out = tmp_path / "medusa_lm_head.safetensors", tmp_path / "heads.gguf"
    arrays = {name: np.ascontiguousarray(v) for name, v in published(made, naming).items()}
    save_file(arrays, source)
    subprocess.run(
        [
            *(sys.executable, SCRIPTS / "convert_medusa.py", "--heads", source),
            *("--target", made.target, "--out", out),
        ],
        check=True,
        cwd=tmp_path,
    )
    texts = []
    for head in (made.path, out):
        with made.opened(head=head) as engine:
            reply = engine.generate_raw(PROMPT, max_tokens=40, sampling=GREEDY).reply()
            texts.append((reply.token_ids, reply.stats.num_draft_tokens))
    assert texts[0][0] == texts[1][0]


def test_names_of_something_else_are_refused():
    with pytest.raises(ValueError, match=r"model.norm.weight is no part of Medusa heads"):
        heads_of({"model.norm.weight": np.ones(4, np.float32)})


@pytest.mark.slow
def test_heads_that_are_trained_for_two_minutes_draft(demo_target, tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "heads.gguf"
    subprocess.run(
        [
            *(sys.executable, SCRIPTS / "train_medusa.py", "--target", demo_target),
            *("--out", out, "--tokens", "8000", "--steps", "600", "--patience", "99"),
        ],
        check=True,
        cwd=tmp_path,
    )
    texts = []
    for proposer in ("none", "head"):
        with localspec.load(
            target=demo_target, head=out, proposer=proposer, draft_tokens=3
        ) as engine:
            stream = engine.chat().send(
                "Tell me a story about a fox and a lantern.", sampling=GREEDY
            )
            for _ in stream:
                pass
            texts.append(stream.reply().text)
            stats = stream.reply().stats
    assert texts[0] == texts[1]
    assert stats.accepted_per_position[0] > 0.3 * stats.drafted_per_position[0]
