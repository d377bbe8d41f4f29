"""Opens damaged projectors, and shows them a picture, in processes that may end.

    python scripts/measure/fuzz_projectors.py MODEL.gguf MMPROJ.gguf --count 500

Each file is the projector with a few bytes changed, most of them in its header, or cut short.
Printed is how many were refused by their header, refused by libmtmd, read, or ended their
process, as an engine in a process of its own would notice; how many took longer than a minute;
and the most memory that a process had. Each ended process is named by its file's number, which
`--first` repeats.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import random
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from localspec.errors import LocalspecError
from localspec.gguf_file.header import read_header
from localspec.gguf_file.projector import require_free_of_place
from localspec.gguf_file.projector_check import checked_projector, require_projector_of
from localspec.llama.library import report_aborts
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions
from localspec.llama.projector import Projector
from localspec.pictures.cells import cell_rows
from localspec.pictures.picture import Picture

_PATIENCE_S = 60.0
_FAILED = ("too slow", "ended its process")


def damaged(data: bytes, header_bytes: int, number: int) -> bytes:
    """The file of that number."""
    chance = random.Random(number)
    if chance.random() < 0.1:
        return data[: chance.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        in_header = chance.random() < 0.9
        place = chance.randrange(header_bytes if in_header else len(data))
        changed[place] = chance.choice((0, 1, 255, chance.randrange(256)))
    return bytes(changed)


def tried(model: LlamaModel, path: Path) -> str:
    """What becomes of a projector's file."""
    picture = Picture(40, 60, bytes(7200))
    try:
        header = checked_projector(path)
        require_free_of_place(header)
        require_projector_of(read_header(Path(model.name)), header)
    except LocalspecError:
        return "refused by the header"
    try:
        projector = Projector(path, model.handle, num_threads=1, use_gpu=False)
    except LocalspecError:
        return "refused by libmtmd"
    try:
        projector.content = "any"
        cells = projector.cells(picture)
        rows = [projector.part([cells[place] for place in row]) for row in cell_rows(cells)]
        for part in rows:
            projector.rows(part, lambda: False)
    except LocalspecError:
        return "refused when it reads"
    finally:
        projector.close()
    return "read"


def work(line: Connection, model_path: Path, mmproj: Path, folder: Path) -> None:
    """Try the files whose numbers come."""
    report_aborts(lambda words: line.send(f"ended its process: {words.strip()[-120:]}"))
    model = LlamaModel.open(model_path, LlamaOptions(context_length=512))
    model.name = str(model_path)
    data = mmproj.read_bytes()
    header_bytes = checked_projector(mmproj).data_start
    path = folder / "damaged.gguf"
    while True:
        number = line.recv()
        path.write_bytes(damaged(data, header_bytes, number))
        line.send(tried(model, path))


def outcomes(model: Path, mmproj: Path, numbers: range) -> Iterator[tuple[int, str, int]]:
    """What became of each file, and the bytes of memory that its process has."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        process, line = None, None
        for number in numbers:
            if process is None or line is None:
                line, other = context.Pipe()
                process = context.Process(
                    target=work, args=(other, model, mmproj, Path(folder)), daemon=True
                )
                process.start()
                other.close()
                watched = psutil.Process(process.pid)
            line.send(number)
            try:
                outcome = line.recv() if line.poll(_PATIENCE_S) else "too slow"
            except EOFError:
                outcome = "ended its process"
            used = 0
            if outcome.startswith(_FAILED):
                process.kill()
                process.join()
                process = None
            else:
                used = watched.memory_info().rss
            yield number, outcome, used
        if process is not None:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("mmproj", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    found: collections.Counter[str] = collections.Counter()
    most = 0
    numbers = range(arguments.first, arguments.first + arguments.count)
    for number, outcome, used in outcomes(arguments.model, arguments.mmproj, numbers):
        found[outcome.partition(":")[0]] += 1
        most = max(most, used)
        if outcome.startswith(_FAILED):
            print(f"{number}: {outcome}")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in found.most_common())
    print(f"{sum(found.values())} files: {counts}; at most {most / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
