"""Which files are exact on this machine, and what that costs.

    python scripts/measure/measure_exact.py T.gguf
    python scripts/measure/measure_exact.py T.gguf --types Q4_0 Q6_K Q8_0 --folder WHERE

With --types the file is requantised to each of them first. For each file two processes, one
with the usual settings and one with exact ones, decode in turn. The table has the exact sizes,
and what decodes of 1, 5 and 9 tokens take behind texts of two lengths, and reading the first
of these, each ÷ the same with the usual settings: medians, with the quartiles of the ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

SIZES = (1, 5, 9)
LENGTHS = (100, 1500)
CONTEXT_LENGTH = 2048


def serve(calls: Connection, path: Path, *, exact: bool) -> None:
    """Open the file, answer with what is exact; then time what is asked for, in seconds."""
    import localspec
    from localspec.errors import LocalspecError

    try:
        engine = localspec.load(
            target=path, exact=exact, draft_tokens=0, context_length=CONTEXT_LENGTH
        )
    except LocalspecError as error:
        calls.send(str(error))
        return
    calls.send(str(engine.exactness))
    with engine, engine.exclusively() as loop:
        target = loop.target
        while (asked := calls.recv()) is not None:
            num_cached, num_tokens, num_logits = asked
            target.truncate(min(num_cached, target.num_cached))
            missing = num_cached - target.num_cached
            if missing:
                target.decode(tokens(target.num_cached, missing), 0)
            started = time.perf_counter()
            target.decode(tokens(num_cached, num_tokens), num_logits)
            calls.send(time.perf_counter() - started)


def tokens(begin: int, count: int) -> list[int]:
    """Some tokens at these positions, the same on both sides."""
    return [100 + 7919 * position % 900 for position in range(begin, begin + count)]


class Sides:
    """Both processes of a file."""

    def __init__(self, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.exactness = [], []
        for exact in (False, True):
            ours, theirs = context.Pipe()
            context.Process(
                target=serve, args=(theirs, path), kwargs={"exact": exact}, daemon=True
            ).start()
            theirs.close()
            self.pipes.append(ours)
            self.exactness.append(ours.recv())

    def ratio(self, asked: tuple[int, int, int], rounds: int) -> str:
        """Seconds of the exact side ÷ those of the usual one."""
        ratios = []
        for _ in range(rounds + 1):
            seconds = []
            for pipe in self.pipes:
                pipe.send(asked)
                seconds.append(pipe.recv())
            ratios.append(seconds[1] / seconds[0])
        low, median, high = np.percentile(ratios[1:], [25, 50, 75])
        return f"{median:.2f} ({low:.2f} to {high:.2f})"

    def close(self) -> None:
        """End them."""
        for pipe in self.pipes:
            pipe.send(None)


def requantised(source: Path, folder: Path, kind: str) -> Path:
    """A file of that type, made of another one."""
    from localspec.llama.library import llama_cpp  # whose words go to the log

    path = folder / f"{source.stem}-to-{kind}.gguf"
    if not path.exists():
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
        params.allow_requantize = True
        status = llama_cpp.llama_model_quantize(
            str(source).encode(), str(path).encode(), params
        )
        if status:
            raise SystemExit(f"libllama cannot make {path} (status {status})")
    return path


def main() -> None:
    """Measure the file that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--types", nargs="*", default=[])
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    steps = [(length, size) for length in LENGTHS for size in SIZES]
    head = [f"{size} after {length}" for length, size in steps]
    print("| file | exact | " + " | ".join([*head, f"prompt of {LENGTHS[0]}"]) + " |")
    print("|---" * (len(head) + 3) + "|")
    for kind in asked.types or [None]:
        path = asked.file if kind is None else requantised(asked.file, asked.folder, kind)
        sides = Sides(path)
        if sides.exactness[1] == "all sizes":
            cells = [sides.ratio((length, size, size), asked.rounds) for length, size in steps]
            cells.append(sides.ratio((0, LENGTHS[0], 1), asked.rounds // 2))
            sides.close()
        else:
            cells = ["-"] * (len(steps) + 1)
        print(f"| {path.stem} | {sides.exactness[1]} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
