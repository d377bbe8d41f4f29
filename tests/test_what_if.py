"""What drafting would be worth, by traces alone: against the loop, and enumerated."""

from __future__ import annotations

import json

import pytest
import traced
from click.testing import CliRunner
from simulated import Machine, curve

from localspec.checks.trace import (
    DecodeCosts,
    Recording,
    Series,
    Trace,
    read_recording,
    write_recording,
)
from localspec.checks.what_if import flat_costs, what_if
from localspec.cli import main
from localspec.speculative.policy_api import FixedDraftPolicy, ProposerKind

DRAFT, LOOKUP = ProposerKind.DRAFT, ProposerKind.LOOKUP
QWEN = traced.FOLDER / "qwen2.5-coder-1.5b.jsonl"
RATIOS = {1: 1.0, 2: 1.5, 3: 1.75, 4: 2.5, 5: 2.625, 8: 4.25, 16: 5.5, 17: 6.0}
COSTS = DecodeCosts(tuple(curve(RATIOS)[1:18]), {DRAFT: 0.25})


@pytest.mark.parametrize("number", [1, 3, 7, 15])
def test_a_lookup_takes_what_the_loop_takes(number):
    """The real loop, on the recorded answer, with a clock of its own."""
    machine = Machine("", RATIOS, 0.25)
    for trace in traced.shipped("qwen2.5-coder-1.5b")[:8]:
        if LOOKUP not in trace.proposers:
            continue
        [found] = [
            one
            for one in what_if(Recording("", {}, [trace]), COSTS, [number])
            if one.proposer is LOOKUP
        ]
        took_s = traced.replay(FixedDraftPolicy(number), trace, machine, 1, [LOOKUP])
        assert found.speedups[number] == pytest.approx((trace.num_tokens - 1) / took_s)


def enumerated(chances, number, place=1):
    """Expected seconds from a place on, over all that may be accepted."""
    length = len(chances)
    if place >= length:
        return 0.0
    drafted = min(number, length - place - 1)
    seconds, alive = 0.25 * drafted + COSTS.target_s[drafted], 1.0
    for kept in range(drafted):
        chance = chances[place + kept]
        seconds += alive * (1.0 - chance) * enumerated(chances, number, place + kept + 1)
        alive *= chance
    return seconds + alive * enumerated(chances, number, place + drafted + 1)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_draft_takes_what_all_outcomes_take(number):
    chances = (0.0, 0.5, 0.9, 0.2, 1.0, 0.7, 0.0, 0.4)
    length = len(chances)
    series = Series((16,) * length, (0.5,) * length, chances)
    trace = Trace("chat", False, 10, length, {DRAFT: series})
    [found] = what_if(Recording("", {}, [trace]), COSTS, [number])
    expected = (length - 1) / enumerated(chances, number)
    assert found.speedups[number] == pytest.approx(expected, rel=1e-12)


def test_a_draft_that_was_not_timed_costs_its_share_of_the_weights():
    recording = read_recording(QWEN)
    timed = DecodeCosts(COSTS.target_s, {DRAFT: recording.shares[DRAFT] * COSTS.target_s[0]})
    untimed = DecodeCosts(COSTS.target_s)
    assert what_if(recording, timed, [3]) == what_if(recording, untimed, [3])


def test_a_flat_machine_gains_more():
    recording = read_recording(QWEN)
    flat = {
        one.proposer: one for one in what_if(recording, flat_costs(8, {DRAFT: 0.05}), [3, 7])
    }
    steep = {one.proposer: one for one in what_if(recording, COSTS, [3, 7])}
    for kind in (DRAFT, LOOKUP):
        assert flat[kind].speedups[3] > steep[kind].speedups[3]
    assert flat[LOOKUP].speedups[7] > 1.5


def run(*arguments):
    return CliRunner().invoke(main, ["trace", "what-if", *map(str, arguments)])


def test_the_command_with_the_costs_of_a_bench(tmp_path):
    bench = tmp_path / "bench.json"
    costs = {"target_s": list(COSTS.target_s), "proposer_s": {"draft": 0.25}}
    bench.write_text(json.dumps({"costs": costs}))
    result = run(QWEN, "--costs", bench, "--json")
    assert result.exit_code == 0, result.output
    found = {one["proposer"]: one for one in json.loads(result.stdout)}
    for one in what_if(read_recording(QWEN), COSTS, [1, 2, 3, 4, 5, 7, 10, 15]):
        kept = found[one.proposer.value]["speedups"]
        assert {int(number): value for number, value in kept.items()} == one.speedups
    text = run(QWEN, "--costs", bench).stdout
    assert "Best for code" in text


def test_the_command_with_the_files_own_costs(tmp_path):
    recording = read_recording(QWEN)
    path = tmp_path / "mine.jsonl"
    write_recording(path, Recording(recording.pair, recording.shares, recording.traces, COSTS))
    assert run(path, "--json").stdout == run(path, "--costs", path, "--json").stdout


def test_costs_that_were_not_measured_are_asked_for():
    result = run(QWEN)
    assert result.exit_code == 2
    assert "not measured" in result.stderr
    assert "bench --json" in result.stderr


def test_two_kinds_of_costs_are_refused():
    assert run(QWEN, "--costs", QWEN, "--flat-to", 8).exit_code == 2
