"""`localspec bench` on the demo pair: real decodes, numbers that agree with each other."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from interruptions import wish_at_decode

import inside
import localspec
from localspec.checks import bench
from localspec.checks.bench import SWEEP, Comparison, Outcome, Side, run_bench
from localspec.checks.limit import EndedBy
from localspec.cli import exit_codes, main
from localspec.cli.bench_report import bench_json, bench_text, verdict
from localspec.isolated.watch import Watch
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.speculative.metrics import Meter
from localspec.speculative.policy_api import DraftOff
from localspec.streaming.cancellation import Cancellation

UNWATCHED = {"seconds": None, "watch": Watch(lambda *_: None)}
SMALL = ("--max-tokens", "12", "--rounds", "2")


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("Tell me a story about a fox.\nWhat is 2 times 3?\n")
    return path


@pytest.fixture
def one_timing(monkeypatch):
    """Each size of decode is timed once, not five times: that tells nothing of what is said."""
    monkeypatch.setattr(bench, "NUM_STEP_ROUNDS", 1)


def run(*arguments: object):
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def test_numbers_of_a_bench_agree():
    told = []
    with localspec.load() as engine:
        prompts = [
            engine.vocabulary.tokenize(text, parse_special=True) for text in ("A fox", "I")
        ]
        policy = inside.loop(engine).draft_policy
        found = run_bench(
            engine,
            prompts,
            num_rounds=2,
            max_tokens=10,
            seconds=None,
            watch=Watch(lambda stage, left: told.append((stage, left))),
        )
        assert inside.loop(engine).draft_policy is policy
        assert isinstance(policy, AdaptiveDraftPolicy)
        # Every size was measured, so the next run knows them.
        assert set(policy.target_cost.measured(0)) == set(range(1, 18))
    assert found.ended_by is None
    assert found.num_rounds == 2
    timing, comparing, trying = (
        [left for stage, left in told if stage.startswith(begin)]
        for begin in ("Timing decodes", "Comparing", "Trying")
    )
    assert (len(timing), len(comparing), len(trying)) == (5 * 17, 2 * 2 * 2, len(SWEEP))
    assert set(timing) == {None}  # nobody knows yet
    assert all(left > 0 for left in (*comparing, *trying))
    assert told[0][0] == "Timing decodes of 1 to 17 tokens, 0 of 85"
    assert told[85][0] == "Comparing greedy: round 1 of 2, prompt 1 of 2"
    assert [comparison.name for comparison in found.comparisons] == ["greedy", "sampling"]
    for comparison in found.comparisons:
        assert len(comparison.ratios) == 2
        assert len(comparison.plain.answers) == len(comparison.speculative.answers) == 4
        assert all(s.num_draft_tokens == 0 for s in comparison.plain.answers)
        assert all(s.cached_prompt_tokens == 0 for s in comparison.speculative.answers)
        assert sum(comparison.steps_per_length) == sum(
            s.num_steps for s in comparison.speculative.answers
        )
    greedy = found.comparisons[0]
    for plain, drafted in zip(greedy.plain.answers, greedy.speculative.answers, strict=True):
        assert plain.completion_tokens == drafted.completion_tokens
    assert len(found.costs.target_s) == 17
    assert found.costs.ratios[0] == 1.0
    assert found.predicted(0.5)[0] == 1.0
    assert found.peak_memory_bytes > 10_000_000


def bench_ended_at(engine, number):
    """By a wish that comes when the number-th decode is asked for; and how many were done."""
    watch = Watch(lambda *_: None)
    with wish_at_decode(number, watch.cancellation) as done:
        found = run_bench(
            engine,
            [engine.tokenize(text) for text in ("A fox", "I", "The sea")],
            num_rounds=2,
            max_tokens=5,
            seconds=None,
            watch=watch,
        )
    return found, next(done)


def test_what_is_known_is_kept_whenever_it_ends(monkeypatch):
    """In the midst of a decode, and only what is whole counts."""
    monkeypatch.setattr(bench, "NUM_STEP_ROUNDS", 2)
    with localspec.load(draft_tokens=3) as engine:
        whole, num_all = bench_ended_at(engine, 0)
        assert whole.ended_by is None
        policy = inside.loop(engine).draft_policy
        outcomes, parts = set(), set()
        for number in (1, *range(40, num_all, num_all // 9), num_all):
            found, num_decodes = bench_ended_at(engine, number)
            assert inside.loop(engine).draft_policy is policy
            assert found.ended_by is EndedBy.INTERRUPT
            assert num_decodes == number - 1  # and not one more
            parts.add((found.costs is not None, len(found.comparisons), len(found.sweep)))
            for each in found.comparisons:
                outcomes.add(each.outcome)
                assert each.num_prompts + each.missing_prompts == 3
                assert len(each.plain.answers) == len(each.ratios) * each.num_prompts
                assert len(each.speculative.answers) == len(each.plain.answers)
                assert each.missing_prompts == 0 or len(each.ratios) == 1
            told = json.loads(json.dumps(bench_json(found)))
            assert (told["partial"], told["ended_by"]) == (True, "interrupt")
            first, *_, last = bench_text(found, engine, details=False).splitlines()
            assert "Stopped after " in last
            assert first.startswith("Nothing to compare yet") == (not found.comparisons)
        assert engine.generate_raw("A fox", max_tokens=5).reply().token_ids
    assert {Outcome.PART_OF_A_ROUND, Outcome.ONE_ROUND} <= outcomes
    assert (False, 0, 0) in parts
    assert (True, 0, 0) in parts
    assert {(True, 1, 0), (True, 2, 0)} <= parts
    assert any(num_sizes for _, _, num_sizes in parts)


def test_the_time_ends_it_within_a_decode(monkeypatch):
    """Counted in decodes; and it is no interrupt."""
    seen = []
    real = Cancellation.request

    with localspec.load() as engine:

        def request(self):
            real(self)
            seen.append(engine.num_decodes)

        monkeypatch.setattr(Cancellation, "request", request)
        found = run_bench(
            engine,
            [engine.tokenize("A fox")],
            num_rounds=10_000,
            max_tokens=64,
            seconds=1.5,
            watch=Watch(lambda *_: None),
        )
        assert engine.num_decodes <= min(seen) + 1
    assert found.ended_by is EndedBy.TIME
    assert bench_json(found)["ended_by"] == "time"


def test_a_target_alone_has_no_draft_to_measure(demo_target, one_timing):
    with localspec.load(target=demo_target) as engine:
        found = run_bench(engine, [[300] * 9], num_rounds=1, max_tokens=4, **UNWATCHED)
    assert (found.costs.draft_token_s, found.sweep, found.break_even) == (None, {}, None)


def test_the_verdict_comes_first_and_the_rest_on_request(prompts_file, one_timing):
    shown = run("--prompts", prompts_file, *SMALL)
    assert shown.exit_code == 0, shown.output
    first, *others = shown.stdout.splitlines()
    assert "times plain (" in first
    assert any(f"{outcome.value}".lower() in first.lower() for outcome in Outcome)
    assert others[-1] == "Measured in 2 rounds. For costs and more: --details."
    assert len(others) <= 3
    detailed = run("--prompts", prompts_file, "--details", *SMALL)
    assert "times plain (" in detailed.stdout.splitlines()[0]
    assert "Cost of decoding n tokens, in target-only steps:  1: 1.00" in detailed.stdout
    assert "Peak memory" in detailed.stdout


def compared(target_only_s, ours_s, name="greedy", num_drafted=3):
    """Seconds per round of 100 tokens, by hand."""
    meter = Meter(1, 0, 0.0, draft_off_steps={DraftOff.DOES_NOT_PAY: 5})
    meter.steps_per_length[num_drafted] += 1
    sides = (
        Side(tuple(100 / s for s in seconds), 0.1, (meter.stats(1.0, None, None),))
        for seconds in (target_only_s, ours_s)
    )
    return Comparison(name, *sides, round_s=10.0, num_prompts=1)


@pytest.mark.parametrize(
    ("ours_s", "outcome", "words"),
    [
        ((0.77, 0.75, 0.76), Outcome.FASTER, "Faster: greedy 1.32 times plain (1.2"),
        ((1.10, 1.12, 1.11), Outcome.SLOWER, "Slower: greedy 0.90 times plain (0.8"),
        # What was called faster, and slower, by the median of three.
        ((0.7, 0.99, 0.81), Outcome.NO_DIFFERENCE, "No difference seen: greedy 1.20 times"),
        ((1.2, 1.15, 0.99), Outcome.NO_DIFFERENCE, "No difference seen: greedy 0.90 times"),
        ((0.5,), Outcome.ONE_ROUND, "One round cannot tell: greedy 2.00 times plain."),
    ],
)
def test_a_verdict_needs_an_interval_without_one(ours_s, outcome, words):
    found = compared([1.0] * len(ours_s), ours_s)
    assert found.outcome is outcome
    assert verdict([found])[0].startswith(words)


def test_where_nothing_is_drafted_no_side_is_faster():
    for ours_s in ((0.8, 0.81, 0.82), (1.2, 1.21, 1.22)):
        found = compared([1.0] * 3, ours_s, num_drafted=0)
        headline, *advice = verdict([found])
        assert headline.startswith("Nothing was drafted: greedy")
        [why] = advice
        assert why.startswith("No tokens were drafted (draft off where it did not pay)")


def test_no_difference_comes_with_what_it_takes_to_see_one():
    quiet = compared([1.0] * 4, (0.80, 0.81, 0.82, 0.81), "sampling")
    noisy = compared([1.0] * 4, (0.95, 1.10, 0.92, 1.08))
    headline, advice = verdict([noisy, quiet])
    assert headline.startswith("Greedy: no difference seen, 0.99 times plain (0.8")
    assert "Sampling: faster, 1.23 times plain (1.2" in headline
    estimate = noisy.estimate
    assert estimate is not None
    num_rounds = estimate.rounds_to_see(0.1)
    minutes = f"about {num_rounds * 20 / 60:.0f} minutes"
    assert f"A difference of {estimate.visible:.0%} would have been seen" in advice
    assert f"To see one of 10%: --rounds {num_rounds}, {minutes}." in advice


def test_equal_sides_are_called_different_5_times_in_100():
    random = np.random.default_rng(3)
    wrong = 0
    for _ in range(400):
        target_only_s, ours_s = np.exp(0.1 * random.normal(size=(2, 5)))
        found = compared(target_only_s.tolist(), ours_s.tolist())
        wrong += found.outcome is not Outcome.NO_DIFFERENCE
    assert wrong <= 400 * 0.05 + 4 * np.sqrt(400 * 0.05 * 0.95)


@pytest.mark.parametrize("max_tokens", ["1", "0"])
def test_an_answer_of_one_token_is_refused(max_tokens):
    """It takes no decode but the prompt's."""
    refused = run("--max-tokens", max_tokens)
    assert refused.exit_code == 2
    assert f"answers of {max_tokens} tokens" in refused.stderr
    assert "--max-tokens 2 or more" in refused.stderr


def test_answers_that_all_end_at_once_cannot_be_compared(one_timing):
    with localspec.load(context_length=64) as engine:
        full = [[300] * 63]
        with pytest.raises(localspec.OptionError, match="ended with its first token"):
            run_bench(engine, full, num_rounds=1, max_tokens=8, **UNWATCHED)
        found = run_bench(engine, [*full, [300] * 9], num_rounds=1, max_tokens=8, **UNWATCHED)
    assert all(ratio > 0 for ratio in found.sweep.values())


def test_time_without_a_result_has_a_code_of_its_own(monkeypatch, prompts_file, tmp_path):
    """And says so; what is drawn of it is empty."""
    real = threading.Timer
    monkeypatch.setattr(threading, "Timer", lambda _seconds, function: real(0.0, function))
    plot = tmp_path / "b.png"
    told = run("--prompts", prompts_file, "--seconds", "60", "--plot", plot)
    assert told.exit_code == exit_codes.NOT_ENOUGH_EVIDENCE
    first, advice, last = told.stdout.splitlines()
    assert first == "Nothing to compare yet: no prompt was answered by both sides."
    assert advice.endswith("use more --seconds.")
    assert last == "The time limit of 0 s was reached. For costs and more: --details."
    assert plot.exists()


@pytest.mark.parametrize(("name", "begins"), [("b.png", b"\x89PNG"), ("b.html", b"<!doctype")])
def test_json_and_a_plot(tmp_path, prompts_file, one_timing, name, begins):
    shown = run("--prompts", prompts_file, "--json", "--plot", tmp_path / name, *SMALL)
    found = json.loads(shown.stdout)
    assert [c["name"] for c in found["comparisons"]] == ["greedy", "sampling"]
    for comparison in found["comparisons"]:
        estimate = comparison["estimate"]
        assert estimate["low"] <= comparison["speedup"] <= estimate["high"]
        assert estimate["rounds_to_see"]["0.01"] >= estimate["rounds_to_see"]["0.1"]
        assert comparison["outcome"] in [outcome.value for outcome in Outcome]
    assert len(found["costs"]["ratios"]) == 17
    content = (tmp_path / name).read_bytes()
    assert content.startswith(begins)
    assert len(content) > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--plot", "x.pdf"), "neither .png nor .html"),
        (("--plot", "/nowhere/x.png"), "does not exist"),
        (("--prompts", "absent.txt"), "absent.txt"),
        (("--rounds", "0"), "0 is not in the range"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(arguments, message):
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert message in refused.stderr
