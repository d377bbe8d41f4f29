"""`localspec bench` on the demo pair: real decodes, numbers that agree, and what it asks."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re

import pytest

import command_line
import inside
import localspec
from call_families import FAMILIES
from interruptions import wish_at_decode
from localspec.cli.evaluation_reports import bench_text, verdict
from localspec.cli.json_output import to_json
from localspec.evaluation import bench
from localspec.evaluation.bench import NARROW, Bench, DecodeCosts, KindSpeed, Outcome, run_bench
from localspec.evaluation.prompts import Task, built_in_tasks
from localspec.evaluation.rounds import SHORTEST_ANSWER, Stretch
from localspec.evaluation.time_limit import EndedBy
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import Resolver
from localspec.speculative.metrics import Meter
from localspec.speculative.policy_api import DraftOff, ProposerKind
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.cancellation import Watch

UNWATCHED = {"seconds": 600.0, "watch": Watch(lambda *_: None)}
SHORT = ("--max-tokens", str(SHORTEST_ANSWER), "--seconds", "600")


@pytest.fixture
def few(monkeypatch):
    """Any interval is enough: the rest is as ever."""
    monkeypatch.setattr(bench, "NARROW", float("inf"))
    monkeypatch.setattr(bench, "NOT_FEW", 3)


run = functools.partial(command_line.run, "bench")


def asked(max_tokens: int = SHORTEST_ANSWER, **options):
    options = AnswerOptions.of(temperature=0, max_tokens=max_tokens, **options)
    return {"options": options, "system": None, "template": None}


def task(text: str, kind: str = "own") -> Task:
    return Task(kind, ({"role": "user", "content": text},))


TASKS = (
    task("Tell me a story about a fox.", "chat"),
    task("What is the sea?", "chat"),
    task("Tell me a story about the sea.", "summary"),
)


def test_numbers_of_a_bench_agree(few, own_folders):
    told = []
    # Costs belong to a number of threads, which could change on a busy machine.
    with localspec.load(num_threads=1) as engine:
        policy = inside.loop(engine).draft_policy
        watch = Watch(lambda stage, left: told.append((stage, left)))
        found = run_bench(engine, TASKS, asked(64), seconds=600, watch=watch)
        assert inside.loop(engine).draft_policy is policy
        assert isinstance(policy, AdaptiveDraftPolicy)
        # Nothing is left to measure for the next run.
        assert policy.costs.sizes_to_time() == []
    assert found.ended_by is None
    assert found.left_out == {}
    assert [each.kind for each in found.kinds] == ["chat", "summary"]
    (timing, _), *others = told
    assert timing == "timing decodes"
    writing = [stage for stage, _ in others if stage.startswith("writing")]
    assert len(writing) == sum(len(each.answers) for each in found.kinds)
    assert writing[0] == "writing chat"
    for each in found.kinds:
        assert len(each.stretches) >= 3
        # The prompt's token, and the first step of a turn, are in no stretch.
        written = sum(stats.completion_tokens for stats in each.answers)
        num_counted = sum(stretch.num_tokens for stretch in each.stretches)
        assert num_counted < written - 7 * len(each.stretches)
        assert each.estimate.low <= each.estimate.value <= each.estimate.high
        ratio = each.tokens_per_s / each.plain_tokens_per_s
        assert ratio == pytest.approx(each.estimate.value)
        assert sum(each.steps_per_length) == sum(stats.num_steps for stats in each.answers)
    values = [each.estimate.value for each in found.kinds]
    assert found.over_all.value == pytest.approx(2 / sum(1 / value for value in values))
    assert len(found.costs.ratios) >= 16
    assert found.costs.ratios[0] == 1.0
    assert found.costs.shares.keys() == {ProposerKind.DRAFT}
    assert found.costs.plain_s > 0.0
    assert found.peak_memory_bytes > 10_000_000


def test_what_is_known_is_kept_whenever_it_ends(few):
    """In the midst of a decode, and what was written by then counts."""

    def ended_at(number):
        watch = Watch(lambda *_: None)
        with wish_at_decode(number, watch.cancellation) as done:
            found = run_bench(engine, TASKS, asked(40), seconds=600, watch=watch)
        return found, next(done)

    with localspec.load(draft_tokens=3) as engine:
        whole, num_all = ended_at(0)
        assert whole.ended_by is None
        policy = inside.loop(engine).draft_policy
        parts = set()
        for number in (1, num_all // 2, num_all):
            found, num_decodes = ended_at(number)
            while found.ended_by is None:  # on a busy machine this run needed fewer decodes
                number = num_decodes
                found, num_decodes = ended_at(number)
            assert inside.loop(engine).draft_policy is policy
            assert found.ended_by is EndedBy.INTERRUPT
            assert num_decodes == number - 1  # and not one more
            num_kinds = sum(bool(each.stretches) for each in found.kinds)
            parts.add((found.costs is not None, num_kinds))
            told = json.loads(json.dumps(to_json(found)))
            assert (told["partial"], told["ended_by"]) == (True, "interrupt")
            shown = bench_text(found)
            assert "Stopped after " in shown
            assert shown.startswith("Not enough text") == (found.over_all is None)
        assert engine.generate_raw("A fox", max_tokens=5).reply().token_ids
    assert {(False, 0), (True, 2)} <= parts


def test_a_prompt_that_does_not_fit_is_left_out_and_said(few):
    with localspec.load(context_length=128) as engine:
        long = task("A fox. " * 200, "edit")
        found = run_bench(engine, [long, TASKS[0]], asked(), **UNWATCHED)
        assert found.left_out == {"edit": 1}
        assert "Left out: 1 edit prompt, longer than the context" in bench_text(found)
        with pytest.raises(localspec.ContextError):
            run_bench(engine, [long], asked(), **UNWATCHED)


def test_the_verdict_comes_first_or_json(tmp_path, few):
    path = tmp_path / "prompts.txt"
    path.write_text("Tell me a story about a fox.\nWhat is 2 times 3?\n")
    shown = run("--prompts", path, *SHORT)
    assert shown.exit_code == 0, shown.output
    first, *others = shown.stdout.splitlines()
    assert " times plain" in first
    assert first.endswith(" for own text.")
    costs = [line for line in others if line.startswith(("Time of a", "The machine was busy"))]
    assert len(costs) == 1
    assert any(line.startswith("Measured in ") for line in others)
    found = json.loads(run("--prompts", path, "--json", *SHORT).stdout)
    assert [each["kind"] for each in found["kinds"]] == ["own"]
    assert found["over_all"]["low"] <= found["over_all"]["high"]
    assert found["partial"] is False
    assert len(found["costs"]["ratios"]) >= 16


def compared(kind, ratios, num_drafted=3):
    """Stretches of 100 tokens with these speed-ups, by hand."""
    meter = Meter(
        1, 0, 0.0, draft_off_steps={DraftOff.DOES_NOT_PAY: 5, DraftOff.SET_TO_ZERO: 9}
    )
    meter.drafts[ProposerKind.DRAFT, num_drafted, 0] += 1
    stretches = [Stretch(100, 0.01, 1 / ratio) for ratio in ratios]
    return KindSpeed(kind, stretches, [meter.stats(1.0, None, None)])


def benched(*kinds, costs=None):
    return Bench(kinds, {}, {}, costs, 1, 90.0, EndedBy.TIME)


@pytest.mark.parametrize(
    ("ratios", "outcome", "words"),
    [
        ((1.30, 1.33, 1.32), Outcome.FASTER, "Faster: 1.32 times plain (1.2"),
        ((0.91, 0.89, 0.90), Outcome.SLOWER, "Slower: 0.90 times plain (0.8"),
        ((1.43, 1.01, 1.23), Outcome.NO_DIFFERENCE, "Inconclusive: 1.2"),
        ((2.0, 2.0), Outcome.TOO_LITTLE, "Not enough text for a verdict"),
    ],
)
def test_a_verdict_needs_an_interval_without_one(ratios, outcome, words):
    found = compared("code", ratios)
    assert found.outcome is outcome
    assert verdict(benched(found))[0].startswith(words)


def test_each_kind_has_its_own_verdict_and_there_is_one_over_all():
    code, chat = (
        compared("code", [1.5, 1.52, 1.48] * 3),
        compared("chat", [1.0, 0.98, 1.02] * 3),
    )
    short = compared("tool", [3.0])
    lines = verdict(benched(code, chat, short))
    assert lines[0].startswith("Faster: 1.20 times plain (1.1")
    assert lines[0].endswith(") over all.")
    assert lines[2].startswith("  code        faster              1.50 times plain (1.4")
    assert lines[3].startswith("  chat        no difference seen  1.00 times plain (0.9")
    assert lines[2].endswith("), 0% accepted")
    assert lines[-2] == "Too little text so far: tool."
    assert lines[-1] == "Enough text probably takes about 108 s here: --seconds 110."
    assert all(len(line) < 80 for line in lines)


def test_the_time_that_is_advised_would_be_enough():
    """Just so, if the same text comes again and again."""
    for ratios in ([1.43, 1.01, 1.23], [0.97, 1.04, 0.9, 0.99]):
        few = compared("code", ratios)
        assert few.outcome is Outcome.NO_DIFFERENCE
        value = few.estimate.value
        reach = max(NARROW, value, 1 / value)
        more = math.ceil(few.estimate.times_as_much(reach))
        assert compared("code", ratios * more).estimate.reach <= reach
        assert compared("code", ratios * (more // 3)).estimate.reach > reach


APART = "Telling the sides apart"


@pytest.mark.parametrize(
    ("ratios", "time_s", "words"),
    [
        ([1.43, 1.01, 1.23], 90.0, rf"{APART} probably takes .* here: --seconds \d+0\."),
        (
            [3.0, 0.1, 1.0, 0.5, 2.0],
            90.0,
            rf"{APART} probably .* minutes here: --seconds \d+0\.",
        ),
        ([1.3, 0.8], 3600.0, "Enough text would take about 108 minutes here: use a smaller"),
        ([1.3, 0.8, 0.9, 1.0] * 5, 3000.0, rf"{APART} would take about .* hours here"),
        ([1.3], 90.0, r"Enough text probably takes about 5 minutes here: --seconds 360\."),
        ([], 20.0, r"How long that takes is not known yet: .*\. Try --seconds 80\."),
        ([1.3, 1.33, 1.32], 90.0, None),
    ],
)
def test_how_long_a_verdict_takes_is_computed_from_what_was_seen(ratios, time_s, words):
    found = compared("code", ratios)
    found.answers[0] = dataclasses.replace(found.answers[0], total_time_s=time_s)
    advice = verdict(dataclasses.replace(benched(found), time_s=time_s))[-1]
    if words is None:
        assert "--seconds" not in advice
    else:
        assert re.match(words, advice), advice


def test_a_time_is_advised_where_no_text_was_begun():
    """The limit ended the timing of decodes, which comes first."""
    headline, advice = verdict(dataclasses.replace(benched(), time_s=4.0))
    assert headline == "Not enough text for a verdict."
    assert advice.endswith("no stretch of text was timed. Try --seconds 60.")


def test_no_time_is_advised_where_answers_are_too_short():
    found = dataclasses.replace(compared("code", []), is_too_short=True)
    assert verdict(benched(found)) == [
        "Not enough text for a verdict.",
        "Answers too short to time both sides: code.",
    ]


@pytest.mark.parametrize(
    ("ratios", "share", "words"),
    [
        ((1.0,), 0.1, []),  # nothing is known of other sizes
        ((1.0, 3.0, 4.0), 0.2, ["never pays with up to 2 draft tokens a step"] * 2),
        (
            (1.0, 1.5),
            0.1,
            [
                "So lookup (at 0.00 per token) pays if at least 50% of its tokens are",
                "the draft model (at 0.10 per token) pays if at least 60% of its tokens",
            ],
        ),
        (
            (1.0, 1.0),
            None,
            ["lookup (at 0.00 per token) pays however few of its tokens are accepted"],
        ),
    ],
)
def test_what_pays_is_said_of_sizes_that_were_timed(ratios, share, words):
    costs = DecodeCosts(0.1, ratios, {} if share is None else {ProposerKind.DRAFT: share})
    found = benched(compared("code", [1.0] * 3), costs=costs)
    shown = bench_text(found)
    lines = [line for line in shown.splitlines() if line.startswith("So ")]
    assert len(lines) == len(words)
    for line, said in zip(lines, words, strict=True):
        assert said in line


@pytest.mark.parametrize(("num_busy", "are_steady"), [(0.0, True), (99.0, False)])
def test_costs_of_a_busy_machine_are_not_shown(monkeypatch, num_busy, are_steady):
    """And a text with words of its own is decoded, not one word: experts differ by word."""
    monkeypatch.setattr(bench, "num_busy_processors", lambda: num_busy)
    with localspec.load(draft_tokens=3) as engine:
        tokens = engine.tokenize("Tell me a story about a fox.")
        chain = Resolver(engine.vocabulary).chain(engine.sampling, len(tokens))
        target = inside.loop(engine).target
        decode, batches = target.decode, []
        monkeypatch.setattr(
            target,
            "decode",
            lambda batch, *more: (batches.append(list(batch)), decode(batch, *more))[1],
        )
        costs = engine.exclusively(lambda loop: bench.measure_costs(loop, chain, tokens))
    assert tokens[-4:] in batches
    assert costs.are_steady is are_steady
    found = benched(compared("code", [1.0] * 3), costs=costs)
    assert bool(found.break_even) is are_steady
    shown = bench_text(found)
    assert ("The machine was busy" in shown) is not are_steady
    assert ("relative to one token:" in shown) is are_steady


def test_a_model_is_asked_by_its_template_or_goes_on_with_the_text(demo_target):
    with localspec.load(target=demo_target) as engine:
        for task in built_in_tasks():
            if not task.suits(engine):
                assert task.kind == "tool"
                continue
            reply = task.ask(engine, max_tokens=2, temperature=0).reply()
            asked = engine.generate(task.messages, max_tokens=2, temperature=0, **task.keywords)
            assert reply.token_ids == asked.reply().token_ids
            assert reply.stats.prompt_tokens == asked.reply().stats.prompt_tokens
        tool = next(task for task in built_in_tasks() if task.kind == "tool")
        assert tool.suits(engine, FAMILIES["Qwen"].template)
        engine.chat_template = None
        raw = Task("own", ({"role": "user", "content": "A fox"},)).ask(engine, max_tokens=2)
        assert raw.reply().stats.prompt_tokens == len(engine.tokenize("A fox"))
