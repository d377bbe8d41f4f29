"""Measures the automatic draft length on pairs whose agreement is known.

    python scripts/measure/measure_policy.py --target 1.5B --parts worst grid
    python scripts/measure/measure_policy.py --target 7B-hy_v3 --head inside --parts worst grid

Makes the files it needs (see make_pair.py; 7B pairs take 5 GB of disk each) and prints tables
of ratios, medians of the rounds, greedy. Both sides answer the same prompt, one after the
other, another one first in each round. Every round has another text, for luck decides which of
its tokens the draft gets wrong. The prompt is read at one go, so there is also the ratio of
what came after it.

worst   a draft that is never right, against plain decoding, in total time, prompt included;
        nothing known before and with what the run before learned
grid    against the best two fixed numbers of draft tokens, by measured costs, at each
        agreement; after a short chat, in whose pauses the draft was judged
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import localspec
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError
from localspec.evaluation.bench import measure_costs
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.speedup import Curve, expected_speedup
from localspec.sampling.chain import Resolver
from localspec.speculative.metrics import Stats
from localspec.speculative.policy_api import DraftPolicy, FixedDraftPolicy, ProposerKind
from localspec.speculative.proposers import DraftModel
from shape_pair.bigrams import TextSpec
from shape_pair.blocks import QUANTIZATIONS
from shape_pair.pair import HEADS, HeadSpec, PairSpec, make_pair, make_with_head
from shape_pair.shapes import SHAPES

GREEDY = localspec.SamplingParams(temperature=0)
AGREEMENTS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
SEGMENT = 64
NUM_CHAT_TURNS = 4


class Rounds(NamedTuple):
    """The results of rounds of answers.

    total, decoding: the other side's time ÷ ours in each round, of everything, and of what came
    after the prompt. steps_per_length: of our last answer.
    """

    total: list[float]
    decoding: list[float]
    steps_per_length: Sequence[int]


def prompt_of(num_tokens: int, number: int = 0) -> list[int]:
    """Words that do not repeat. The last one decides which text follows."""
    return [1000 + 3 * index + number for index in range(num_tokens)]


def answer(engine: Engine, policy: DraftPolicy, prompt: list[int], num_tokens: int) -> Stats:
    """Give a greedy answer, with nothing cached before."""
    engine.exclusively(lambda _: None)
    engine._draft_policy = policy
    return engine.generate_raw(prompt, sampling=GREEDY, max_tokens=num_tokens).reply().stats


def rounds(
    engine: Engine,
    ours: Callable[[], DraftPolicy],
    other: Callable[[], DraftPolicy],
    prompts: Sequence[list[int]],
    num_tokens: int,
) -> Rounds:
    """Answers of both sides to each prompt."""
    total = []
    decoding = []
    for number, prompt in enumerate(prompts):
        answer(engine, FixedDraftPolicy(1), prompt_of(32), 16)  # after idle time it is slower
        order = (other, ours) if number % 2 else (ours, other)
        stats = {side: answer(engine, side(), prompt, num_tokens) for side in order}
        our = stats[ours]
        their = stats[other]
        total.append(their.total_time_s / our.total_time_s)
        decoding.append(
            (their.total_time_s - their.time_to_first_token_s)
            / (our.total_time_s - our.time_to_first_token_s)
        )
    return Rounds(total, decoding, our.steps_per_length)


def fresh(engine: Engine) -> AdaptiveDraftPolicy:
    """A policy that knows nothing yet."""
    loop = engine._decoder
    # An engine's guess before any was timed: a decode reads all weights once.
    draft_shares = {
        proposer.kind: proposer.model.num_weight_bytes / loop.target.num_weight_bytes
        if isinstance(proposer, DraftModel)
        else 0.0
        for proposer in loop.proposers
    }
    return AdaptiveDraftPolicy(draft_shares, 1)


@contextlib.contextmanager
def opened(asked: argparse.Namespace, agreement: float) -> Iterator[Engine]:
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
    with localspec.load(target=target, context_length=asked.ctx, **drafting) as engine:
        yield engine


def shown(ratios: Sequence[float]) -> str:
    """Median, and the smallest and the largest."""
    spread = f" ({min(ratios):.3f} … {max(ratios):.3f})" if len(ratios) > 1 else ""
    return f"**{statistics.median(ratios):.3f}**{spread}"


def worst(asked: argparse.Namespace) -> None:
    """The draft is always wrong."""
    print(
        "| prompt | answer | known before | plain ÷ automatic, total time "
        "| after the prompt |\n|---|---|---|---|---|"
    )
    with opened(asked, 0.0) as engine:

        def restored(learned: AdaptiveDraftPolicy) -> AdaptiveDraftPolicy:
            policy = fresh(engine)
            policy.restore(learned.as_dict())
            return policy

        for num_prompt_tokens in asked.prompt_tokens:
            prompts = [prompt_of(num_prompt_tokens, number) for number in range(asked.rounds)]
            for num_tokens in asked.answer_tokens:
                learned = fresh(engine)
                answer(engine, learned, prompt_of(32), 128)
                known = {
                    "nothing": partial(fresh, engine),
                    "a run before": partial(restored, learned),
                }
                plain = partial(FixedDraftPolicy, 0)
                for name, policy in known.items():
                    found = rounds(engine, policy, plain, prompts, num_tokens)
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
    prompts = [prompt_of(32, number) for number in range(asked.rounds)]
    for agreement in asked.agreements:
        with opened(asked, agreement) as engine:
            engine._draft_policy = policy = fresh(engine)
            chain = Resolver(engine.vocabulary).chain(GREEDY, len(prompts[0]))
            # The policy learns them.
            costs = engine.exclusively(partial(measure_costs, chain=chain, tokens=prompts[0]))
            assert costs is not None  # the draft drafts
            curve = Curve((0.0, *costs.ratios), costs.shares.get(ProposerKind.DRAFT, 0.0))
            by_speed = sorted(
                range(len(costs.ratios)),
                key=lambda k: -expected_speedup(curve, agreement, k),
            )
            chat = engine.chat(template="chatml")
            for _ in range(NUM_CHAT_TURNS):
                chat.send("Go on.", sampling=GREEDY, max_tokens=SEGMENT).reply()
                chat.prepare()
            found = {
                k: rounds(
                    engine,
                    lambda: policy,  # noqa: B023
                    partial(FixedDraftPolicy, k),
                    prompts,
                    asked.grid_tokens,
                )
                for k in by_speed[:2]
            }
            k = min(found, key=lambda k: statistics.median(found[k].total))
            steps = enumerate(found[k].steps_per_length)
            lengths = ", ".join(f"{length}: {count}" for length, count in steps if count)
            print(
                f"| {agreement} | {1 / costs.plain_s:.1f} tokens/s | {k} "
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
    add("--rounds", type=int, default=4, help="even: each side is then first as often")
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
