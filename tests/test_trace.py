"""Traces, as the script records them: they say what the loop does with the same models."""

from __future__ import annotations

import json

import pytest
from record_traces import trace_of
from trace_file import read_traces, write_traces

import localspec
from localspec.checks.prompts import Task
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import Drafting, ProposerKind

GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=0.8)
TASK = Task("chat", ({"role": "user", "content": "Count to twenty."},))
COUNT = 48


@pytest.fixture(scope="module")
def engine():
    with localspec.load(memory=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def found(engine):
    return [trace_of(engine, TASK, sampling, COUNT) for sampling in (GREEDY, SAMPLED)]


def fixed_steps(engine, kind, num_draft_tokens):
    """The statistics of the greedy answer that one proposer drafts for."""
    drafting = Drafting(num_draft_tokens, kind.value)
    reply = TASK.ask(
        engine,
        sampling=GREEDY,
        max_tokens=COUNT,
        draft_tokens=drafting.draft_tokens,
        proposer=drafting.proposer,
    ).reply()
    return reply.stats


@pytest.mark.parametrize("kind", [ProposerKind.DRAFT, ProposerKind.LOOKUP])
@pytest.mark.parametrize("num_draft_tokens", [1, 3, 7])
def test_a_greedy_trace_says_what_a_fixed_number_accepts(engine, found, kind, num_draft_tokens):
    """Token by token: the loop drafts with the models, the trace is followed without them."""
    trace = found[0]
    series = trace.proposers[kind]
    num_steps, kept, place = 1, 0, 1
    while place < trace.num_tokens:
        num_drafted = min(num_draft_tokens, series.limit[place], trace.num_tokens - place - 1)
        right = 0
        while right < num_drafted:
            if series.accepted:
                is_right = right < series.accepted[place]
            else:
                is_right = series.chance[place + right] == 1.0
            if not is_right:
                break
            right += 1
        num_steps, kept = num_steps + 1, kept + right
        place += right + 1
    stats = fixed_steps(engine, kind, num_draft_tokens)
    assert (stats.num_steps, stats.num_accepted) == (num_steps, kept)
    assert kept > 0


def test_a_draft_equal_to_its_target_would_always_be_accepted(demo_target):
    """Where p and q are the same, min(1, q / p) is 1 for every token that can come."""
    with localspec.load(target=demo_target, draft=demo_target) as engine:
        traces = [trace_of(engine, TASK, sampling, COUNT) for sampling in (GREEDY, SAMPLED)]
    for trace in traces:
        chances = trace.proposers[ProposerKind.DRAFT].chance[1:-1]
        assert chances == pytest.approx([1.0] * len(chances), abs=1e-3)


def test_chances_of_a_sampled_answer_are_between_the_extremes(found):
    chances = found[1].proposers[ProposerKind.DRAFT].chance
    assert any(0.0 < chance < 1.0 for chance in chances)
    assert all(0.0 <= chance <= 1.0 for chance in chances)


def test_what_is_forced_is_recorded(engine):
    schema = {
        "type": "object",
        "properties": {"surname": {"type": "string"}, "years": {"type": "integer"}},
        "required": ["surname", "years"],
        "additionalProperties": False,
    }
    task = Task("json", TASK.messages, {"json_schema": schema})
    forced = trace_of(engine, task, GREEDY, COUNT).proposers[ProposerKind.FORCED]
    assert max(forced.accepted) > 1
    assert all(kept <= limit for kept, limit in zip(forced.accepted, forced.limit, strict=True))


def test_a_file_says_the_same_and_nothing_of_the_text(found, tmp_path):
    path = tmp_path / "traces.jsonl"
    write_traces(path, "a pair", found)
    for before, after in zip(found, read_traces(path), strict=True):
        assert (after.kind, after.num_tokens) == (before.kind, before.num_tokens)
        for kind, series in before.proposers.items():
            kept = after.proposers[kind]
            assert kept.limit == series.limit
            assert kept.accepted == series.accepted
            assert kept.chance == pytest.approx(series.chance, abs=5.1e-4)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    words = [value for line in lines for value in _texts(line)]
    assert set(words) <= {"a pair", "chat"}


def _texts(value):
    if isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value
