"""The comparisons with other runtimes: real processes, real files, no stopwatch."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import localspec
from comparison import agents
from comparison.child import Child
from comparison.contender import Answer, Request, Setup
from comparison.duel import Duel, Outcome, Side, fight
from comparison.report import table
from comparison.workers import (
    llama_cpp_python_lookup,
    localspec_default,
    localspec_fixed,
    localspec_plain,
    localspec_resting,
)
from localspec.machine import peak_memory_bytes
from localspec.sampling.params import SamplingParams

pytestmark = pytest.mark.process

SCRIPTS = Path(__file__).parent.parent / "scripts"
DEMO_TARGET = Path(localspec.__file__).parent / "demo/target.gguf"
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
REQUEST = Request(
    CHAT.format("Tell me a story about a fox."), max_tokens=24, temperature=0.0, seed=0
)


@pytest.fixture
def setup(demo_target, demo_draft) -> Setup:
    return Setup(demo_target, demo_draft, None, 1, 512, None)


def run(script: str, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / script), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_worker_gives_the_counts_of_the_same_answer_here(setup):
    """So what a process of its own reports is what localspec does."""
    with localspec_fixed(setup, 4) as contender:
        answer = contender.answer(REQUEST)
    with localspec.load(
        target=setup.target, draft=setup.draft, draft_tokens=4, context_length=512
    ) as engine:
        greedy = SamplingParams(temperature=0.0)
        stats = (
            engine.generate_raw(REQUEST.prompt, sampling=greedy, max_tokens=REQUEST.max_tokens)
            .reply()
            .stats
        )
    assert answer.num_tokens == stats.completion_tokens
    assert (answer.num_drafted, answer.num_kept) == (stats.num_draft_tokens, stats.num_accepted)
    assert answer.tokens_per_s > 0


def test_every_contender_answers_both_ways(setup):
    """As plain, at its defaults, and llama-cpp-python's lookup, greedy and sampled."""
    contenders = [localspec_plain(setup), localspec_default(setup)]
    for contender in [*contenders, llama_cpp_python_lookup(setup, 10)]:
        with contender:
            for temperature in (0.0, 1.0):
                request = Request(REQUEST.prompt, 12, temperature, seed=3)
                answer = contender.answer(request)
                assert 1 <= answer.num_tokens <= 12
                assert 0 <= answer.num_kept <= answer.num_drafted
        if hasattr(os, "wait4"):
            assert contender.peak_bytes is not None
            assert contender.peak_bytes > 20 * 2**20  # an interpreter and a model


@pytest.mark.parametrize(
    ("shape", "place"),
    [("tiny-qwen35", "inside"), ("tiny-qwen35", "apart"), ("tiny-llama", "apart")],
)
def test_worker_drafts_with_a_head_and_lets_it_rest(tmp_path, shape, place):
    """The head in the target's file or in its own (also EAGLE-3), of an agreement of one."""
    done = run(
        *("measure/make_pair.py", "--target", shape, "--head", place),
        *("--agreement", 1, "--entropy", 0, "--out", tmp_path),
    )
    target, head = (Path(line.split()[1]) for line in done.stdout.splitlines())
    setup = Setup(target, None, head, 1, 512, None)
    request = Request("Once", 33, 0.0, seed=0)
    with localspec_fixed(setup, 3) as contender:
        answer = contender.answer(request)
    assert answer.num_drafted == answer.num_kept >= 21
    for contender in (localspec_resting(setup), localspec_plain(setup)):
        with contender:
            assert contender.answer(request).num_drafted == 0


def test_lookup_counts_what_it_kept(tmp_path, setup):
    """A text that only repeats itself is proposed right, once it has begun to."""
    done = run(
        *("measure/make_pair.py", "--target", "tiny", "--draft", "tiny", "--out", tmp_path),
        *("--period", 16, "--entropy", 0),
    )
    target = Path(done.stdout.split()[1])
    with llama_cpp_python_lookup(Setup(target, None, None, 1, 512, None), 10) as contender:
        answer = contender.answer(Request("Once", 128, 0.0, seed=0))
    assert answer.num_tokens == 128
    assert answer.num_kept > 90
    assert answer.num_kept > 0.9 * answer.num_drafted


def test_worker_passes_errors_on(setup, tmp_path):
    """Those of localspec with their hint, and the last words of a process that dies."""
    with (
        pytest.raises(localspec.LocalspecError, match="number of draft tokens is 99") as caught,
        localspec_fixed(setup, 99),
    ):
        pass
    assert "Choose 0" in caught.value.hint
    copy = Path(shutil.copy(setup.target, tmp_path / "gone.gguf"))
    contender = llama_cpp_python_lookup(Setup(copy, None, None, 1, 512, None), 10)
    copy.unlink()
    with pytest.raises(localspec.LocalspecError, match=r"died: (.|\n)*gone\.gguf"), contender:
        pass


def test_fight_asks_both_the_same_and_pairs_their_answers(setup):
    duel = Duel("greedy", localspec_fixed(setup, 3), localspec_plain(setup), 0.0)
    prompts = [REQUEST.prompt, CHAT.format("hi there")]
    outcome = fight(duel, prompts, max_tokens=16, num_rounds=2)
    counts = [[a.num_tokens for a in side.answers] for side in (outcome.ours, outcome.theirs)]
    assert counts[0] == counts[1]  # greedy: the same text
    assert counts[0][:2] == counts[0][2:]
    assert len(outcome.ratios) == 4
    assert outcome.ours.acceptance_rate is not None
    assert outcome.theirs.acceptance_rate is None


def test_fight_refuses_a_contender_that_should_draft_and_does_not(setup):
    alone = localspec_plain(setup)
    alone.must_draft = True
    duel = Duel("greedy", localspec_fixed(setup, 3), alone, 0.0)
    with pytest.raises(localspec.LocalspecError, match="plain proposed nothing"):
        fight(duel, [REQUEST.prompt], max_tokens=16, num_rounds=1)


def test_table_shows_paired_ratios():
    """The median of the ratios, which is not the ratio of the medians."""
    ours = Side("a", [Answer(9, speed, 10, 7) for speed in (10.0, 20.0, 90.0)], 3 * 2**20)
    theirs = Side("b", [Answer(9, speed, 0, 0) for speed in (10.0, 40.0, 30.0)])
    outcome = Outcome("x", ours, theirs)
    assert outcome.ratios == [1.0, 0.5, 3.0]
    assert outcome.median_ratio == 1.0
    assert table([outcome]).splitlines()[-1] == (
        "| x | a | 20.0 (10.0 … 90.0) | 0.70 | 3 "
        "| b | 30.0 (10.0 … 40.0) | - | - | **1.00** (0.50 … 3.00) |"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="the system does not tell")
def test_child_tells_its_peak_memory_and_its_end():
    code = "b = bytearray(200_000_000); b[::4096] = b'x' * len(b[::4096]); del b; input()"
    with tempfile.TemporaryFile() as errors:
        child = Child([sys.executable, "-c", code], errors)
        assert not child.has_ended()
        assert child.say("") == ""
        peak = child.wait()
        assert child.process.returncode == 0
        assert peak is not None
        # Between fork and exec a child is as large as its parent, which is counted, too.
        assert 200_000_000 < peak < max(400_000_000, 1.1 * peak_memory_bytes())
        sleeper = Child([sys.executable, "-c", "import time; time.sleep(600)"], errors)
        sleeper.end()
        assert sleeper.process.returncode != 0
        assert sleeper.has_ended()


def test_comparison_prints_a_table_for_the_demo_pair(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps("Tell me a story about a fox.") + "\n")
    done = run(
        *("compare/compare_prompt_lookup.py", "--prompts", prompts),
        *("--max-tokens", 8, "--rounds", 1, "--threads", 1, "--ctx", 512),
    )
    assert done.returncode == 0, done.stderr
    assert "- files: target.gguf, draft.gguf" in done.stdout
    assert done.stdout.count("LlamaPromptLookupDecoding K=10") == 2


def test_an_agents_session_is_the_same_for_every_server(setup, tmp_path):
    """What is asked, how much is answered, and what the caches spare; here both are ours."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    session = agents.Session(
        num_turns=7, system_tokens=150, answer_tokens=10, temperature=0.0, seed=1
    )
    setup = replace(setup, context_length=2048)
    servers = [agents.localspec_server(setup) for _ in range(2)]
    servers[1].name = "another"
    path = tmp_path / "rounds.jsonl"
    with servers[0], servers[1]:
        answers = agents.hold(session, servers, path)
    kinds = ["turn", "title", *["turn"] * 4, "summary", "turn", "turn", "task"]
    lengths = {"turn": 10, "title": 12, "summary": 60, "task": 10}
    for answered in answers:
        assert [timed.kind for timed in answered] == kinds
        assert [timed.num_tokens for timed in answered] == [lengths[kind] for kind in kinds]
        assert all(0 < timed.first_s <= timed.total_s for timed in answered)
        turns = [timed for timed in answered if timed.kind == "turn"]
        for before, after in itertools.pairwise(turns):
            assert after.num_prompt_tokens > before.num_prompt_tokens
            assert after.num_cached > before.num_prompt_tokens - 10
        assert answered[-1].num_cached >= session.system_tokens
    rows = [row.split(" | ") for row in agents.table(path).splitlines()[2:]]
    assert [row[1:3] for row in rows] == [
        ["all", "10"], ["turn", "7"], ["title", "1"], ["summary", "1"], ["task", "1"],
    ]  # fmt: skip


def test_clients_at_once_are_counted_together(tmp_path):
    """Of two of our own servers, with few tokens; a second round is added to the first."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    path = tmp_path / "rounds.jsonl"
    for seed in (1, 2):
        done = run(
            "compare/compare_clients.py",
            *("--alone", "--record", path, "--seed", seed, "--clients", 1, 2, "--ctx", 2048),
            *("--threads", 1, "--answer-tokens", 12, "--prompt-words", 600),
        )
        assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    whats = [
        "1 at once, tokens/s", "2 at once, tokens/s", "a short question alone, s",
        "beside a long answer, s", "beside a long prompt, s",
    ]  # fmt: skip
    assert [line["what"] for line in lines] == whats * 2
    assert all(value > 0 for line in lines for value in line["found"].values())
    head, _, *rows = done.stdout[done.stdout.index("| temperature") :].splitlines()
    assert head.count("localspec --parallel") == 4
    assert [row.split(" | ")[1] for row in rows] == whats


def test_table_of_sessions_has_the_ratios_of_rounds(tmp_path):
    """The median of the rounds' ratios, each of sums."""
    path = tmp_path / "rounds.jsonl"
    for seed, (ours, theirs) in enumerate([(1.0, 2.0), (3.0, 3.0), (4.0, 2.0)]):
        session = agents.Session(1, 10, 5, 0.7, seed)
        for kind, factor in (("turn", 1.0), ("title", 3.0)):
            timed = [
                agents.Timed(kind, "x", 5, 10, cached, 0.1, factor * seconds)
                for cached, seconds in ((8, ours), (2 * seed, theirs))
            ]
            agents.record(path, session, dict(zip(("a", "b"), timed, strict=True)))
    assert agents.table(path).splitlines()[0] == (
        "| temperature | what | requests | a: decoded | a: seconds | b: decoded | b: seconds "
        "| ratio |"
    )
    assert agents.table(path).splitlines()[2] == (
        "| 0.7 | all | 2 | 4 | 12.0 (4.0 … 16.0) | 16 (12 … 20) | 8.0 (8.0 … 12.0) "
        "| **1.000 (0.500 … 2.000)** |"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--draft", "d.gguf"), "a draft is given without a target"),
        (("--target", "none.gguf"), "none.gguf does not exist"),
        (("--prompts", "none.jsonl"), "none.jsonl"),
        (("--head",), "a head is given without a target"),
        (("--target", "t.gguf", "--draft", "d.gguf", "--head"), "a draft and a head are given"),
        (("--target", DEMO_TARGET, "--head"), "target.gguf has no head"),
    ],
)
def test_bad_options_are_refused_before_anything_is_built(tmp_path, options, words):
    done = run("compare/compare_llama_cpp.py", "--build-folder", tmp_path / "build", *options)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "build").exists()
