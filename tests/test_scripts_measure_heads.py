"""What heads cost: the script measures a real head, tiny as it is, and no figure is judged."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

import inside
import localspec
import measure_heads
from localspec.speculative.policy_api import FixedDraftPolicy
from measure_heads import BareBlock, BareHead, steps
from shape_pair.bigrams import TextSpec
from shape_pair.pair import HeadSpec, head_spec, make_with_head

TEXT = TextSpec(entropy=1.0, agreement=(0.8,), segment=64, period=None, seed=1)
GREEDY = measure_heads.SETTINGS["greedy"]


@pytest.fixture(scope="module", params=["tiny-hy_v3", "tiny-qwen35"])
def target(request, tmp_path_factory):
    spec = HeadSpec(request.param, "Q4_0", TEXT, is_apart=False)
    return make_with_head(spec, tmp_path_factory.mktemp("head"))[0]


def test_decodes_alone_change_nothing_of_the_answer(target):
    """They come between the steps, on the head's own context."""
    prompt = measure_heads.prompt_of(32, 0)
    accepted = []
    with localspec.load(target=target, proposer="head", context_length=512) as engine:
        inside.loop(engine).draft_policy = FixedDraftPolicy(4)
        for in_between in (False, True):
            accepted.append([])
            for step, head in steps(engine, prompt, GREEDY, 64):
                accepted[-1].append((step.num_accepted, step.num_read, *step.tokens))
                if in_between and step.confidences:
                    cached = head.num_cached
                    assert BareHead(head).seconds(step.num_read, 4) > 0
                    assert head.num_cached == cached
    assert accepted[0] == accepted[1]
    assert sum(step[0] for step in accepted[0]) > 20


def test_first_draft_reads_the_prompt_and_later_ones_what_was_accepted(target):
    """So the decodes alone have as many tokens as the loop's."""
    prompt = measure_heads.prompt_of(32, 0)
    with localspec.load(target=target, proposer="head", context_length=512) as engine:
        inside.loop(engine).draft_policy = FixedDraftPolicy(4)
        found = [step for step, _ in steps(engine, prompt, GREEDY, 64)]
    assert found[1].num_read == 33
    for before, after in itertools.pairwise(found[1:]):
        if after.confidences:
            assert after.num_read == before.num_accepted + 1


def test_a_block_decoded_alone_changes_nothing_of_the_answer(tmp_path):
    target, head = make_with_head(head_spec("tiny-llama", "Q4_0", TEXT, "block"), tmp_path)
    prompt, accepted = measure_heads.prompt_of(32, 0), []
    usual = {"head": head, "proposer": "head", "context_length": 512}
    with localspec.load(target=target, **usual) as engine:
        inside.loop(engine).draft_policy = FixedDraftPolicy(4)
        for in_between in (False, True):
            accepted.append([])
            for step, block_head in steps(engine, prompt, GREEDY, 64):
                accepted[-1].append((step.num_accepted, *step.tokens))
                if in_between and step.confidences:
                    cached = block_head.num_cached
                    assert BareBlock(block_head).seconds(3, 4) > 0
                    assert block_head.num_cached == cached
    assert accepted[0] == accepted[1]
    assert sum(step[0] for step in accepted[0]) > 20


@pytest.mark.process
def test_prints_every_part(target):
    script = Path(measure_heads.__file__)
    shape = target.name.split("-Q4_0")[0]
    done = subprocess.run(
        [
            *(sys.executable, str(script), "--target", shape, "--folder", str(target.parent)),
            *("--draft-tokens", "2", "--answer-tokens", "24", "--prompt-tokens", "64"),
            *("--ctx", "256", "--rounds", "2"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("###")] == [
        f"### {part}: {target.stem}, head inside" for part in ("draft", "rest", "prefill")
    ]
    assert done.stdout.count("…") == 5
    assert "| 65 |" in done.stdout  # the prompt and the first token
