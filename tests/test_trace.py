"""Traces: what is recorded of an answer, and that it replays to the very same steps."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import inside
import localspec
from localspec.checks.prompts import Task
from localspec.checks.trace import read_recording, write_recording
from localspec.checks.trace_recorder import record_traces
from localspec.cli import main
from localspec.errors import OptionError
from localspec.isolated.watch import Watch
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import Drafting, ProposerKind

GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=0.8)
TASK = Task("chat", ({"role": "user", "content": "Count to twenty."},))
COUNT = 48


def recorded(engine, *samplings, task=TASK, max_tokens=COUNT):
    return record_traces(
        engine,
        [task],
        asking={},
        samplings=samplings,
        max_tokens=max_tokens,
        num_cost_rounds=0,
        seconds=None,
        watch=Watch(lambda *_: None),
    )


@pytest.fixture(scope="module")
def engine():
    with localspec.load(memory=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def found(engine):
    return recorded(engine, GREEDY, SAMPLED)


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
    trace = found.traces[0]
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
        greedy, sampled = recorded(engine, GREEDY, SAMPLED).traces
    for trace in (greedy, sampled):
        chances = trace.proposers[ProposerKind.DRAFT].chance[1:-1]
        assert chances == pytest.approx([1.0] * len(chances), abs=1e-3)


def test_chances_of_a_sampled_answer_are_between_the_extremes(found):
    chances = found.traces[1].proposers[ProposerKind.DRAFT].chance
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
    trace = recorded(engine, GREEDY, task=task).traces[0]
    forced = trace.proposers[ProposerKind.FORCED]
    assert max(forced.accepted) > 1
    assert all(kept <= limit for kept, limit in zip(forced.accepted, forced.limit, strict=True))


def test_a_file_says_the_same_and_nothing_of_the_text(found, tmp_path):
    path = tmp_path / "traces.jsonl"
    write_recording(path, found)
    again = read_recording(path)
    assert again.pair == found.pair
    for before, after in zip(found.traces, again.traces, strict=True):
        assert (after.kind, after.num_tokens) == (before.kind, before.num_tokens)
        for kind, series in before.proposers.items():
            kept = after.proposers[kind]
            assert kept.limit == series.limit
            assert kept.accepted == series.accepted
            assert kept.match == series.match
            assert kept.chance == pytest.approx(series.chance, abs=5.1e-4)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    words = [value for line in lines for value in _texts(line)]
    assert set(words) <= {found.pair, "chat"}


def _texts(value):
    if isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]\n", "no JSON", '{"localspec_traces":99}', '{"localspec_traces":1}'],
)
def test_a_file_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "traces.jsonl"
    path.write_text(content)
    with pytest.raises(OptionError, match="no file of traces"):
        read_recording(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"limit":[1]', '"limit":[{}]'),
        ('"limit":[1]', '"limit":[1.5]'),
        ('"chance":[0.5]', '"chance":[NaN]'),
        ('"chance":[0.5]', '"chance":["x"]'),
        ('"accepted":[]', '"accepted":[1,1]'),
        ('"num_tokens":1', '"num_tokens":1e999'),
        ('"draft":0.1', f'"draft":{10**400}'),
        ('"draft":0.1', '"draft":-1'),
        ('"pair":"a"', f'"pair":{"[" * 100_000}'),
    ],
)
def test_numbers_that_are_none_of_an_answer_are_refused(tmp_path, old, new):
    """When they are read, not where they are used."""
    series = {"limit": [1], "confidence": [0.5], "chance": [0.5], "accepted": [], "match": []}
    answer = {"kind": "own", "is_greedy": True, "num_prompt_tokens": 1, "num_tokens": 1}
    lines = [
        {"localspec_traces": 1, "pair": "a", "shares": {"draft": 0.1}, "costs": None},
        {**answer, "proposers": {"draft": series}},
    ]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    path = tmp_path / "traces.jsonl"
    path.write_text(text)
    assert read_recording(path).pair == "a"
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(OptionError, match="no file of traces"):
        read_recording(path)


def test_the_engines_policy_is_restored(engine, found):
    assert isinstance(inside.loop(engine).draft_policy, AdaptiveDraftPolicy)


def test_record_on_the_command_line(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Tell me a story about a fox.\nWhat is 2 times 3?\n")
    path = tmp_path / "mine.jsonl"
    arguments = ["trace", "record", str(path), "--prompts", str(prompts), "--max-tokens", "12"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "2 answers" in result.stdout
    recording = read_recording(path)
    assert [trace.kind for trace in recording.traces] == ["own", "own"]
    assert recording.costs is not None
    assert len(recording.costs.target_s) > 8
    assert set(recording.costs.proposer_s) == {ProposerKind.DRAFT}


def test_nothing_is_recorded_where_the_file_has_no_place(tmp_path):
    path = tmp_path / "missing" / "mine.jsonl"
    result = CliRunner().invoke(main, ["trace", "record", str(path)])
    assert result.exit_code == 2
    assert "no folder" in result.stderr


def test_an_answer_is_recorded_without_the_memory_of_the_one_before(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Count to twenty.\nCount to twenty.\n")
    path = tmp_path / "mine.jsonl"
    arguments = ["trace", "record", str(path), "--prompts", str(prompts), "--temperature", "0"]
    result = CliRunner().invoke(main, [*arguments, "--max-tokens", "24"])
    assert result.exit_code == 0, result.output
    first, second = read_recording(path).traces
    assert first.num_tokens == second.num_tokens
    lookups = [trace.proposers.get(ProposerKind.LOOKUP) for trace in (first, second)]
    limits = [None if one is None else one.limit for one in lookups]
    assert limits[0] == limits[1]
