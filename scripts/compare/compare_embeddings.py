"""Vectors of the same texts from localspec's server and from llama-server, and their speed.

    python scripts/compare/compare_embeddings.py MODEL --programs FOLDER --rounds 5

Both serve the same file over /v1/embeddings, with as many threads. Each round both are asked in
turn for the vectors of the same texts, which no round before had. Prints the smallest cosine of
two vectors of one text, and for each size of a request the tokens/s of both, medians (smallest
… largest). llama-server is built first, see compare_llama_cpp.py, or that in --programs is
used. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comparison.llama_tools import build, default_folder, program_in
from comparison.options import positive
from comparison.server_process import ServerProcess
from localspec.gguf_file.check import check_embedder_file
from localspec.gguf_file.shape import ModelShape, context_to_open
from localspec.machine import num_usable_cores

_PATH = "/v1/embeddings"


class Embedded(NamedTuple):
    """Vectors (texts, width), the tokens of the texts, and seconds."""

    vectors: NDArray[np.float64]
    num_tokens: int
    seconds: float


def servers(model: Path, programs: Path | None) -> tuple[ServerProcess, ServerProcess]:
    """Both, not started."""
    if programs is None:
        programs = build(default_folder(), jobs=os.cpu_count() or 1, no_amx=False).folder
    header = check_embedder_file(model)
    length = str(context_to_open(None, ModelShape(header).context_length, model.name))
    ours = [sys.executable, "-m", "localspec", "serve", "demo", "--embeddings", model]
    theirs = [program_in(programs, "llama-server"), "-m", model, "--embeddings", "-c", length]
    theirs += ["-b", length, "-ub", length, "-t", str(num_usable_cores()), "--no-webui"]
    return ServerProcess("localspec", ours), ServerProcess("llama-server", theirs)


def texts_of(number: int, size: int, num_words: int) -> list[str]:
    """Different texts for each round."""
    words = ("fox", "river", "owl", "hill", "story", "moon", "bread", "letter")
    return [
        " ".join(
            f"{words[(at * (text + 3) + number) % len(words)]} {at * number % 97}"
            for at in range(1, num_words // 2)
        )
        for text in range(size)
    ]


def embedded(server: ServerProcess, texts: list[str]) -> Embedded:
    """One request."""
    started_s = time.perf_counter()
    found: dict[str, Any] = server.ask(_PATH, {"input": texts})
    seconds = time.perf_counter() - started_s
    rows = sorted(found["data"], key=lambda each: each["index"])
    vectors = np.array([each["embedding"] for each in rows])
    return Embedded(vectors, found["usage"]["prompt_tokens"], seconds)


def compare(asked: argparse.Namespace) -> None:
    """Print what came of it."""
    lowest, rates = 1.0, {}
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(one) for one in servers(asked.model.resolve(), asked.programs)
        ]
        for server in both:
            embedded(server, texts_of(0, 1, asked.words))  # loads the model
        for number in range(1, asked.rounds + 1):
            for size in asked.texts:
                texts = texts_of(number, size, asked.words)
                found = {server.name: embedded(server, texts) for server in both}
                both.reverse()  # another one is first each time
                ours, theirs = found["localspec"], found["llama-server"]
                cosines = (ours.vectors * theirs.vectors).sum(axis=1)
                cosines /= np.linalg.norm(ours.vectors, axis=1)
                cosines /= np.linalg.norm(theirs.vectors, axis=1)
                lowest = min(lowest, float(cosines.min()))
                for name, one in found.items():
                    rate = ours.num_tokens / one.seconds
                    rates.setdefault((size, name), []).append(rate)
    print(f"smallest cosine: {lowest:.7f}")
    print("| texts of a request | localspec, tokens/s | llama-server, tokens/s | ratio |")
    print("|---|---|---|---|")
    for size in asked.texts:
        ours, theirs = rates[size, "localspec"], rates[size, "llama-server"]
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        cells = [_spread(ours, 0), _spread(theirs, 0), f"**{_spread(ratios, 3)}**"]
        print(f"| {size} | {' | '.join(cells)} |")


def _spread(values: list[float], digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} … {high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare vectors, and how fast they come.")
    add = parser.add_argument
    add("model", type=Path, help="an embedding model's file")
    add("--programs", type=Path, metavar="FOLDER", help="where a built llama-server is")
    add("--rounds", type=positive, default=5, help="default: 5")
    add("--texts", type=positive, nargs="+", default=[1, 16, 64], help="default: 1 16 64")
    add("--words", type=positive, default=60, help="of a text (default: 60)")
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
