"""Drafts and heads that propose some tokens only: the same logits, and every rule exact."""

from __future__ import annotations

import itertools
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from head_maker import write_head_model
from hybrid_maker import write_hybrid
from other_tokenizer import write_renumbered
from trimmed_files import trimmed_file

import inside
import localspec
from engines import Owner, resumed
from gguf_maker import write_random_model
from localspec.cli import main
from localspec.engine.trimming import trim
from localspec.errors import ModelFileError, OptionError, PairError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.header import BEHIND, read_header
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.trimmed import (
    KIND,
    checked_head_output,
    head_output_path,
    is_made_of,
    proposed_ids,
)
from localspec.gguf_file.trimming import why_not_trimmed
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions
from localspec.llama.trimmed import TrimmedModel
from localspec.llama.trimmed_output import TrimmedOutput
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import FixedDraftPolicy
from test_loop_distribution import PENALISED, UNFILTERED, Case, assert_targets_distribution
from toy import TableModel

OPTIONS = LlamaOptions(context_length=128, max_outputs=8, flash_attention="off")
IDS = [*range(0, 900, 2), 901, 905]
PROMPT = "The fox and the river"
TEXT = [5 + 37 * index % 900 for index in range(30)]
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def write_gemma3(path, tokenizer_of):
    return write_random_model(
        path, tokenizer_of, architecture="gemma3", quantization="Q8_0", seed=3
    )


def write_llama(path, tokenizer_of):
    return write_random_model(path, tokenizer_of, quantization="Q4_0", num_padding=3)


def write_tied(path, tokenizer_of):
    return write_hybrid(path, tokenizer_of, "lfm2")


@pytest.mark.parametrize("write", [write_llama, write_gemma3, write_tied])
def test_logits_are_those_of_the_whole_draft(write, tmp_path, demo_target):
    path = write(tmp_path / "draft.gguf", demo_target)
    header = check_model_file(trimmed_file(path, IDS))
    assert list(proposed_ids(header)) == IDS
    whole, trimmed = LlamaModel.open(path, OPTIONS), TrimmedModel.open_trimmed(header, OPTIONS)
    assert trimmed.vocab_size == whole.vocab_size
    for tokens, rows in ((TEXT, 4), ([7], 1), ([901, 3, 3], 3)):
        ours, theirs = trimmed.decode(tokens, rows), whole.decode(tokens, rows)
        np.testing.assert_array_equal(ours[:, IDS], theirs[:, IDS])
        assert np.isneginf(np.delete(ours, IDS, axis=1)).all()
    whole.close()
    trimmed.close()


class SomeTokens(TableModel):
    """A draft over three tokens that never proposes the second."""

    def decode(self, tokens, num_logits):
        rows = super().decode(tokens, num_logits).copy()
        rows[:, 1] = -np.inf
        return rows


@pytest.mark.parametrize("params", [UNFILTERED, PENALISED], ids=["", "penalties"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_texts_have_the_targets_distribution(rule, params):
    """To 1e-12, of every length up to several steps."""
    target, draft = TableModel(3, seed=5, spread=1.0), SomeTokens(3, seed=99, spread=1.0)
    case = Case(FixedDraftPolicy, 2, 4, params, 2)
    assert_targets_distribution(rule, target, draft, case)


@pytest.fixture(scope="module")
def pair(tmp_path_factory, demo_target, demo_draft):
    """The demo target, its draft, trimmed to half of its tokens, and the plain texts."""
    folder = tmp_path_factory.mktemp("trimmed")
    ids = [*range(1200), *range(1200, 2048, 7)]
    draft = trimmed_file(demo_draft, ids, folder / "draft.gguf")
    with localspec.load(target=demo_target, draft_tokens=0) as engine:
        texts = [text_of(engine, sampling=GREEDY), text_of(engine, sampling=SAMPLED, seed=5)]
    return demo_target, draft, texts


def rows_now(engine):
    """What a head says behind the text, and behind a token that it drafted."""
    loop = inside.loop(engine)
    proposer, tokens = loop.proposers[0], loop.tokens
    if loop.target.num_cached == len(tokens):  # cut within a step
        tokens = [*tokens, 33]
    assert proposer.state(tokens).max_tokens >= 2
    return [proposer.rows([*tokens, *more], 1)[0].copy() for more in ([], [17])]


def text_of(engine, prompt=PROMPT, **keywords):
    return engine.generate_raw(prompt, max_tokens=40, **keywords).reply().token_ids


@pytest.mark.parametrize("count", [1, 3, 8, None])
def test_text_is_that_of_plain_decoding(pair, count):
    target, draft, (greedy, seeded) = pair
    with localspec.load(
        target=target, draft=draft, draft_tokens=count, proposer="draft", memory=False
    ) as engine:
        reply = engine.generate_raw(PROMPT, max_tokens=40, sampling=GREEDY).reply()
        assert reply.token_ids == greedy
        if count is not None:
            assert 0 < reply.stats.num_accepted < reply.stats.num_draft_tokens
        assert text_of(engine, sampling=SAMPLED, seed=5, rule="coupled") == seeded
        for rule in ("token", "block"):
            text = (
                engine.generate_raw(PROMPT, max_tokens=30, rule=rule, regex="[a-z ]+")
                .reply()
                .text
            )
            assert re.fullmatch("[a-z ]*", text)


@pytest.mark.parametrize("write", [write_llama, write_gemma3, write_tied])
def test_texts_are_plain_after_cuts_cancels_and_other_conversations(
    write, tmp_path, demo_target
):
    """Drafts with attention, with a sliding window, and recurrent ones."""
    path = write(tmp_path / "model.gguf", demo_target)
    draft = trimmed_file(path, IDS)

    def opened(**keywords):
        usual = {"draft": draft, "draft_tokens": 3, "proposer": "draft", "memory": False}
        usual["target_options"] = LlamaOptions(context_length=512, flash_attention="off")
        return localspec.load(target=path, **usual | keywords)

    with opened(draft=None, proposer="none") as engine:
        plain = text_of(engine, TEXT, sampling=GREEDY)
    with opened(parallel=2) as engine:
        owners, drafted = itertools.cycle([Owner(), Owner(), Owner()]), 0
        for number in range(6):
            stream = engine.generate_raw(TEXT, max_tokens=40, sampling=GREEDY)
            for _ in itertools.islice(stream, 1 + 3 * number):
                pass
            stream.close()
            inside.loop(engine).truncate(len(TEXT) + 1)
            reply = engine.generate_raw(TEXT, max_tokens=40, sampling=GREEDY).reply()
            assert reply.token_ids == plain
            drafted += reply.stats.num_accepted
            inside.switch_to(engine, next(owners), ())
        assert drafted > 0
    with resumed(opened, tmp_path / "x.caches", TEXT):
        pass


def test_a_trimmed_draft_is_no_target_and_needs_the_targets_tokenizer(
    pair, demo_target, tmp_path
):
    _, draft, _ = pair
    with pytest.raises(ModelFileError, match="is a trimmed draft"):
        localspec.load(target=draft)
    other = write_renumbered(tmp_path / "other.gguf", demo_target)
    with pytest.raises(PairError):
        localspec.load(target=other, draft=draft)


@pytest.mark.parametrize("architecture", ["qwen35", "glm4moe", "nemotron_h_moe"])
@pytest.mark.parametrize("is_apart", [False, True], ids=["inside", "apart"])
def test_a_heads_logits_are_those_of_the_whole(architecture, is_apart, tmp_path, demo_target):
    target = write_head_model(tmp_path / "target.gguf", demo_target, architecture)
    source = target
    if is_apart:
        source = write_head_model(tmp_path / "mtp.gguf", demo_target, architecture, part="head")
    keywords = {"target": target, "proposer": "head", "draft_tokens": 3, "memory": False}
    keywords |= {"head": source} if is_apart else {}
    keywords |= {"target_options": LlamaOptions(context_length=128, flash_attention="off")}
    found = []
    for trims in (False, True):
        if trims:
            trimmed_file(source, IDS, head_output_path(source))
        with localspec.load(**keywords) as engine:
            reply = engine.generate_raw(TEXT, max_tokens=40, sampling=GREEDY).reply()
            found.append((reply.token_ids, rows_now(engine)))
            if trims:
                seeded = text_of(engine, sampling=SAMPLED, seed=5, rule="coupled")
                text_of(engine, sampling=SAMPLED, rule="block")
    (plain, whole), (text, some) = found
    assert text == plain
    known = sorted({*IDS, *plain, *TEXT, 17, 33})  # and the tokens of the text
    assert len(known) > len(IDS)
    found = np.isfinite(some)
    assert found[:, IDS].all()
    assert found[:, [*TEXT]].all()
    assert not np.delete(found, known, axis=1).any()
    np.testing.assert_allclose(np.array(some)[found], np.array(whole)[found], atol=2e-3)
    with localspec.load(**keywords | {"proposer": "none"}) as engine:
        assert text_of(engine, sampling=SAMPLED, seed=5, rule="coupled") == seeded


def test_the_latest_tokens_of_texts_join_in(tmp_path, demo_target, monkeypatch):
    """No more of them than there is room for."""
    inside.propose_few_of_texts(monkeypatch, 3)
    whole = write_head_model(tmp_path / "target.gguf", demo_target, "qwen35")
    trimmed = read_header(trimmed_file(whole, range(100), head_output_path(whole)))
    header = check_model_file(whole)
    output = TrimmedOutput.open(trimmed, header, OPTIONS, len(header.tokens))
    rows = np.ones((2, ModelShape(header).width), dtype=np.float32)
    before = output.logits(rows, 1)[:, :100].copy()
    for tokens, known in (
        ([5, 200, 7], {200}),
        ([200, 300, 301], {200, 300, 301}),
        ([302], {300, 301, 302}),
        ([400, 401, 402, 403], {401, 402, 403}),
    ):
        output.add(tokens)
        found = output.logits(rows, 1)
        assert set(np.flatnonzero(np.isfinite(found[1]))) == {*range(100), *known}
        np.testing.assert_array_equal(found[:, :100], before)
    output.close()


def test_an_eagle_heads_file_is_cut(tmp_path, demo_target):
    target = write_head_model(tmp_path / "target.gguf", demo_target, "llama")
    head = write_head_model(tmp_path / "head.gguf", demo_target, "llama", part="head")
    rows, texts = [], []
    for path in (head, trimmed_file(head, IDS)):
        with localspec.load(
            target=target, head=path, draft_tokens=3, memory=False, trimmed=False
        ) as engine:
            texts.append(text_of(engine, sampling=GREEDY))
            rows.append(rows_now(engine)[1])
    whole, some = rows
    assert texts[0] == texts[1]
    known = np.isfinite(some)
    assert 0 < known.sum() < np.isfinite(whole).sum()
    assert set(np.flatnonzero(known)) <= set(IDS)
    np.testing.assert_allclose(some[known], whole[known], atol=1e-5)


def test_a_head_that_shares_its_targets_output_is_not_cut(tmp_path, demo_target):
    head = write_head_model(tmp_path / "head.gguf", demo_target, "qwen3", part="head")
    assert "in the target's file" in why_not_trimmed(check_model_file(head))
    step = write_head_model(tmp_path / "step.gguf", demo_target, "step35")
    assert "does not give the rows" in why_not_trimmed(check_model_file(step))


def test_a_damaged_output_is_refused(tmp_path, demo_target):
    target = write_head_model(tmp_path / "target.gguf", demo_target, "qwen35")
    trimmed_file(target, IDS, head_output_path(target))
    header = check_model_file(target)
    found = checked_head_output(header)
    assert found is not None
    assert is_made_of(found, header)
    data = head_output_path(target).read_bytes()
    head_output_path(target).write_bytes(data[:-4] + struct.pack("<i", 1 << 20))
    with pytest.raises(ModelFileError, match="proposes tokens"):
        checked_head_output(header)


def test_a_damaged_file_is_refused(pair, tmp_path):
    _, draft, _ = pair
    data = draft.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[:-4])
    with pytest.raises(ModelFileError):
        check_model_file(path)
    begin = len(data) - read_header(draft).number(BEHIND)
    path.write_bytes(data[:begin] + struct.pack("<i", 1 << 20) + data[begin + 4 :])
    with pytest.raises(ModelFileError, match="proposes tokens"):
        check_model_file(path)
    key = KIND.encode() + struct.pack("<I", 4)
    at = data.index(key) + len(key)
    path.write_bytes(data[:at] + struct.pack("<I", 999) + data[at + 4 :])
    with pytest.raises(ModelFileError, match="bytes are behind its tensors"):
        check_model_file(path)
    key = BEHIND.encode() + struct.pack("<I", 10)
    at = data.index(key) + len(key)
    path.write_bytes(data[:at] + struct.pack("<Q", 2 * len(data)) + data[at + 8 :])
    with pytest.raises(ModelFileError, match="bytes behind its tensors"):
        check_model_file(path)


def test_the_command_makes_a_draft_and_explain_says_so(tmp_path, demo_target, demo_draft):
    draft, text = tmp_path / "draft.gguf", tmp_path / "mine.txt"
    draft.write_bytes(demo_draft.read_bytes())
    text.write_text("The fox and the river were old friends.")
    command = ["models", "trim", str(draft), "--tokens", "1000", "--texts", str(text)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0
    made = Path(result.stdout.strip())
    assert made == tmp_path / "draft-trimmed.gguf"
    assert "1000 of" in result.stderr
    ids = set(proposed_ids(check_model_file(made)))
    with localspec.load(target=demo_target, draft=draft) as engine:
        vocabulary = engine.vocabulary
        assert ids >= set(vocabulary.tokenize(text.read_text(), parse_special=False))
        assert vocabulary.eos in ids
    explained = CliRunner().invoke(
        main, ["explain", "--target", str(demo_target), "--draft", str(made)]
    )
    assert "trimmed: proposes 1000 of them" in explained.stdout
    again = CliRunner().invoke(main, ["models", "trim", str(made)])
    assert again.exit_code == 1
    assert "trimmed already" in again.stderr


def test_explain_names_a_heads_trimmed_output(tmp_path, demo_target):
    target = write_head_model(tmp_path / "target.gguf", demo_target, "qwen35")
    made = trim(target, num_tokens=500)
    assert made.path == head_output_path(target)
    assert localspec.explain(target=target).head.num_proposed == 500
    explained = CliRunner().invoke(main, ["explain", "--target", str(target)])
    assert "trimmed to 500 tokens" in explained.stdout


def test_a_number_that_leaves_nothing_out_is_refused(demo_draft):
    with pytest.raises(OptionError, match="are to stay"):
        trim(demo_draft, num_tokens=1 << 20)
