"""Reads one input of the campaign's class "files" again, in this process.

    python scripts/faults/repeat_file.py templates 1234 --seed 7
    python scripts/faults/repeat_file.py templates --file FILE

`--keep FILE` writes the input there. What is lost shows as it does to a caller.
"""

from __future__ import annotations

import argparse
import faulthandler
import tempfile
from pathlib import Path

import campaign  # noqa: F401  which says where modules are
from fault_classes.kinds import numbered, samples
from fault_classes.watched import kinds_of, samples_made


def main() -> None:
    """Read it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=kinds_of())
    parser.add_argument("number", nargs="?", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    faulthandler.enable()
    kind = kinds_of()[asked.kind]
    with tempfile.TemporaryDirectory() as folder:
        samples_made(kind, Path(folder))
        known = samples(Path(folder))
        data = numbered(kind, asked.kind, asked.seed, asked.number, known)
        if asked.file is not None:
            data = asked.file.read_bytes()
        if asked.keep is not None:
            asked.keep.write_bytes(data)
        print(f"{len(data)} bytes", flush=True)
        kind.opened(Path(folder))(data)
    print("read")


if __name__ == "__main__":
    main()
