"""Measures the cost of a head (MTP, EAGLE-3, DSpark) that drafts, is idle, or reads a prompt.

    python scripts/measure/measure_heads.py --target 7B-hy_v3

Makes the files it needs (see make_pair.py) and prints tables of ratios, medians of the rounds
(smallest … largest). Sides that are compared take turns. The target is loaded twice, with and
without its head.

draft    what the loop spends on drafting, choosing and sampling included, against the same
         decodes by themselves: after each step libllama is called once for each of them, with
         as many tokens and rows of logits
rest     plain decoding without a head, against plain decoding beside one that is loaded and
         not asked, a token of each in turn; after the prompt
prefill  the same of prompts: the time until the first token; and how many of a prompt's tokens
         the head reads before it drafts, in which share of the prompt's time
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from side_by_side import Timed, read_in_turn, shown

import localspec
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError
from localspec.llama.batch import TokenBatch
from localspec.llama.dflash import DflashHead
from localspec.llama.head import LlamaHead
from localspec.llama.library import llama_cpp
from localspec.llama.options import BATCH_SIZE, ROWS_BATCH_SIZE
from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request
from localspec.speculative.metrics import Step
from localspec.speculative.policy_api import FixedDraftPolicy
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from shape_pair.bigrams import TextSpec
from shape_pair.blocks import QUANTIZATIONS
from shape_pair.pair import HEADS, head_spec, make_with_head
from shape_pair.shapes import SHAPES

SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "temperature 1, no filters": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
}
NUM_PROMPT_TOKENS = 32
NUM_WARM_UP_TOKENS = 16


class Engines(NamedTuple):
    """Of the same target: with a head that rests unless it is asked, and without."""

    resting: Engine
    alone: Engine


class BareHead:
    """The head's context, decoded by itself after the text that it holds."""

    def __init__(self, head: LlamaHead) -> None:
        self._head = head
        self._context = head.handle.context
        model = llama_cpp.llama_get_model(self._context)
        width = llama_cpp.llama_model_n_embd_out(model)
        self._batch = TokenBatch(BATCH_SIZE, width)
        self._batch.rows[:] = np.random.default_rng(0).standard_normal(self._batch.rows.shape)

    def seconds(self, num_read: int, num_drafted: int) -> float:
        """Of a decode of num_read tokens, and of the further ones; all are dropped again."""
        begin = position = self._head.begins_at + self._head.num_cached
        spent_s = 0.0
        for count in [num_read] + [1] * (num_drafted - 1):
            batch = self._batch.filled([1] * count, position, 1)
            started = time.perf_counter()
            status = llama_cpp.llama_decode(self._context, batch)
            llama_cpp.llama_synchronize(self._context)
            spent_s += time.perf_counter() - started
            assert status == 0
            position += count
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, 0, begin, -1)
        return spent_s


class BareBlock:
    """A DFlash head's context: it reads rows, and decodes a block behind them."""

    def __init__(self, head: DflashHead) -> None:
        self._head = head
        self._context = head.handle.context
        self._rows = TokenBatch(ROWS_BATCH_SIZE, head.row_width, rows_alone=True)
        self._rows.rows[:] = np.random.default_rng(0).standard_normal(self._rows.rows.shape)
        self._tokens = TokenBatch(ROWS_BATCH_SIZE)

    def seconds(self, num_read: int, num_drafted: int) -> float:
        """Of both decodes; what they leave is dropped again."""
        begin = self._head.begins_at + self._head.num_cached
        size = num_drafted + self._head.first_row
        started = time.perf_counter()
        for batch in (
            self._rows.filled([0] * num_read, begin, 0),
            self._tokens.filled([1] * size, begin + num_read, size),
        ):
            assert llama_cpp.llama_decode(self._context, batch) == 0
        llama_cpp.llama_synchronize(self._context)
        spent_s = time.perf_counter() - started
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, 0, begin, -1)
        return spent_s


def prompt_of(num_tokens: int, number: int) -> list[int]:
    """Words that do not repeat. The last one decides which text follows."""
    return [1000 + 3 * index + number for index in range(num_tokens)]


def steps(
    engine: Engine, prompt: Sequence[int], sampling: SamplingParams, num_tokens: int
) -> Iterator[tuple[Step, LlamaHead]]:
    """Of an answer, by the engine's policy, and the head as each of them leaves it."""
    with engine.exclusively() as loop:
        head = engine._models.head
        assert isinstance(head, LlamaHead)
        rule = make_rule(
            None, is_greedy=sampling.is_greedy, seed=None, randomness=Randomness(0)
        )
        chain = SamplerChain(sampling, num_prompt_tokens=len(prompt))
        loop.start(prompt)
        for step in loop.steps(Request(chain, rule, num_tokens, lambda _token: False)):
            yield step, head


def draft(engines: Engines, asked: argparse.Namespace) -> None:
    """A drafted token against the same decode."""
    print(
        "| K | sampling | ms a drafted token | the same decode alone, ms | drafting ÷ alone |"
    )
    print("|---|---|---|---|---|")
    engine = engines.resting
    for num_draft_tokens in asked.draft_tokens:
        for name, sampling in SETTINGS.items():
            engine._draft_policy = FixedDraftPolicy(num_draft_tokens)
            drafted_ms, alone_ms = [], []
            for number in range(asked.rounds):
                prompt = prompt_of(NUM_PROMPT_TOKENS, number)
                ours, bare = _drafting_ms(engine, prompt, sampling, asked.answer_tokens)
                drafted_ms.append(ours)
                alone_ms.append(bare)
            ratios = [ours / bare for ours, bare in zip(drafted_ms, alone_ms, strict=True)]
            print(
                f"| {num_draft_tokens} | {name} | {statistics.median(drafted_ms):.2f} "
                f"| {statistics.median(alone_ms):.2f} | {shown(ratios)} |",
                flush=True,
            )


def _drafting_ms(
    engine: Engine, prompt: list[int], sampling: SamplingParams, num_tokens: int
) -> tuple[float, float]:
    """Milliseconds a drafted token of an answer, and of the same decodes; medians of steps."""
    drafted_ms, alone_ms, bare, num_read = [], [], None, 1
    for step, head in steps(engine, prompt, sampling, num_tokens):
        num_drafted = len(step.confidences)
        kind = BareBlock if isinstance(head, DflashHead) else BareHead
        bare = bare or kind(head)
        if num_drafted:
            drafted_ms.append(1e3 * step.draft_time_s / num_drafted)
            # A block reads what the step before has emitted, and does not say how many.
            count = num_read if isinstance(bare, BareBlock) else step.num_read
            alone_ms.append(1e3 * bare.seconds(count, num_drafted) / num_drafted)
        num_read = len(step.tokens)
    # The first one reads the prompt, too.
    return statistics.median(drafted_ms[1:]), statistics.median(alone_ms[1:])


def rest(engines: Engines, asked: argparse.Namespace) -> None:
    """Plain decoding with a head and without."""
    print("| answer | without ÷ with a head at rest, after the prompt |\n|---|---|")
    engines.resting._draft_policy = FixedDraftPolicy(0)
    ratios = []
    for number in range(asked.rounds):
        with_head, without = _timed(engines, NUM_PROMPT_TOKENS, asked.answer_tokens, number)
        ratios.append(
            (without.total_s - without.first_s) / (with_head.total_s - with_head.first_s)
        )
    print(f"| {asked.answer_tokens} | {shown(ratios)} |", flush=True)


def prefill(engines: Engines, asked: argparse.Namespace) -> None:
    """Prompts with a head and without, and the head's own reading."""
    print(
        "| prompt | until the first token, s | without ÷ with a head at rest "
        "| tokens that the head reads then | in this share of the prompt's time |\n"
        "|---|---|---|---|---|"
    )
    for num_tokens in asked.prompt_tokens:
        engines.resting._draft_policy = FixedDraftPolicy(0)
        ratios, plain_s, shares, num_read = [], [], [], 0
        for number in range(asked.rounds):
            with_head, without = _timed(engines, num_tokens, 1, number)
            plain_s.append(without.first_s)
            ratios.append(without.first_s / with_head.first_s)
        engines.resting._draft_policy = FixedDraftPolicy(1)
        for number in range(asked.rounds):
            answer = steps(
                engines.resting, prompt_of(num_tokens, number), SETTINGS["greedy"], 3
            )
            found = [step for step, _ in answer]
            num_read = found[1].num_read
            shares.append(found[1].draft_time_s / found[0].target_time_s)
        print(
            f"| {num_tokens} | {statistics.median(plain_s):.2f} | {shown(ratios)} "
            f"| {num_read} | {shown(shares)} |",
            flush=True,
        )


def _timed(
    engines: Engines, num_prompt_tokens: int, num_tokens: int, number: int
) -> tuple[Timed, Timed]:
    """Greedy answers to the same prompt: with the head at rest and without."""
    prompt = prompt_of(num_prompt_tokens, number)
    sides = []
    for engine in engines:
        with engine.exclusively():
            pass  # nothing is cached
        stream = engine.generate_raw(prompt, sampling=SETTINGS["greedy"], max_tokens=num_tokens)
        sides.append(Timed(stream))
    read_in_turn(sides[::-1] if number % 2 else sides)
    with_head, without = sides
    return with_head, without


PARTS = {"draft": draft, "rest": rest, "prefill": prefill}


def measure(asked: argparse.Namespace) -> None:
    """Load the target twice, and print the parts."""
    text = TextSpec(
        entropy=1.0, agreement=(asked.agreement,), segment=64, period=None, seed=asked.seed
    )
    spec = head_spec(asked.target, asked.quantization, text, asked.head)
    target, head = make_with_head(spec, asked.folder)
    load = partial(localspec.load, target=target, context_length=asked.ctx)
    with load(head=head, proposer="head") as resting, load(proposer="none") as alone:
        engines = Engines(resting, alone)
        for engine in engines:
            for _ in engine.generate_raw(
                prompt_of(NUM_PROMPT_TOKENS, 0), max_tokens=NUM_WARM_UP_TOKENS
            ):
                pass  # the first time takes longer
        for name in asked.parts:
            print(f"\n### {name}: {target.stem}, head {asked.head}\n")
            PARTS[name](engines, asked)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    with_head = [name for name, shape in SHAPES.items() if shape.has_head]
    add("--target", choices=with_head, default="7B-hy_v3")
    add("--head", choices=HEADS, default="inside", help="see make_pair.py")
    add("--quantization", choices=QUANTIZATIONS, default="Q4_0")
    add("--agreement", type=float, default=0.8)
    add("--folder", type=Path, default=Path("pairs"), help="of the made files")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--draft-tokens", nargs="+", type=int, default=[1, 4], metavar="K")
    add("--answer-tokens", type=int, default=128)
    add("--prompt-tokens", nargs="+", type=int, default=[512, 1024, 2048])
    add("--ctx", type=int, default=4096)
    add("--rounds", type=int, default=4, help="even: both sides then have each place")
    add("--seed", type=int, default=1)
    try:
        measure(parser.parse_args())
    except LocalspecError as error:
        parser.exit(1, f"Error: {error}\nHint: {error.hint}\n")


if __name__ == "__main__":
    main()
