"""Measures how long it takes to change from one conversation to another.

    python scripts/measure/measure_changing.py MODEL.gguf --tokens 10000 --rounds 30

Two texts of that many tokens lie in the caches of one model. Once their caches lie side by side
in its context; once there is room for one, and each change copies one text out and the other
in. Printed are the least times: of the change, of the first decode of a token behind it, and of
a decode that no change precedes; and of a copy of a beginning for a third text. Without MODEL
it is the demo pair's target.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import localspec
from localspec.engine.cache_pool import CachePool, TextPlace
from localspec.llama.lane_time import LaneTime
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.policy_api import FixedDraftPolicy
from localspec.speculative.thread_policy import FixedThreads

_DEMO = Path(localspec.__file__).parent / "demo/target.gguf"
_BUDGET = 1 << 40  # bytes of copies: all that there are


class Owner:
    """A conversation, to the pool."""


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _loop(model: LlamaModel) -> SpeculativeDecoder:
    policies = FixedDraftPolicy(0), FixedThreads(1)
    return SpeculativeDecoder(model, [], *policies, None, time.perf_counter)


def measure(path: Path, num_tokens: int, rounds: int, num_sequences: int) -> None:
    """Print the least times with that many sequences."""
    model = LlamaModel.open(
        path, LlamaOptions(context_length=num_tokens + 512, num_sequences=num_sequences)
    )
    models = [model, *(model.beside(n, LaneTime()) for n in range(1, num_sequences))]
    places = [TextPlace(_loop(each), [each]) for each in models]
    pool = CachePool(places, _BUDGET)
    size = model.vocab_size
    texts = {
        Owner(): [(step * index + 11) % size for index in range(num_tokens)]
        for step in (7919, 104729)
    }

    loop = places[0].decoder

    def go_to(owner: Owner | None, tokens: list[int]) -> None:
        nonlocal loop
        place = pool.place_for(owner, tokens, places)
        pool.switch_to(place, owner, tokens, places)
        loop = place.decoder
        loop.start(tokens)

    def one_token() -> None:
        tokens = loop.tokens[loop.target.num_cached :]
        loop.target.decode(tokens, 1)

    for owner, tokens in texts.items():
        go_to(owner, tokens)
        one_token()
    changes, firsts, others = [], [], []
    for _ in range(rounds):
        for owner, tokens in texts.items():
            changes.append(seconds(lambda o=owner, t=tokens: go_to(o, t)))
            firsts.append(seconds(one_token))
            loop.start(tokens)
            others.append(seconds(one_token))
    beginning = next(iter(texts.values()))[: num_tokens // 2]
    share = seconds(lambda: go_to(Owner(), [*beginning, 5]))
    kind = "side by side" if num_sequences > 1 else "copied out and in"
    print(
        f"{kind}: change {1e3 * min(changes):.2f} ms, the decode behind it "
        f"{1e3 * min(firsts):.2f} ms, any other {1e3 * min(others):.2f} ms; "
        f"a third text begins with half of one: {1e3 * share:.1f} ms, "
        f"{loop.target.num_cached} tokens of {num_tokens // 2} cached; "
        f"copies hold {pool.num_bytes / 1e6:.1f} MB"
    )
    model.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, default=_DEMO)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    for num_sequences in (3, 1):
        measure(arguments.model, arguments.tokens, arguments.rounds, num_sequences)


if __name__ == "__main__":
    main()
