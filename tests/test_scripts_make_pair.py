"""The maker of pairs: its files load, and do what was asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import localspec
from localspec.gguf_file.header import read_header
from localspec.sampling.params import SamplingParams

SCRIPT = Path(__file__).parent.parent / "scripts/measure/make_pair.py"
GREEDY = SamplingParams(temperature=0.0)


def run(*options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
    )


def make(folder: Path, *options: object) -> tuple[Path, Path, dict[str, float]]:
    """Target, draft, and the figures of --check."""
    done = run("--target", "tiny", "--draft", "tiny", "--out", folder, "--check", *options)
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
        reply = engine.generate("Once", sampling=GREEDY, max_tokens=48)
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
        pieces = list(engine.stream("Once", sampling=GREEDY, max_tokens=100))
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
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path, options, words):
    done = run("--target", "tiny", "--draft", "tiny", "--out", tmp_path, *options)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Hint: " in done.stderr
    assert "Traceback" not in done.stderr
