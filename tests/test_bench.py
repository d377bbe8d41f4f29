"""`localspec bench` on the demo pair: real decodes, numbers that agree with each other."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import localspec
from localspec.automatic import AutomaticDraftLength
from localspec.bench import Comparison, Side, run_bench
from localspec.cli import main
from localspec.cli.bench import verdict

SMALL = ("--max-tokens", "12", "--rounds", "2")


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("Tell me a story about a fox.\nWhat is 2 times 3?\n")
    return path


def run(*arguments: object):
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def test_numbers_of_a_bench_agree():
    shares = []
    with localspec.load() as engine:
        prompts = [
            engine.vocabulary.tokenize(text, parse_special=True) for text in ("A fox", "I")
        ]
        policy = engine.draft_length
        found = run_bench(
            engine,
            prompts,
            num_rounds=2,
            max_tokens=10,
            progress=lambda _stage, share: shares.append(share),
        )
        assert engine.draft_length is policy
        assert isinstance(policy, AutomaticDraftLength)
        # Every size was measured, so the next run knows them.
        assert set(policy.target_cost.measured(0)) == set(range(1, 18))
    assert shares == sorted(shares)
    assert [comparison.name for comparison in found.comparisons] == ["greedy", "sampling"]
    for comparison in found.comparisons:
        assert len(comparison.ratios) == 2
        assert len(comparison.plain.stats) == len(comparison.speculative.stats) == 4
        assert all(s.num_draft_tokens == 0 for s in comparison.plain.stats)
        assert all(s.cached_prompt_tokens == 0 for s in comparison.speculative.stats)
        assert sum(comparison.steps_per_length) == sum(
            s.num_steps for s in comparison.speculative.stats
        )
    greedy = found.comparisons[0]
    for plain, drafted in zip(greedy.plain.stats, greedy.speculative.stats, strict=True):
        assert plain.completion_tokens == drafted.completion_tokens
    assert len(found.costs.target_s) == 17
    assert found.costs.ratios[0] == 1.0
    assert found.predicted(0.5)[0] == 1.0
    assert found.peak_memory_bytes > 10_000_000


def test_a_target_alone_has_no_draft_to_measure(demo_target):
    with localspec.load(target=demo_target) as engine:
        found = run_bench(
            engine, [[1, 2, 3]], num_rounds=1, max_tokens=4, progress=lambda *_: None
        )
    assert (found.costs.draft_token_s, found.sweep, found.break_even) == (None, {}, None)


def test_the_verdict_is_in_words(prompts_file):
    shown = run("--prompts", prompts_file, *SMALL)
    assert shown.exit_code == 0, shown.output
    assert "Verdict: " in shown.stdout
    assert "A decode of n tokens, in plain steps:  1: 1.00" in shown.stdout
    assert "Peak memory" in shown.stdout


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((1.3, 1.1, 1.4), "faster (greedy 1.30 times)"),
        ((1.4, 1.3, 0.9), "too much to tell (greedy 1.30 times)"),
        ((0.98, 0.99, 1.0), "nothing to gain here"),
        ((0.86, 0.96, 1.05), "too much to tell"),
        ((0.8, 0.9, 0.95), "slower (greedy 0.90 times)"),
    ],
)
def test_a_verdict_needs_rounds_that_agree(ratios, words):
    plain, ours = (
        Side(tokens_per_s=rates, time_to_first_token_s=0.1, stats=())
        for rates in ((100.0,) * len(ratios), tuple(100 * ratio for ratio in ratios))
    )
    assert words in verdict([Comparison("greedy", plain, ours)])


@pytest.mark.parametrize(("name", "begins"), [("b.png", b"\x89PNG"), ("b.html", b"<!doctype")])
def test_json_and_a_plot(tmp_path, prompts_file, name, begins):
    shown = run("--prompts", prompts_file, "--json", "--plot", tmp_path / name, *SMALL)
    found = json.loads(shown.stdout)
    assert [c["name"] for c in found["comparisons"]] == ["greedy", "sampling"]
    assert len(found["costs"]["ratios"]) == 17
    content = (tmp_path / name).read_bytes()
    assert content.startswith(begins)
    assert len(content) > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--plot", "x.pdf"), "neither .png nor .html"),
        (("--plot", "/nowhere/x.png"), "no such folder"),
        (("--prompts", "absent.txt"), "absent.txt"),
        (("--rounds", "0"), "0 is not in the range"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(arguments, message):
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert message in refused.stderr
