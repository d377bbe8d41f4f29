"""`localspec verify` on the demo pair: it passes what is right and finds what is planted."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from interruptions import wish_at_decode

import inside
import localspec
from localspec.checks import distribution_check, selfcheck
from localspec.checks.distribution_check import BIAS, SAMPLED_TEXT_TOKENS, VIEWS
from localspec.checks.identity import ENOUGH_ACCEPTED
from localspec.checks.limit import EndedBy
from localspec.checks.rounding import Rounding
from localspec.checks.selfcheck import Finding, check
from localspec.cli import main
from localspec.cli.verify_report import report_json, report_text
from localspec.isolated.watch import Watch
from localspec.sampling.chain import SamplerChain
from localspec.speculative import rules, verify
from localspec.speculative.verify import Verdict
from localspec.streaming.cancellation import Cancellation


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


def run_check(engine, samples=700, names=("a fox", "rain"), watch=None, **fits):
    chat = engine.chat()
    return inside.measure(
        engine,
        check,
        [chat.prompt_tokens(f"Tell me a story about {name}.") for name in names],
        seconds=fits.pop("seconds", 600),
        num_samples=samples,
        watch=watch or Watch(lambda _stage, _left: None),
        options=localspec.AnswerOptions(**fits),
    )


def test_little_evidence_is_no_verdict(pair):
    """Identity and statistics are judged apart, and what is missing is said."""
    few = run_check(pair, 100, ("a fox", "rain", "an owl", "a whale", "two mice"))
    assert few.ended_by is None
    assert (few.identity, few.statistics) == (Finding.LOSSLESS, Finding.NOT_ENOUGH)
    assert few.finding is Finding.NOT_ENOUGH
    assert few.visible_bias > BIAS
    assert (few.identity_bugs, few.distribution_bugs) == ([], [])
    assert few.seconds_needed > 2 * few.time_s


def checked_until(engine, number, **options):
    """With a wish to end that comes when the number-th decode is asked for.

    Also how many decodes were done.
    """
    watch = Watch(lambda _stage, _left: None)
    with wish_at_decode(number, watch.cancellation) as done:
        report = run_check(engine, watch=watch, **options)
    return report, next(done)


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (("a fox",), (1, 2, 60)),
        (("a fox",), (100, 150, 200, 250)),
        (("a fox",), (300, 400, 500)),
        (("a fox",), (600, 700)),
        (("a fox", "rain"), (550, 800)),
    ],
    ids=["no draft yet", "greedy", "seeded", "sampled", "another prompt"],
)
def test_it_ends_in_the_midst_of_a_text_with_what_was_compared(
    pair, names, numbers, monkeypatch
):
    """Not one decode later, and what is right is never called wrong for being cut."""
    policy, before = inside.loop(pair).draft_policy, None
    for number in numbers:
        # The same texts each time, or later ends could have compared less.
        monkeypatch.setattr(distribution_check, "fresh_seed", itertools.count().__next__)
        report, num_decodes = checked_until(pair, number, names=names)
        assert num_decodes == number - 1
        assert inside.loop(pair).draft_policy is policy
        assert report.ended_by is EndedBy.INTERRUPT
        assert report.finding is Finding.NOT_ENOUGH
        assert (report.identity_bugs, report.distribution_bugs) == ([], [])
        for found in (report.greedy, report.seeded):
            near_ties = len(found.divergences)
            assert found.num_accepted - near_ties <= found.num_identical <= found.num_accepted
        compared = (
            report.greedy.num_tokens,
            report.seeded.num_tokens,
            sum(result.num_tokens for result in report.distributions),
        )
        assert before is None or compared >= before
        before = compared
        told = json.loads(json.dumps(report_json(report)))
        assert (told["partial"], told["ended_by"]) == (True, "interrupt")
        first, *_ = report_text(report, pair, details=True).splitlines()
        assert first.startswith("Not enough evidence for a verdict, stopped after ")
        num_accepted = report.greedy.num_accepted + report.seeded.num_accepted
        words = f": {num_accepted} of {num_accepted} drafted tokens are the target's own."
        assert first.endswith(words if num_accepted else ": no drafted token was compared yet.")
    assert pair.generate_raw("Once", max_tokens=3).reply().token_ids


def test_a_cut_text_counts_as_far_as_it_goes(pair):
    """Token by token: a text of K = 1 and 64 tokens takes 32 steps or more."""
    counts = [
        checked_until(pair, number)[0].greedy.num_accepted for number in range(200, 240, 10)
    ]
    assert counts == sorted(counts)
    assert len(set(counts)) > 2, counts


def test_the_time_ends_it_within_a_decode(pair, monkeypatch):
    """Counted in decodes; and it is no interrupt."""
    seen = []
    real = Cancellation.request

    def request(self):
        real(self)
        seen.append(pair.num_decodes)

    monkeypatch.setattr(Cancellation, "request", request)
    report = run_check(pair, 1_000_000, seconds=1.5)
    assert pair.num_decodes <= min(seen) + 1
    assert report.ended_by is EndedBy.TIME
    assert report.finding is Finding.NOT_ENOUGH
    assert report_json(report)["ended_by"] == "time"


def test_it_ends_while_a_long_prompt_is_read(monkeypatch):
    """Between two of its batches at the latest."""
    with localspec.load(context_length=2048, draft_tokens=3) as engine:
        watch = Watch(lambda _stage, _left: None)
        target, read = inside.target(engine), []

        def ask_to_end(num_cached):
            read.append(num_cached)
            watch.cancellation.request()

        target.on_batch = ask_to_end
        inside.keep_answers_settings(engine, monkeypatch)
        report = check(
            engine,
            [[300] * 2000],
            seconds=600,
            num_samples=100,
            watch=watch,
            options=localspec.AnswerOptions(),
        )
    assert len(read) == 1
    assert read[0] < 2000
    assert report.ended_by is EndedBy.INTERRUPT


@pytest.mark.process
def test_a_wish_reaches_a_check_in_another_process():
    """Whether it comes before, or while something is checked; and the engine goes on."""
    with localspec.IsolatedEngine() as engine:
        early, late = (Watch(lambda _stage, _left: None) for _ in range(2))
        early.cancellation.request()
        stages = []

        def end_soon(stage, _left):
            stages.append(stage)
            if stage.startswith("Checking sampled text"):
                late.cancellation.request()

        late = Watch(end_soon)
        reports = [run_check(engine, 1_000_000, watch=watch) for watch in (early, late)]
        assert engine.generate_raw("Once", max_tokens=3).reply().token_ids
    assert [report.ended_by for report in reports] == [EndedBy.INTERRUPT] * 2
    assert reports[0].greedy.num_tokens == 0
    assert reports[1].greedy.num_tokens > 0
    assert stages[0] == "Comparing greedy text 1 of 2: 0 of 200 tokens"


@pytest.mark.slow
def test_a_suspicion_that_time_left_open_is_no_verdict(monkeypatch, small_pair):
    """Neither of the two, whatever else was seen."""
    monkeypatch.setattr(verify, "token", too_ready)

    def end_when_asked_again(stage, _left):
        if stage.startswith("Testing suspect rules again"):
            watch.cancellation.request()

    watch = Watch(end_when_asked_again)
    names = ("a fox", "rain", "an owl", "a whale", "two mice")
    report = run_check(small_pair, None, names, watch=watch)
    assert report.visible_bias <= BIAS
    assert report.open_suspicions == ["token"]
    assert report.identity is Finding.LOSSLESS
    assert report.statistics is report.finding is Finding.NOT_ENOUGH
    assert report.seconds_needed > 3 * report.time_s
    _, _, _, statistics, advice, *_ = report_text(
        report, small_pair, details=False
    ).splitlines()
    assert "of the rule token look suspect; the second test was not finished" in statistics
    assert advice.startswith("A verdict needs about ")


@pytest.mark.slow
def test_a_draft_that_is_never_right_proves_no_identity(demo_draft, unrelated_draft):
    """However long it takes: every text is the target's, for none of it was the draft's."""
    with localspec.load(target=demo_draft, draft=unrelated_draft) as engine:
        report = run_check(engine, 100)
    assert report.identity is Finding.NOT_ENOUGH
    assert report.greedy.num_tokens > 400 > 20 > report.greedy.num_accepted
    assert report.is_hopeless


def test_tokens_that_no_draft_token_was_judged_for_are_no_evidence(demo_target):
    """A lookup finds little to propose; what is decoded plainly cannot be wrong."""
    with localspec.load(target=demo_target, proposer="lookup") as engine:
        report = run_check(engine, None, seconds=2)
    assert {distribution.view for distribution in report.distributions} == set(VIEWS[:2])
    assert report.statistics is Finding.NOT_ENOUGH
    assert max(distribution.num_tokens for distribution in report.distributions) < 200


def test_without_a_proposer_there_is_nothing_to_check(demo_target):
    with (
        localspec.load(target=demo_target, proposer="none") as engine,
        pytest.raises(localspec.OptionError, match="nothing to check"),
    ):
        run_check(engine)


def too_ready(targets, drafts, draft_tokens, accept_uniforms, residual_uniform):
    """Keeps whatever is proposed."""
    return Verdict(len(draft_tokens), targets[-1].draw(residual_uniform))


def off_by_one(targets, draft_tokens, choose):
    """Judges every draft token by the row after it."""
    return RIGHT_MATCH([*targets[1:], targets[-1]], draft_tokens, choose)


RIGHT_MATCH = verify.match


def bad_noise(self, index, distribution):
    return distribution.draw(float(self.noise(index, np.array([0]))[0]) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "planted", "words", "samples"),
    [
        (verify, "block", too_ready, "rule block", 400),
        (verify, "token", too_ready, "rule token", 700),
        (verify, "match", off_by_one, "greedy text", 100),
        (rules.Randomness, "gumbel_max", bad_noise, "rule coupled", 700),
    ],
    ids=["rule block", "rule token", "greedy text", "rule coupled"],
)
def test_planted_bugs_are_found(monkeypatch, small_pair, place, name, planted, words, samples):
    """And named."""
    monkeypatch.setattr(place, name, planted)
    report = run_check(small_pair, samples)
    bugs = [*report.identity_bugs, *report.distribution_bugs]
    assert any(words in line for line in bugs), report
    assert report.finding is Finding.NOT_LOSSLESS
    if words in ("rule token", "rule block"):
        assert report.identity is not Finding.NOT_LOSSLESS


@pytest.mark.slow
def test_what_is_no_bug_is_none(monkeypatch, small_pair):
    """Any choice from a one-hot row is the same."""
    monkeypatch.setattr(verify, "argmax", lambda _index, row: int(row.ids[-1]))
    report = run_check(small_pair)
    assert [*report.identity_bugs, *report.distribution_bugs] == []


def test_a_cache_that_is_not_undone_is_an_error(monkeypatch):
    """It soon fills, which is a finding as well."""

    def keep(self, length):
        if not self.tokens:
            self.target.truncate(0)

    with localspec.load() as engine:
        inside.replace_truncation(keep, monkeypatch)
        with pytest.raises(localspec.LocalspecError):
            run_check(engine)
        monkeypatch.undo()


@pytest.mark.slow
def test_a_suspicion_is_decided_by_four_times_the_tokens(monkeypatch, small_pair):
    """Here it was right at first, and would not be borne out."""
    monkeypatch.setattr(verify, "token", too_ready)
    inside.before_confirmation(monkeypatch.undo, monkeypatch)
    report = run_check(small_pair)
    [first] = [
        distribution
        for distribution in report.distributions
        if (distribution.rule, distribution.view) == ("token", "rank")
    ]
    again = {
        distribution.view: distribution
        for distribution in report.confirmations
        if distribution.rule == "token"
    }
    assert again["rank"].num_tokens >= 4 * first.num_tokens
    assert report.distribution_bugs == []
    assert report.statistics is not Finding.NOT_LOSSLESS


def test_no_number_of_seconds_is_told():
    result = run("--seconds", "nan")
    assert result.exit_code == 2
    assert "nan is not a number of seconds" in result.stderr


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


@pytest.fixture
def stories(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text(
        "".join(f"Tell me a story about {x}.\n" for x in ("a fox", "an owl", "rain"))
    )
    return str(path)


@pytest.mark.slow
def test_the_demo_pair_is_lossless_and_the_verdict_comes_first(tmp_path, monkeypatch):
    """With as much evidence as a verdict takes, and no more; and the rest on request."""
    path, reports = tmp_path / "prompts.txt", []
    names = ("a fox", "rain", "an owl", "a whale", "two mice")
    path.write_text("".join(f"Tell me a story about {name}.\n" for name in names))

    def kept(engine, *arguments, **keywords):
        policy = inside.loop(engine).draft_policy
        reports.append(check(engine, *arguments, **keywords))
        assert inside.loop(engine).draft_policy is policy
        return reports[0]

    monkeypatch.setattr(selfcheck, "check", kept)
    spoken = run("--prompts", str(path), "--seconds", "36000")
    assert spoken.exit_code == 0, spoken.output
    first, rows, identity, statistics, more = spoken.stdout.splitlines()
    assert re.match(r"Lossless: (\d+) of \1 drafted tokens are the target's own, and", first)
    assert re.match(
        r"Equal to the bit: \d+ of \d+ rows of logits, from decodes of 2 to 17", rows
    )
    assert identity.startswith("Identity: lossless. 2")
    assert statistics.startswith("Statistics: lossless. Of ")
    assert "a bias of 3.0% would have been seen." in statistics
    assert "--details" in more
    [report] = reports
    assert report.finding is report.identity is report.statistics is Finding.LOSSLESS
    assert (report.identity_bugs, report.distribution_bugs) == ([], [])
    assert report.rounding.num_rows > 200
    for found in (report.greedy, report.seeded):
        assert ENOUGH_ACCEPTED <= found.num_accepted < ENOUGH_ACCEPTED + 192
        assert found.num_accepted < found.num_tokens
        assert found.smallest_fault < 0.012
    assert {
        (distribution.rule, distribution.view) for distribution in report.distributions
    } == {(rule, view) for rule in ("token", "block", "coupled") for view in VIEWS}
    assert all(distribution.smallest_bias <= BIAS for distribution in report.distributions)
    assert report.visible_bias > 0.8 * BIAS


@pytest.mark.slow
def test_too_little_has_an_exit_code_and_words_of_its_own(stories):
    common = ("--prompts", stories, "--samples", "100")
    spoken = run(*common, "--details")
    assert spoken.exit_code == 3
    first, _, identity, statistics, advice, *others = spoken.stdout.splitlines()
    assert re.match(
        r"Not enough evidence for a verdict, after \d+ s: (\d+) of \1 drafted tokens are", first
    )
    assert identity.startswith("Identity: lossless. ")
    assert (counted := re.match(r"Statistics: not enough evidence\. Of (\d+) ", statistics))
    assert 3 * 100 <= int(counted[1]) < 3 * (100 + SAMPLED_TEXT_TOKENS)
    assert statistics.endswith(" or more would show; a verdict needs 3%.")
    assert re.match(r"A verdict needs about \d+ \w+ here: --seconds \d+0\.", advice)
    assert sum("p = " in line for line in others) == 9
    as_json = run(*common, "--json")
    found = json.loads(as_json.stdout)
    assert as_json.exit_code == 3
    assert found["finding"] == found["statistics"] == "not enough evidence"
    assert found["identity"] == "lossless"
    assert (found["partial"], found["ended_by"]) == (False, None)
    assert found["seconds_needed"] > 0
    assert len(found["distributions"]) == 9


def test_nothing_seen_is_no_good_news(pair, stories):
    """It is called too little; and nothing is shown on the way where nobody looks."""
    report, _ = checked_until(pair, 1)
    _, identity, statistics, advice, *_ = report_text(report, pair, details=False).splitlines()
    assert identity.endswith("a verdict needs 200 of each.")
    assert statistics == (
        "Statistics: not enough evidence. 0 sampled tokens were tested, too few to see any "
        "bias."
    )
    assert advice.startswith("How long a verdict takes is not known yet")
    spoken = run("--prompts", stories, "--proposer", "lookup", "--seconds", "1")
    assert spoken.exit_code == 3
    assert "no bias" not in spoken.stdout
    assert "100.0%" not in spoken.stdout
    assert spoken.stderr == ""


@pytest.mark.slow
def test_the_command_fails_when_it_does_not_hold(monkeypatch, stories):
    monkeypatch.setattr(verify, "match", off_by_one)
    failed = run("--prompts", stories, "--samples", "100")
    assert failed.exit_code == 1
    lines = failed.stdout.splitlines()
    assert lines[0] == "NOT lossless: please report this."
    assert lines[2].startswith("Identity: NOT lossless. ")
    assert lines[4].startswith("Bug: greedy text of prompt 1")


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


NAMES = {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 4}


@pytest.mark.slow
def test_constrained_texts_are_checked_and_wrong_rows_are_found(small_pair, monkeypatch):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    report = run_check(small_pair, json_schema=NAMES)
    assert report.finding is not Finding.NOT_LOSSLESS
    assert report.greedy.num_accepted > 50
    own = SamplerChain.distributions

    def flattened(chain, rows, tokens, draft_tokens):
        """Where something is drafted: of what is allowed, but too much of the unlikely."""
        found = own(chain, rows, tokens, draft_tokens)
        if not draft_tokens:
            return found
        flat = [each.probs**0.6 for each in found]
        return [
            each._replace(probs=probs / probs.sum())
            for each, probs in zip(found, flat, strict=True)
        ]

    monkeypatch.setattr(SamplerChain, "distributions", flattened)
    assert run_check(small_pair, json_schema=NAMES).finding is Finding.NOT_LOSSLESS
