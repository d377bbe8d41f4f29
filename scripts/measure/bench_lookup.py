"""What the lookup takes: to read a token, to find earlier text, to load a memory.

    python scripts/measure/bench_lookup.py TOKENIZER.gguf TEXT...

The texts, a million tokens and 300 000 more, are read in their order. The first million is
remembered; what follows is not. A search is `Lookup.state` behind one new token. Medians, with
the 95th percentile of searches, and the least of three rounds of what takes long.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import localspec
from localspec.speculative.lookup import Lookup
from localspec.speculative.memory import MOST_REMEMBERED, TextMemory
from localspec.speculative.ngram_index import NgramIndex

_REMEMBERED = MOST_REMEMBERED - 1000  # with the gaps between parts it stays within the bound
_OTHER = 300_000
_EMITTED = 5  # tokens of a step
_TEXT = 300  # tokens in front of a search
_ROUNDS = 3


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def search_times(memory: TextMemory, tokens: Sequence[int]) -> list[float]:
    """Microseconds of searches behind places all over the tokens."""
    times = []
    for begin in range(0, len(tokens) - _TEXT, 1777):
        text = list(tokens[begin : begin + _TEXT])
        lookup = Lookup(lambda _token: False, memory)
        lookup.state(text[:-1])
        times.append(1e6 * timed(lambda lookup=lookup, text=text: lookup.state(text)))
    return times


def main() -> None:
    """Measure with the tokens of a model."""
    model, *paths = sys.argv[1:]
    tokens: list[int] = []
    with localspec.load(target=model, draft_tokens=0, memory=False) as engine:
        for path in paths:
            tokens += engine.tokenize(Path(path).read_text("utf-8"))
    if len(tokens) < _REMEMBERED + _OTHER:
        sys.exit(f"the texts have {len(tokens)} tokens, of {_REMEMBERED + _OTHER} needed")
    known, other = tokens[:_REMEMBERED], tokens[_REMEMBERED : _REMEMBERED + _OTHER]

    index = NgramIndex()
    index.read(known[:_OTHER])
    steps = [other[begin : begin + _EMITTED] for begin in range(0, _OTHER, _EMITTED)]
    read = [1e6 * timed(lambda step=step: index.read(step)) / _EMITTED for step in steps]
    print(f"a token read: {statistics.median(read):.2f} µs")

    memory = TextMemory()
    memory.add(known)
    print(f"a token remembered: {memory.index.num_bytes / len(memory):.1f} bytes")
    parts = memory.parts()
    load = min(timed(lambda: TextMemory().restore(parts)) for _ in range(_ROUNDS))
    print(f"{len(memory)} tokens loaded: {load:.2f} s")
    for name, of in (("remembered", known), ("other", other)):
        times = search_times(memory, of)
        high = np.percentile(times, 95)
        print(f"a search, {name} text: {statistics.median(times):.0f} µs ({high:.0f})")


if __name__ == "__main__":
    main()
