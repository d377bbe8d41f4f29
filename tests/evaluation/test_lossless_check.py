"""`localspec verify` on the demo pair: it passes what is right and finds what is planted."""

from __future__ import annotations

import functools
import json
import re

import numpy as np
import pytest

import command_line
import inside
import localspec
from interruptions import wish_at_decode
from localspec.cli.evaluation_reports import report_text
from localspec.cli.json_output import to_json
from localspec.evaluation import lossless_check
from localspec.evaluation.identity import ENOUGH_ACCEPTED, Rounding
from localspec.evaluation.lossless_check import Finding, check
from localspec.evaluation.time_left import Pace
from localspec.evaluation.time_limit import EndedBy
from localspec.speculative import verify
from localspec.streaming.cancellation import Watch
from spawned import count_until_wished
from toy import TableModel


@pytest.fixture(scope="module")
def pair():
    """The demo pair; a check leaves it as it was."""
    with localspec.load() as engine:
        yield engine


@pytest.fixture(scope="module")
def small_pair(demo_draft, blurred_draft):
    """A pair whose decodes take little time; a check leaves it as it was."""
    with localspec.load(target=demo_draft, draft=blurred_draft) as engine:
        yield engine


def run_check(engine, names=("a fox", "rain"), watch=None, **fits):
    chat = engine.chat()
    return inside.measure(
        engine,
        check,
        [chat.prompt_tokens(f"Tell me a story about {name}.") for name in names],
        seconds=fits.pop("seconds", 600),
        watch=watch or Watch(lambda _stage, _left: None),
        options=localspec.AnswerOptions(**fits),
    )


def test_it_ends_in_the_midst_of_a_text_with_what_was_compared(pair):
    """Not one decode later, and what is right is never called wrong for being cut."""
    policy, before = inside.loop(pair).draft_policy, (0, 0)
    for number in (1, 60, 400):
        watch = Watch(lambda _stage, _left: None)
        with wish_at_decode(number, watch.cancellation) as done:
            report = run_check(pair, watch=watch)
        assert next(done) == number - 1
        assert inside.loop(pair).draft_policy is policy
        assert report.ended_by is EndedBy.INTERRUPT
        assert report.finding is Finding.NOT_ENOUGH
        assert report.bugs == []
        for found in (report.greedy, report.seeded):
            near_ties = len(found.divergences)
            assert found.num_accepted - near_ties <= found.num_identical <= found.num_accepted
        compared = report.greedy.num_tokens, report.seeded.num_tokens
        assert compared >= before
        before = compared
        told = json.loads(json.dumps(to_json(report)))
        assert (told["partial"], told["ended_by"]) == (True, "interrupt")
        first, *_ = report_text(report).splitlines()
        assert first.startswith("Not enough evidence for a verdict, stopped after ")
        num_accepted = report.greedy.num_accepted + report.seeded.num_accepted
        words = f": {num_accepted} of {num_accepted} drafted tokens are the target's own."
        assert first.endswith(words if num_accepted else ": no drafted token was compared yet.")
    assert pair.generate_raw("Once", max_tokens=3).reply().token_ids


def test_its_progress_counts_each_number_of_draft_tokens(small_pair):
    """A text of a large target takes long, and a person sees that it gets on."""
    stages = []
    run_check(small_pair, watch=Watch(lambda stage, _left: stages.append(stage)))
    counts = [stage for stage in stages if stage.startswith("Comparing greedy text 1 of 2: ")]
    assert len(set(counts)) >= 3


def test_its_estimate_knows_a_text_that_is_written(small_pair, monkeypatch):
    shown = []
    monkeypatch.setattr(Pace, "seconds_left", lambda pace, _identities: pace.is_comparing)
    run_check(small_pair, watch=Watch(lambda _stage, left: shown.append(left)))
    # Before a text is written, and before each comparison.
    num_texts = shown.count(False)
    assert shown == [False, True, True, True] * num_texts


def test_near_ties_are_named_beside_the_tokens_that_are_right(pair):
    report = run_check(pair, names=("a fox",))
    assert "near ties" not in report_text(report)
    num_accepted = report.greedy.num_accepted + report.seeded.num_accepted
    report.greedy.num_identical -= 2
    words = (
        f"{num_accepted - 2} of {num_accepted} drafted tokens are the target's own (near ties"
    )
    assert f"{words}, which rounding decides: 2)" in report_text(report).replace("\n", " ")


@pytest.mark.process
def test_a_wish_reaches_a_check_in_another_process():
    """While it runs, and it tells of itself; the engine goes on."""
    watch = Watch(
        lambda stage, left_s: told.append((stage, left_s)) or watch.cancellation.request()
    )
    told = []
    with localspec.IsolatedEngine() as engine:
        assert inside.measure(engine, count_until_wished, 9, watch=watch) == 9
        assert engine.generate_raw("Once", max_tokens=3).reply().token_ids
    assert told == [("counted to 9", 1.5)]


@pytest.mark.slow
def test_a_draft_that_is_never_right_proves_no_identity(demo_draft, unrelated_draft):
    """However long it takes: every text is the target's, for none of it was the draft's."""
    with localspec.load(target=demo_draft, draft=unrelated_draft) as engine:
        report = run_check(engine)
    assert report.finding is Finding.NOT_ENOUGH
    assert report.greedy.num_tokens > 300 > 20 > report.greedy.num_accepted
    assert report.is_hopeless


def test_without_a_proposer_there_is_nothing_to_check(demo_target):
    with (
        localspec.load(target=demo_target, proposer="none") as engine,
        pytest.raises(localspec.OptionError, match="nothing to check"),
    ):
        run_check(engine)


def off_by_one(targets, draft_tokens, choose):
    """Judges every draft token by the row after it."""
    return RIGHT_MATCH([*targets[1:], targets[-1]], draft_tokens, choose)


RIGHT_MATCH = verify.match


def test_a_planted_bug_is_found(monkeypatch, small_pair):
    """And named, without waiting for more evidence: the first one is enough."""
    monkeypatch.setattr(verify, "match", off_by_one)
    report = run_check(small_pair)
    [bug] = report.bugs
    assert "greedy text" in bug
    assert report.finding is Finding.NOT_LOSSLESS
    told = to_json(report)
    assert told["finding"] == told["identity"] == "NOT lossless"
    assert told["bugs"] == told["identity_bugs"] == [bug]


def test_another_token_in_the_cache_is_a_finding(monkeypatch):
    def spoil(loop, length):
        """Cut, and leave another token where the last one was that is kept."""
        target = loop.target
        num_kept = min(target.num_cached, length)
        target.truncate(num_kept)
        for proposer in loop.proposers:
            proposer.truncate(length)
        if loop.tokens and num_kept > 1:
            target.truncate(num_kept - 1)
            target.decode([loop.tokens[0]], 0)

    with localspec.load() as engine:
        inside.replace_truncation(spoil, monkeypatch)
        report = run_check(engine, names=("a fox",))
        monkeypatch.undo()
    assert report.finding is Finding.NOT_LOSSLESS


def test_rounding_is_measured_where_it_matters():
    rounding = Rounding()
    row = np.array([5.0, 4.999, -30.0, 0.0], dtype=np.float32)
    moved = np.array([4.998, 5.0, -20.0, 0.001], dtype=np.float32)
    rounding.add(row, moved)
    rounding.add(row, row)
    assert (rounding.num_rows, rounding.num_argmax_changed) == (2, 1)
    assert rounding.largest_difference == pytest.approx(0.002, rel=1e-3)
    assert rounding.widest_gap_changed == pytest.approx(0.001, rel=1e-3)


def test_a_text_that_is_too_short_for_a_batch_names_no_such_batch():
    """Its five rows are compared in batches of two and four tokens, and of no more."""
    tokens = [1, 2, 3, 4, 5]
    alone = TableModel()
    rows = np.concatenate([alone.decode([token], 1).copy() for token in tokens])
    rounding = Rounding()
    rounding.measure(TableModel(), rows, tokens)
    assert rounding.num_rows == rounding.num_equal == 8
    assert rounding.largest_size == 4


run = functools.partial(command_line.run, "verify")


@pytest.fixture
def stories(tmp_path):
    path, names = tmp_path / "prompts.txt", ("a fox", "rain", "an owl", "a whale", "two mice")
    path.write_text("".join(f"Tell me a story about {name}.\n" for name in names))
    return str(path)


@pytest.mark.slow
def test_the_demo_pair_is_lossless_and_the_verdict_comes_first(stories, monkeypatch):
    """With as much evidence as a verdict takes, and no more; and the rest on request."""
    reports = []

    def kept(*arguments, **keywords):
        reports.append(check(*arguments, **keywords))
        return reports[0]

    monkeypatch.setattr(lossless_check, "check", kept)
    spoken = run("--prompts", stories, "--seconds", "36000")
    assert spoken.exit_code == 0, spoken.output
    first, rows, identity, more = spoken.stdout.splitlines()
    assert re.match(r"Lossless: (\d+) of \1 drafted tokens are the target's own, as far", first)
    assert re.match(
        r"Equal to the bit: \d+ of \d+ rows of logits, whether tokens .* 2 to 17 at once", rows
    )
    assert identity.startswith("Identity: lossless. 1")
    assert "an error in 1.1% of them would have been seen." in identity
    assert "--json" in more
    [report] = reports
    assert report.finding is Finding.LOSSLESS
    assert report.rounding.num_rows > 100
    for found in (report.greedy, report.seeded):
        assert ENOUGH_ACCEPTED <= found.num_accepted < ENOUGH_ACCEPTED + 8
        assert found.num_accepted < found.num_tokens
    assert report.smallest_fault < 0.012
    told = json.loads(json.dumps(to_json(report)))
    assert told["finding"] == "lossless"
    assert (told["partial"], told["bugs"]) == (False, [])


@pytest.mark.slow
def test_the_command_fails_when_it_does_not_hold(monkeypatch, stories):
    monkeypatch.setattr(verify, "match", off_by_one)
    failed = run("--prompts", stories)
    assert failed.exit_code == 1
    lines = failed.stdout.splitlines()
    assert lines[0] == "NOT lossless: please report this."
    assert lines[3].startswith("Bug: greedy text of prompt 1")


@pytest.mark.parametrize(
    ("content", "arguments", "code", "words"),
    [
        (None, (), 2, "No such file"),
        ("\n \n", (), 2, "has no prompts"),
        ("word " * 100, ("--ctx", "64"), 1, "context holds 64"),
        ("Hello", ("--seconds", "x"), 2, "'x' is not a valid float"),
    ],
)
def test_what_cannot_be_checked_is_said(tmp_path, content, arguments, code, words):
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_text(content)
    result = run("--prompts", str(path), *arguments)
    assert result.exit_code == code
    assert words in result.stderr


NAMES = {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 4}


@pytest.mark.slow
def test_constrained_texts_are_checked_and_wrong_rows_are_found(small_pair, monkeypatch):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    report = run_check(small_pair, json_schema=NAMES)
    assert report.finding is not Finding.NOT_LOSSLESS
    assert report.greedy.num_accepted > 50
    inside.flatten_drafted_rows(monkeypatch)
    assert run_check(small_pair, json_schema=NAMES).finding is Finding.NOT_LOSSLESS
