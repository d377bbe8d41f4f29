"""The maker of pairs: its files load, and do what was asked for."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import inside
import localspec
from localspec.gguf_file.head import head_facts
from localspec.gguf_file.header import read_header
from localspec.llama.head_opening import open_head
from localspec.llama.model import LlamaModel, LlamaOptions
from localspec.sampling.params import SamplingParams

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parent.parent / "scripts/measure/make_pair.py"
GREEDY = SamplingParams(temperature=0.0)
HEAD_TARGETS = ("tiny-hy_v3", "tiny-qwen35")


def run(*options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
    )


def make(folder: Path, *options: object) -> tuple[Path, Path, dict[str, float]]:
    """Target, draft, and the figures of --check."""
    return made(folder, "--target", "tiny", "--draft", "tiny", *options)


def made(folder: Path, *options: object) -> tuple[Path, Path, dict[str, float]]:
    """Both paths that are printed, and the figures of --check."""
    done = run("--out", folder, "--check", *options)
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    figures = {name: float(value) for name, value in lines[2:]}
    return Path(lines[0][1]), Path(lines[1][1]), figures


@pytest.mark.parametrize("quantization", ["Q4_0", "Q4_K_M", "Q5_K", "Q8_0"])
@pytest.mark.parametrize(
    ("agreement", "entropy"), [(0.8, 1.0), pytest.param(0.3, 0.0, marks=pytest.mark.slow)]
)
def test_pair_has_the_agreement_and_entropy_asked_for(
    tmp_path, quantization, agreement, entropy
):
    """By its logits, and by what the loop accepts, greedy and sampled."""
    options = ("--agreement", agreement, "--entropy", entropy, "--quantization", quantization)
    figures = make(tmp_path, *options)[2]
    assert figures["entropy"] == pytest.approx(entropy, abs=0.02)
    # Four deviations of a share among 256 positions, and among the 128 or so steps.
    for name, bound in {
        "agreement": 0.12, "overlap": 0.12, "greedy_kept": 0.16, "sampled_kept": 0.16,
    }.items():  # fmt: skip
        assert figures[name] == pytest.approx(agreement, abs=bound), name


@pytest.mark.parametrize(
    ("target", "place"),
    [
        *itertools.product(HEAD_TARGETS, ["inside", "apart"]),
        ("tiny-llama", "apart"),
        ("tiny-llama", "block"),
    ],
)
@pytest.mark.parametrize(
    "agreement", [0.8, *(pytest.param(share, marks=pytest.mark.slow) for share in (0, 0.95, 1))]
)
def test_head_has_the_agreement_asked_for(tmp_path, target, place, agreement):
    """With the target's rows, with its own when it drafts on, and in the loop."""
    options = ("--target", target, "--head", place, "--agreement", agreement)
    path, head, figures = made(tmp_path, *options)
    assert (path == head) == (place == "inside")
    assert figures["entropy"] == pytest.approx(1.0, abs=0.02)
    assert ("chained" in figures) == (place != "block")
    # Four deviations of a share among 64 positions, 192, and the 128 or so steps.
    for name, bound in {
        "agreement": 0.2, "overlap": 0.2, "chained": 0.12, "greedy_kept": 0.16,
        "sampled_kept": 0.16,
    }.items():  # fmt: skip
        if name in figures:
            assert figures[name] == pytest.approx(agreement, abs=bound), name


def test_places_of_a_block_are_right_as_often_as_asked_for(tmp_path):
    """Each given that the one before is, greedy: a Markov head goes on from the likeliest."""
    options = ("--target", "tiny-llama", "--head", "block", "--agreement", 0.9)
    path, head, _ = made(tmp_path, *options)
    usual = {"head": head, "proposer": "head", "draft_tokens": 6, "context_length": 1024}
    with localspec.load(target=path, **usual) as engine:
        stats = engine.generate_raw("Once", sampling=GREEDY, max_tokens=512).reply().stats
    kept = stats.accepted_per_position[:5]
    for before, after in itertools.pairwise(kept):
        assert after / before == pytest.approx(0.9, abs=0.16)


@pytest.mark.parametrize("target", HEAD_TARGETS)
def test_head_agrees_only_where_it_reads_the_row_of_the_token_before(tmp_path, target):
    path, _, _ = made(tmp_path, "--target", target, "--head", "inside", "--agreement", 1)
    with localspec.load(target=path, proposer="none") as engine:
        tokens = engine.generate_raw("Once", sampling=GREEDY, max_tokens=64).reply().token_ids
    options = LlamaOptions(context_length=64, max_outputs=64, with_head=True)
    facts = head_facts(read_header(path))
    model = LlamaModel.open(path, options)
    head = open_head(model, None, options, facts)
    try:
        rows = inside.target_rows(head)
        best = model.decode(tokens, 64).argmax(axis=1)
        kept = np.empty((64, rows.width), dtype=np.float32)
        rows.copy_to(kept, 0)

        def share_with(shift: int) -> float:
            rows.go_on_at(0)
            rows.put(0, np.roll(kept, shift, axis=0))
            head.truncate(0)
            own = head.decode(tokens, 64).argmax(axis=1)
            # What came around the end of the roll is no row of a neighbour.
            return float(np.mean(own[8:-8] == best[8:-8]))

        assert share_with(0) == 1.0
        assert share_with(1) < 0.1
        assert share_with(-1) < 0.1
    finally:
        head.close()
        model.close()


def test_draft_of_another_shape_fits_a_hybrid(tmp_path):
    target, _, figures = made(tmp_path, "--target", "tiny-qwen35", "--draft", "tiny")
    assert head_facts(read_header(target)) is None
    for name in ("agreement", "overlap", "greedy_kept", "sampled_kept"):
        assert figures[name] == pytest.approx(0.8, abs=0.16), name


def test_head_in_a_file_of_its_own_leaves_the_target_as_it_is_for_others(tmp_path):
    """One target serves heads of every agreement, and drafts; a head in it is another file."""
    target, head, _ = made(tmp_path, "--target", "tiny-hy_v3", "--head", "apart")
    same, other, _ = made(
        *(tmp_path, "--target", "tiny-hy_v3", "--head", "apart", "--agreement", 0.5)
    )
    with_draft, _, _ = made(tmp_path, "--target", "tiny-hy_v3", "--draft", "tiny")
    within, _, _ = made(tmp_path, "--target", "tiny-hy_v3", "--head", "inside")
    assert target == same == with_draft != within
    assert head != other
    assert head_facts(read_header(head)).is_apart
    assert not head_facts(read_header(within)).is_apart
    again = made(tmp_path / "b", "--target", "tiny-hy_v3", "--head", "inside")[0]
    assert again.read_bytes() == within.read_bytes()


def test_same_options_give_the_same_bytes(tmp_path):
    """And the target is shared by drafts of another agreement."""
    first, draft, _ = make(tmp_path / "a")
    again, same, _ = make(tmp_path / "b")
    assert first.read_bytes() == again.read_bytes()
    assert draft.read_bytes() == same.read_bytes()
    target, other, _ = make(tmp_path / "a", "--agreement", 0.5)
    assert target == first
    assert other != draft


def test_text_goes_through_the_tokenizer_unchanged_and_repeats_as_asked(tmp_path):
    target, _, _ = make(tmp_path, "--period", 16)
    with localspec.load(target=target) as engine:
        reply = engine.generate_raw("Once", sampling=GREEDY, max_tokens=48).reply()
        assert engine.vocabulary.tokenize(reply.text, parse_special=False) == list(
            reply.token_ids
        )
    assert reply.finish_reason == "length"
    assert reply.token_ids[:16] == reply.token_ids[16:32] == reply.token_ids[32:]
    assert len(set(reply.token_ids)) == 16


def test_agreements_take_turns_along_the_text(tmp_path):
    """With shares of 1 and 0: whole segments accepted, whole segments refused."""
    options = ("--agreement", 1, 0, "--segment", 10, "--entropy", 0)
    target, draft, _ = make(tmp_path, *options)
    with localspec.load(target=target, draft=draft, draft_tokens=1) as engine:
        pieces = list(engine.generate_raw("Once", sampling=GREEDY, max_tokens=100))
    where = localspec.Provenance
    refused = [i for i, piece in enumerate(pieces) if piece.provenance is where.RECOVERED]
    # A token after an accepted draft token is not judged, so a segment may lack its first.
    assert len(refused) >= 40
    assert len({i % 20 for i in refused}) <= 10


def test_file_says_what_it_is(tmp_path):
    header = read_header(make(tmp_path, "--quantization", "Q8_0")[0])
    assert header.architecture == "qwen2"
    assert header.number("qwen2.block_count") == 2
    assert header.number("general.file_type") == 7  # mostly Q8_0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--agreement", 1.5), "agreement is (1.5,)"),
        (("--entropy", 3), "entropy is 3.0"),
        (("--period", 10, "--agreement", 1, 0), "cuts the turns of 128 tokens"),
        (("--draft", "0.5B"), "different vocabularies"),
        (("--period", 1000), "3 places of the same phase"),
        (("--draft", "tiny-hy_v3"), "tiny-hy_v3 is a shape of targets"),
        (("--head", "inside"), "tiny has no head"),
        (("--target", "tiny-qwen35", "--head", "inside", "--period", 12), "cuts the 8 phases"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path, options, words):
    drafting = () if "--head" in options else ("--draft", "tiny")
    done = run("--target", "tiny", *drafting, "--out", tmp_path, *options)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Hint: " in done.stderr
    assert "Traceback" not in done.stderr
