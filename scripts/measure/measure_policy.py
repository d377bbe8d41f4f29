"""Measures the automatic draft length on pairs whose agreement is known.

    python scripts/measure/measure_policy.py --target 1.5B --parts worst grid
    python scripts/measure/measure_policy.py --target 7B-hy_v3 --head inside --parts worst grid

Makes the files it needs (see make_pair.py; 7B pairs take 5 GB of disk each) and prints tables
of ratios, medians of the rounds, greedy. What a whole answer takes varies by several percent
from one to the next on most machines. So the pair is loaded twice (7B takes 17 GB of memory),
and both sides answer the same prompt, a token of each in turn: they meet the same machine. They
change places in every round, and every round has another text, for which of its tokens the
draft gets wrong is luck. The prompt is read at one go, so there is also the ratio of what came
after it.

worst   a draft that is never right, against plain decoding, in total time, prompt included;
        nothing known before (empty) and with what the run before learned
grid    against the best two fixed numbers of draft tokens, by measured costs, at each
        agreement; after a short chat, in whose pauses the draft was judged
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from side_by_side import Timed, read_in_turn, shown

import localspec
from localspec.checks.step_bench import DecodeCosts, measure_steps
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.speedup import Curve, expected_speedup
from localspec.speculative.policy_api import (
    DraftPolicy,
    FixedDraftPolicy,
    ProposerKind,
)
from localspec.speculative.proposers import DraftModel
from localspec.streaming.answer import Answer
from localspec.streaming.reply import Reply
from shape_pair.bigrams import TextSpec
from shape_pair.blocks import QUANTIZATIONS
from shape_pair.pair import HEADS, HeadSpec, PairSpec, make_pair, make_with_head
from shape_pair.shapes import SHAPES

GREEDY = localspec.SamplingParams(temperature=0)
AGREEMENTS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
SEGMENT = 64
NUM_STEP_ROUNDS = 3
NUM_WARM_UP_TOKENS = 16
NUM_CHAT_TURNS = 4


class Rounds(NamedTuple):
    """The results of rounds of answers.

    total, decoding: the other side's time ÷ ours in each round, of everything, and of what came
    after the prompt. ours: the last answer.
    """

    total: list[float]
    decoding: list[float]
    ours: Reply


class Bench:
    """A made pair, loaded twice, and how long its answers take."""

    def __init__(self, engines: tuple[Engine, Engine], asked: argparse.Namespace) -> None:
        self.engine = engines[0]
        self._engines = engines
        self._asked = asked
        with self.engine.exclusively() as loop:
            # An engine's guess before any was timed: a decode reads all weights once.
            self._draft_shares = {
                proposer.kind: proposer.model.num_weight_bytes / loop.target.num_weight_bytes
                if isinstance(proposer, DraftModel)
                else 0.0
                for proposer in loop.proposers
            }
        self._warm_up()

    def _warm_up(self) -> None:
        """Touch both engines' weights and buffers.

        The first time takes longer, and so may one after minutes in which they lay idle.
        """
        prompt = self.prompt(32)
        for engine in self._engines:
            for _ in self._stream(engine, FixedDraftPolicy(1), prompt, NUM_WARM_UP_TOKENS):
                pass

    def fresh(self) -> AdaptiveDraftPolicy:
        """A policy that knows nothing yet."""
        return AdaptiveDraftPolicy(self._draft_shares, 1)

    def restored(self, kept: dict[str, Any]) -> AdaptiveDraftPolicy:
        """A policy that knows what another one left in the user's cache."""
        policy = self.fresh()
        policy.restore(kept)
        return policy

    def prompt(self, num_tokens: int, number: int = 0) -> list[int]:
        """Words that do not repeat. The last one decides which text follows."""
        return [1000 + 3 * index + number for index in range(num_tokens)]

    def prompts(self, num_tokens: int) -> list[list[int]]:
        """Of each round."""
        return [self.prompt(num_tokens, number) for number in range(self._asked.rounds)]

    def answer(self, policy: DraftPolicy, num_prompt_tokens: int, num_tokens: int) -> None:
        """One greedy answer, from which the policy learns."""
        prompt = self.prompt(num_prompt_tokens)
        for _ in self._stream(self.engine, policy, prompt, num_tokens):
            pass

    def _stream(
        self, engine: Engine, policy: DraftPolicy, prompt: list[int], num_tokens: int
    ) -> Answer:
        """A greedy answer, with nothing cached before."""
        with engine.exclusively():
            pass
        engine._draft_policy = policy
        return engine.generate_raw(prompt, sampling=GREEDY, max_tokens=num_tokens)

    def costs(self, policy: DraftPolicy) -> DecodeCosts:
        """Of steps of every size; the policy learns them."""
        self.engine._draft_policy = policy
        with self.engine.exclusively() as loop:
            return measure_steps(loop, NUM_STEP_ROUNDS)

    def short_chat(self, policy: AdaptiveDraftPolicy) -> None:
        """Greedy answers of the first engine, with a pause after each as for typing."""
        self.engine._draft_policy = policy
        chat = self.engine.chat(template="chatml")
        for _ in range(NUM_CHAT_TURNS):
            chat.send("Go on.", sampling=GREEDY, max_tokens=SEGMENT).reply()
            chat.prepare()

    def rounds(
        self,
        ours: Callable[[], DraftPolicy],
        other: Callable[[], DraftPolicy],
        prompts: list[list[int]],
        num_tokens: int,
    ) -> Rounds:
        """Answers of both sides to each prompt, a token of each in turn."""
        total, decoding = [], []
        for number, prompt in enumerate(prompts):
            # Not all memory is as fast: no side keeps an engine, or the first turn.
            engines = self._engines if number % 2 else self._engines[::-1]
            self._warm_up()
            sides = [
                Timed(self._stream(engine, policy(), prompt, num_tokens))
                for engine, policy in zip(engines, (ours, other), strict=True)
            ]
            in_turn = sides[::-1] if number % 2 else sides
            read_in_turn(in_turn)
            our, their = sides
            total.append(their.total_s / our.total_s)
            decoding.append((their.total_s - their.first_s) / (our.total_s - our.first_s))
        return Rounds(total, decoding, our.stream.reply())


def positive(text: str) -> int:
    """An option's value that counts something."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def plain() -> FixedDraftPolicy:
    """Plain decoding."""
    return FixedDraftPolicy(0)


@contextlib.contextmanager
def opened(asked: argparse.Namespace, agreement: float) -> Iterator[Bench]:
    """The engine of a pair that is made if it is not there."""
    text = TextSpec(
        entropy=1.0, agreement=(agreement,), segment=SEGMENT, period=None, seed=asked.seed
    )
    if asked.head:
        spec = HeadSpec(asked.target, asked.quantization, text, asked.head)
        target, head = make_with_head(spec, asked.folder)
        drafting = {"proposer": "head", "head": head}
    else:
        kinds = asked.quantization, asked.draft_quantization
        pair = PairSpec(asked.target, asked.draft, *kinds, text)
        target, draft = make_pair(pair, asked.folder)
        drafting = {"proposer": "draft", "draft": draft}
    load = partial(localspec.load, target=target, context_length=asked.ctx, **drafting)
    with load() as first, load() as second:
        yield Bench((first, second), asked)


def worst(asked: argparse.Namespace) -> None:
    """The draft is always wrong."""
    print(
        "| prompt | answer | known before | plain ÷ automatic, total time "
        "| after the prompt |\n|---|---|---|---|---|"
    )
    with opened(asked, 0.0) as bench:
        for num_prompt_tokens in asked.prompt_tokens:
            prompts = bench.prompts(num_prompt_tokens)
            for num_tokens in asked.answer_tokens:
                learned = bench.fresh()
                bench.answer(learned, 32, 128)
                after_a_run = partial(bench.restored, learned.as_dict())
                known = {"nothing": bench.fresh, "a run before": after_a_run}
                for name, policy in known.items():
                    found = bench.rounds(policy, plain, prompts, num_tokens)
                    print(
                        f"| {num_prompt_tokens} | {num_tokens} | {name} "
                        f"| {shown(found.total)} | {shown(found.decoding)} |",
                        flush=True,
                    )


def grid(asked: argparse.Namespace) -> None:
    """Each agreement, with costs that were measured before."""
    print(
        "| agreement | plain | best fixed K | its speed | automatic: steps per K "
        "| fixed ÷ automatic, total time | after the prompt |\n"
        "|---|---|---|---|---|---|---|"
    )
    for agreement in asked.agreements:
        with opened(asked, agreement) as bench:
            policy = bench.fresh()
            costs = bench.costs(policy)
            curve = Curve((0.0, *costs.ratios), costs.shares.get(ProposerKind.DRAFT, 0.0))
            by_speed = sorted(
                range(len(costs.target_s)),
                key=lambda k: -expected_speedup(curve, agreement, k),
            )
            bench.short_chat(policy)
            found = {
                k: bench.rounds(
                    lambda: policy,  # noqa: B023
                    partial(FixedDraftPolicy, k),
                    bench.prompts(32),
                    asked.grid_tokens,
                )
                for k in by_speed[:2]
            }
            k = min(found, key=lambda k: statistics.median(found[k].total))
            steps = enumerate(found[k].ours.stats.steps_per_length)
            lengths = ", ".join(f"{length}: {count}" for length, count in steps if count)
            print(
                f"| {agreement} | {1 / costs.target_s[0]:.1f} tokens/s | {k} "
                f"| {expected_speedup(curve, agreement, k):.2f} times plain, predicted "
                f"| {lengths} | {shown(found[k].total)} | {shown(found[k].decoding)} |",
                flush=True,
            )


PARTS = {"worst": worst, "grid": grid}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", choices=SHAPES, default="1.5B")
    drafting = parser.add_mutually_exclusive_group().add_argument
    drafting("--draft", choices=SHAPES, default="0.5B")
    drafting("--head", choices=HEADS, help="in place of a draft, see make_pair.py")
    add("--quantization", choices=QUANTIZATIONS, default="Q4_0")
    add("--draft-quantization", choices=QUANTIZATIONS, default="Q4_0")
    add("--folder", type=Path, default=Path("pairs"), help="of the made files")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--agreements", nargs="+", type=float, default=AGREEMENTS)
    add("--prompt-tokens", nargs="+", type=int, default=[32, 2048])
    add("--answer-tokens", nargs="+", type=int, default=[256, 1024])
    add("--grid-tokens", type=int, default=256)
    add("--ctx", type=int, default=4096)
    add("--rounds", type=positive, default=4, help="even: both sides then have each place")
    add("--seed", type=int, default=1)
    asked = parser.parse_args()
    try:
        for name in asked.parts:
            drafter = f"head {asked.head}" if asked.head else f"draft {asked.draft}"
            print(f"\n### {name}: {asked.target} {asked.quantization}, {drafter}\n")
            PARTS[name](asked)
    except LocalspecError as error:
        parser.exit(1, f"Error: {error}\nHint: {error.hint}\n")


if __name__ == "__main__":
    main()
