"""What drafting gains on this machine's GPU: one table in at most nine minutes.

    python scripts/measure/gpu_report.py --out report.md

It makes an 8B target with a DSpark head whose tokens are kept at 0.8, a head that is useless,
and a 1.5B model (see make_pair.py: 8 GB of disk in --folder, and two minutes, once), and prints
a Markdown table. Each row is written to --out as soon as it is known, so that a time limit
loses nothing. Rows that there is no time for say so. What is compared with llama.cpp needs its
llama-bench on PATH. Nothing that other runs have learned is used or changed.

`--shape tiny-llama --small tiny --device cpu --tokens 32` tries it on any machine, in minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
AGREEMENT = 0.8
USELESS = 0.02
FIXED = (1, 2, 3, 5, 7)  # draft tokens that automatic is compared with
EXACT = (0, 1, 2, 3)
LONG_PREDICTION = 15
ROUNDS = 2  # of an answer, the faster of which counts
BENCH_TOKENS = 128
TESTS_S = 150.0  # that `pytest -m gpu` takes on a GPU


class Row(NamedTuple):
    """A line of the table. goal: what it is to be, in words."""

    what: str
    figure: str
    goal: str


@dataclass
class Files:
    """What is measured. small: a second, smaller model."""

    target: Path
    head: Path
    useless: Path
    small: Path


@dataclass
class Report:
    """The table, in a file and on the screen, and the time that is left for it."""

    out: Path
    end_s: float

    def begin(self, about: str) -> None:
        """Write what stands above the rows."""
        self.out.write_text("")
        self._write(f"{about}\n\n| what | figure | goal |\n|---|---|---|")

    def add(self, row: Row) -> None:
        """Write a row."""
        self._write(f"| {row.what} | {row.figure} | {row.goal} |")

    @property
    def left_s(self) -> float:
        """Seconds until the time is over."""
        return self.end_s - time.monotonic()

    def _write(self, text: str) -> None:
        with self.out.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        print(text, flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure drafting on this machine's GPU.")
    add = parser.add_argument
    add("--out", type=Path, default=Path("gpu_report.md"), help="the file of the table")
    add("--folder", type=Path, default=Path("pairs"), help="of the made models")
    add("--shape", default="8B-llama", help="of the target")
    add("--small", default="1.5B", help="shape of the smaller model")
    add("--device", help="where to compute, as for localspec.load (default: as it chooses)")
    add("--tokens", type=int, default=256, help="of an answer")
    add("--minutes", type=float, default=9.0, help="that all of it may take")
    asked = parser.parse_args()
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        # Before the package is imported: where costs and devices are kept.
        os.environ["XDG_CACHE_HOME"] = cache
        report = Report(asked.out, begin_s + 60 * asked.minutes)
        files = made_files(asked.shape, asked.small, asked.folder)
        measure(files, report, asked.device, asked.tokens)
        print(f"\n{(time.monotonic() - begin_s) / 60:.1f} minutes; the table is in {asked.out}")


def made_files(shape: str, small: str, folder: Path) -> Files:
    """Make what is not there."""
    from shape_pair.bigrams import TextSpec
    from shape_pair.pair import HeadSpec, PairSpec, make_pair, make_with_head

    drafts = {"1.5B": "0.5B", "tiny": "tiny"}
    heads = []
    for agreement in (AGREEMENT, USELESS):
        text = TextSpec(1.0, (agreement,), 64, None, 1)
        target, head = make_with_head(HeadSpec(shape, "Q4_0", text, "block"), folder)
        assert head is not None
        heads.append(head)
    text = TextSpec(1.0, (AGREEMENT,), 64, None, 1)
    draft = drafts.get(small, small)
    other, _ = make_pair(PairSpec(small, draft, "Q4_0", "Q4_0", text), folder)
    return Files(target, heads[0], heads[1], other)


def measure(files: Files, report: Report, device: str | None, num_tokens: int) -> None:
    """Add all rows, or say for which there was no time."""
    import localspec
    from localspec.llama.library import devices, kernels

    known = ", ".join(f"{each.name}: {each.description}" for each in devices())
    report.begin(f"{files.target.name}; {known}; {kernels()}")
    run = Run(files, device, num_tokens)
    parts: list[tuple[str, float, Callable[[], Iterator[Row]]]] = [
        ("device choice", 10.0, run.choice),
        ("K 3 over plain, a block, automatic", 60.0, run.drafted),
        ("a useless head", 20.0, run.useless_head),
        ("the answer as prediction", 20.0, run.predicted),
        ("plain over llama-bench", 30.0, run.against_bench),
        ("exact", 45.0, run.exact),
        ("pytest -m gpu", TESTS_S, lambda: gpu_tests(report.left_s, device)),
    ]
    for name, needed_s, rows in parts:
        if report.left_s < needed_s:
            report.add(Row(name, f"no time: {report.left_s:.0f} s were left", ""))
            continue
        try:
            for row in rows():
                report.add(row)
        except localspec.LocalspecError as error:
            report.add(Row(name, f"failed: {error}", ""))


class Run:
    """The parts that load models.

    Args:
        files: what is loaded.
        device: as for `localspec.load`.
        num_tokens: of an answer.
    """

    def __init__(self, files: Files, device: str | None, num_tokens: int) -> None:
        import localspec

        self._files = files
        self._device = device
        self._num_tokens = num_tokens
        self._prompt = [1000 + 3 * index for index in range(64)]
        self._plain: dict[str, Any] = {}  # statistics by the name of a sampling
        self.samplings = {
            "T 0": localspec.SamplingParams(temperature=0),
            "T 0.8 usual": localspec.SamplingParams(temperature=0.8),
            "T 1 unfiltered": localspec.SamplingParams(
                temperature=1, top_k=0, top_p=1, min_p=0
            ),
        }

    def _open(self, target: Path | None = None, **options: Any) -> Any:
        import localspec

        path = target or self._files.target
        options = {"context_length": 2048, "device": self._device, "memory": False} | options
        return localspec.load(target=path, **options)

    def _answer(self, engine: Any, sampling: str = "T 0", **options: Any) -> Any:
        answer = engine.generate_raw(
            _shortened(self._prompt, engine),
            sampling=self.samplings[sampling],
            max_tokens=self._num_tokens,
            ignore_eos=True,
            seed=3,
            **options,
        )
        return answer.reply()

    def _fastest(self, engine: Any, sampling: str = "T 0", **options: Any) -> Any:
        stats = [self._answer(engine, sampling, **options).stats for _ in range(ROUNDS)]
        return max(stats, key=lambda each: each.tokens_per_s)

    def choice(self) -> Iterator[Row]:
        """Which device a load takes, and why."""
        import localspec

        begin_s = time.monotonic()
        with localspec.load(target=self._files.target, draft_tokens=0) as engine:
            seconds = time.monotonic() - begin_s
            yield Row(f"device choice (first load {seconds:.0f} s)", engine.device, "the GPU")

    def drafted(self) -> Iterator[Row]:
        """Fixed K, a block and automatic, against plain decoding."""
        with self._open(draft_tokens=0) as engine:
            for name in self.samplings:
                self._plain[name] = self._fastest(engine, name)
        goals = dict(zip(self.samplings, ("≥ 1.7", "≥ 1.6", "≥ 1.4"), strict=True))
        best = 0.0
        with self._open(head=self._files.head, draft_tokens=3) as engine:
            for name, goal in goals.items():
                stats = self._fastest(engine, name)
                plain = self._plain[name]
                yield _ratio(f"K 3 ÷ plain, {name}", stats, plain, goal)
                if name == "T 0":
                    block_s = stats.draft_time_s / stats.num_steps
                    decode_s = plain.target_time_s / plain.num_steps
                    what = "a block ÷ a plain decode"
                    yield Row(what, f"{block_s / decode_s:.2f}", "≤ 0.25")
            for count in FIXED:
                stats = self._fastest(engine, draft_tokens=count)
                best = max(best, stats.tokens_per_s)
        with self._open(head=self._files.head) as engine:
            first, second = (self._answer(engine).stats.tokens_per_s for _ in range(2))
        yield Row("automatic ÷ best fixed, second answer", f"{second / best:.2f}", "≥ 0.97")
        yield Row("automatic ÷ best fixed, first answer", f"{first / best:.2f}", "≥ 0.9")

    def useless_head(self) -> Iterator[Row]:
        """Automatic with a head that is hardly ever right."""
        with self._open(head=self._files.useless) as engine:
            self._answer(engine)
            stats = self._fastest(engine)
        yield _ratio("useless head, automatic ÷ plain", stats, self._plain["T 0"], "≥ 0.98")

    def predicted(self) -> Iterator[Row]:
        """The answer itself as the prediction of it."""
        with self._open(proposer="lookup", draft_tokens=LONG_PREDICTION) as engine:
            tokens = self._answer(engine, draft_tokens=0).token_ids
            stats = self._fastest(engine, prediction=tokens, draft_tokens=LONG_PREDICTION)
        yield _ratio(
            "the answer as prediction, K 15 ÷ plain", stats, self._plain["T 0"], "≥ 5.5"
        )

    def against_bench(self) -> Iterator[Row]:
        """Plain decoding against llama.cpp's own."""
        program = shutil.which("llama-bench")
        goals = {self._files.target: "≥ 0.97", self._files.small: "≥ 0.93"}
        for path, goal in goals.items():
            what = f"plain ÷ llama-bench, {path.name.split('-')[0]}"
            if program is None:
                yield Row(what, "llama-bench is not on PATH", goal)
                continue
            stats = self._plain.get("T 0") if path == self._files.target else None
            if stats is None:
                with self._open(path, draft_tokens=0) as engine:
                    stats = self._fastest(engine)
            theirs = _bench_speed(program, path, self._device)
            yield Row(what, f"{stats.tokens_per_s / theirs:.2f} of {theirs:.0f}/s", goal)

    def exact(self) -> Iterator[Row]:
        """Texts with every number of draft tokens, with exact decodes.

        In a process of its own: kernels of the processor are chosen once in a process.
        """
        import localspec

        options = {"context_length": 2048, "device": self._device, "memory": False}
        options |= {"head": self._files.head, "draft_tokens": 3, "exact": True}
        with localspec.IsolatedEngine(target=self._files.target, **options) as engine:
            texts = {
                tuple(self._answer(engine, draft_tokens=count).token_ids) for count in EXACT
            }
            words = "identical" if len(texts) == 1 else f"{len(texts)} texts"
            yield Row(f"exact, K 1 to 3 ({engine.exactness})", words, "identical")


def _shortened(prompt: list[int], engine: Any) -> list[int]:
    """The prompt's tokens that the model has."""
    size = len(prompt)
    found = [token % (engine.vocabulary.size // 2) + 4 for token in prompt]
    return found[:size]


def _ratio(what: str, stats: Any, plain: Any, goal: str) -> Row:
    ratio = stats.tokens_per_s / plain.tokens_per_s
    return Row(what, f"{ratio:.2f} of {plain.tokens_per_s:.0f}/s", goal)


def _bench_speed(program: str, path: Path, device: str | None) -> float:
    """llama-bench's tokens a second."""
    layers = "0" if device == "cpu" else "99"
    options = ["-p", "0", "-n", str(BENCH_TOKENS), "-r", str(ROUNDS), "-ngl", layers]
    command = [program, "-m", str(path), *options, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


def gpu_tests(left_s: float, device: str | None) -> Iterator[Row]:
    """The tests of what holds on a GPU, as long as there is time."""
    environment = dict(os.environ)
    if device == "cpu":
        environment["LOCALSPEC_TEST_DEVICE"] = "cpu"
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--no-header"]
    try:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True,
            timeout=left_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        yield Row("pytest -m gpu", f"not done after {left_s:.0f} s", "green")
        return
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    yield Row("pytest -m gpu", last.strip("= "), "green")


if __name__ == "__main__":
    main()
