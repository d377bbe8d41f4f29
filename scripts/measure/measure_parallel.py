"""Measures what several answers at once gain, and what one alone pays for their lanes.

    python scripts/measure/measure_parallel.py TARGET.gguf --draft DRAFT.gguf --clients 1 2 4

Sides take turns, round by round: so many clients ask an engine with as many lanes as most of
them, each in a thread, for answers of `--tokens` tokens to prompts of their own. Printed are,
for each number of clients, all their tokens per second and the longest time to a first token,
as medians of the rounds; the sum ÷ that of one client; decodes of the target per token; and one
client with these lanes ÷ one with parallel=1. Without TARGET it is the demo pair.

`--beside N` measures instead how long a short question takes to its first token while a prompt
of N tokens is read, and while a long answer is produced.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import localspec
from localspec import Engine, Reply, SamplingParams

_OPENINGS = (
    "Write a function that reads a file and counts its words.",
    "Explain in detail how a sailing boat can go against the wind.",
    "Tell me a long story about a fox who wants to cross a river.",
    "List the steps of baking bread, and say why each matters.",
)


class Round(NamedTuple):
    """One round of one side. tokens_per_s: of all clients together."""

    tokens_per_s: float
    first_token_s: float
    decodes_per_token: float


def at_once(works: list[Callable[[], Reply]]) -> list[Reply]:
    """The replies, each asked for by a thread of its own."""
    found: list[Reply] = []
    threads = [threading.Thread(target=lambda w=work: found.append(w())) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) < len(works):
        raise SystemExit("a client failed: see its error above")
    return found


def asking(
    engine: Engine, prompt: str | list[int], num_tokens: int, temperature: float
) -> Callable[[], Reply]:
    sampling = SamplingParams(temperature=temperature, ignore_eos=True)
    return lambda: engine.generate_raw(
        prompt, sampling=sampling, max_tokens=num_tokens, seed=1, queue=True
    ).reply()


def one_round(engine: Engine, clients: int, tokens: int, temperature: float) -> Round:
    before, started = engine.num_decodes, time.perf_counter()
    prompts = [_OPENINGS[number % len(_OPENINGS)] for number in range(clients)]
    replies = at_once([asking(engine, prompt, tokens, temperature) for prompt in prompts])
    seconds = time.perf_counter() - started
    said = sum(len(reply.token_ids) for reply in replies)
    first_s = max(reply.stats.time_to_first_token_s for reply in replies)
    return Round(said / seconds, first_s, (engine.num_decodes - before) / said)


def measure(arguments: argparse.Namespace, alone: Engine, several: Engine) -> None:
    sides = [(alone, 1), *((several, clients) for clients in arguments.clients)]
    rounds: list[list[Round]] = [[] for _ in sides]
    for number in range(arguments.rounds + 1):
        for place, (engine, clients) in enumerate(sides):
            found = one_round(engine, clients, arguments.tokens, arguments.temperature)
            if number > 0:  # the first warms up
                rounds[place].append(found)
    medians = [Round(*map(statistics.median, zip(*each, strict=True))) for each in rounds]
    one = medians[1 + arguments.clients.index(1)] if 1 in arguments.clients else medians[0]
    for (engine, clients), found in zip(sides, medians, strict=True):
        print(
            f"{clients} clients, {engine.parallel} lanes: {found.tokens_per_s:.2f} tokens/s, "
            f"first token after {1e3 * found.first_token_s:.0f} ms, "
            f"{found.decodes_per_token:.2f} decodes per token; "
            f"÷ one client {found.tokens_per_s / one.tokens_per_s:.3f}"
        )
    ratios = [b.tokens_per_s / a.tokens_per_s for a, b in zip(*rounds[:2], strict=True)]
    firsts = [b.first_token_s / a.first_token_s for a, b in zip(*rounds[:2], strict=True)]
    if arguments.clients[0] == 1:
        print(
            f"one client, {several.parallel} lanes ÷ 1: tokens/s "
            f"{statistics.median(ratios):.3f}, first token {statistics.median(firsts):.3f}"
        )


def measure_beside(arguments: argparse.Namespace, engine: Engine) -> None:
    """A short question's first token beside a long prompt, and beside a long answer."""
    short = asking(engine, _OPENINGS[0], 8, 0.0)
    size = engine.vocabulary.size
    prompt = [(7919 * place + 13) % size for place in range(arguments.beside)]
    short()
    print(f"alone: {short().stats.time_to_first_token_s:.2f} s")
    for name, work in (
        ("a prompt", asking(engine, prompt, 1, 0.0)),
        ("an answer", asking(engine, _OPENINGS[2], arguments.tokens * 4, 0.0)),
    ):
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(2.0)
        waits = [short().stats.time_to_first_token_s for _ in range(3)]
        is_over = not thread.is_alive()
        engine.cancel()
        thread.join()
        print(
            f"beside {name}{', which was over' if is_over else ''}: "
            f"first token after {', '.join(f'{each:.2f}' for each in waits)} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", nargs="?", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--head", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--draft-tokens", type=int)
    parser.add_argument("--proposer", default="auto")
    parser.add_argument("--beside", type=int, metavar="N")
    arguments = parser.parse_args()
    options = {
        "target": arguments.target,
        "draft": arguments.draft,
        "head": arguments.head,
        "draft_tokens": arguments.draft_tokens,
        "proposer": arguments.proposer,
        "context_length": max(arguments.context, (arguments.beside or 0) + 64),
        "kept_bytes": 1 << 34,
        "memory": False,  # else each round would repeat the one before
    }
    with localspec.load(**options, parallel=max(arguments.clients)) as several:
        if arguments.beside:
            measure_beside(arguments, several)
            return
        with localspec.load(**options) as alone:
            measure(arguments, alone, several)


if __name__ == "__main__":
    main()
