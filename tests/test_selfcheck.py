"""`localspec verify` on the demo pair: it passes what is right and finds what is planted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import localspec
from localspec import rules, speculative, verify
from localspec.cli import main
from localspec.rounding import Rounding
from localspec.selfcheck import check
from localspec.verify import Verdict


def run_check(engine, num_prompts=2, samples=700):
    chat = engine.chat()
    prompts = [chat.prompt_tokens(f"Tell me a story about {who}.") for who in ("a fox", "rain")]
    return check(
        engine,
        prompts[:num_prompts],
        budget_s=600,
        max_samples=samples,
        progress=lambda _stage, _share: None,
    )


def test_the_demo_pair_holds():
    with localspec.load() as engine:
        policy = engine.draft_length
        report = run_check(engine)
        assert engine.draft_length is policy
        assert engine.generate("Once", max_tokens=3).token_ids
    assert report.holds
    assert report.bugs == []
    assert report.rounding.num_rows > 200
    assert report.greedy.num_texts == report.seeded.num_texts == 8
    assert report.greedy.num_accepted > 100
    assert {(law.rule, law.view) for law in report.laws} == {
        (rule, view)
        for rule in ("token", "block", "coupled")
        for view in ("rank", "token id", "overrated by the draft")
    }
    assert all(law.num_tokens >= 700 for law in report.laws if law.view == "rank")
    assert report.confirmations == ()


def too_ready(targets, drafts, draft_tokens, accept_uniforms, residual_uniform):
    """Keeps whatever is proposed."""
    return Verdict(len(draft_tokens), targets[-1].draw(residual_uniform))


def off_by_one(targets, draft_tokens, choose):
    """Judges every draft token by the row behind it."""
    return RIGHT_MATCH([*targets[1:], targets[-1]], draft_tokens, choose)


RIGHT_MATCH = verify.match


@pytest.mark.parametrize(
    ("place", "name", "planted", "words"),
    [
        (verify, "token", too_ready, "rule token"),
        (verify, "block", too_ready, "rule block"),
        (verify, "match", off_by_one, "greedy text"),
        (verify, "argmax", lambda _index, row: int(row.ids[-1]), None),
        (
            rules.Randomness,
            "race",
            lambda self, index, law: law.draw(float(self._noise(index, np.array([0]))[0]) ** 2),
            "rule coupled",
        ),
        (
            speculative.Speculation,
            "_truncate_caches",
            lambda self, length: None if self.tokens else self.target.truncate(0),
            "",
        ),
    ],
    ids=[
        "token too ready",
        "block too ready",
        "row behind",
        "harmless",
        "bad noise",
        "no undo",
    ],
)
def test_planted_bugs_are_found(monkeypatch, place, name, planted, words):
    """And named. One is no bug: any choice from a one-hot row is the same."""
    with localspec.load() as engine:
        monkeypatch.setattr(place, name, planted)
        if words == "":
            # Without undo the cache soon fills: an error is a finding as well.
            with pytest.raises(localspec.LocalspecError):
                run_check(engine)
            monkeypatch.undo()
            return
        report = run_check(engine)
    monkeypatch.undo()
    if words is None:
        assert report.holds
    else:
        assert any(words in line for line in report.bugs), report


def test_rounding_is_measured_where_it_matters():
    rounding = Rounding()
    row = np.array([5.0, 4.999, -30.0, 0.0], dtype=np.float32)
    moved = np.array([4.998, 5.0, -20.0, 0.001], dtype=np.float32)
    rounding.add(row, moved)
    rounding.add(row, row)
    assert (rounding.num_rows, rounding.num_argmax_changed) == (2, 1)
    assert rounding.largest_difference == pytest.approx(0.002, rel=1e-3)
    assert rounding.widest_gap_changed == pytest.approx(0.001, rel=1e-3)


def run(*arguments):
    return CliRunner().invoke(main, ["verify", *arguments])


def test_the_command_says_so_in_words_and_in_json(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Hello!\n\nTell me a joke.\n")
    common = ["--prompts", str(prompts), "--samples", "100", "--seconds", "60"]
    spoken = run(*common)
    assert spoken.exit_code == 0, spoken.output
    assert spoken.stdout.splitlines()[-1].startswith("Verdict: lossless here")
    found = json.loads(run(*common, "--json").stdout)
    assert found["holds"] is True
    assert found["greedy"]["num_texts"] == 8
    assert len(found["laws"]) == 9


def test_the_command_fails_when_it_does_not_hold(monkeypatch):
    monkeypatch.setattr(verify, "match", off_by_one)
    failed = run("--samples", "100", "--seconds", "20")
    assert failed.exit_code == 1
    assert "NOT lossless" in failed.stdout
    assert "Bug: greedy text of prompt 1" in failed.stdout


@pytest.mark.parametrize(
    ("content", "words"), [(None, "No such file"), ("\n \n", "has no prompts")]
)
def test_bad_prompt_files_are_said(tmp_path, content, words):
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_text(content)
    result = run("--prompts", str(path))
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_prompt_that_fills_the_context_is_refused(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("word " * 100)
    result = run("--prompts", str(path), "--ctx", "64")
    assert result.exit_code == 1
    assert "context holds 64" in result.stderr
