"""Damages files at random: each has to be read, or refused by a LocalspecError.

    python scripts/faults/damaged_files.py --minutes 5 --seed 0

In the headers of GGUF files single numbers are changed: counts, lengths, types, values,
shapes and offsets. Every file is read in this process, which may take 30 seconds and 4 GiB.
Every twentieth model is also loaded and asked by an `IsolatedEngine`, whose process may end.
Files that were neither read nor refused are kept and named; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import gguf

import localspec
from localspec.pictures.picture import Picture
from localspec.presets.presets import read_presets

ROOT = Path(__file__).parents[2]
# makers of tiny models
sys.path += [str(ROOT / "tests/support"), str(ROOT / "scripts/measure")]

PATIENCE_S = 30.0
MOST_BYTES = 4 << 30
_LOADED_OF = 20
_SMALL = {"context_length": 64, "num_threads": 1}
# Numbers at which counts, lengths and sizes overflow.
_BOUNDS = (
    0,
    1,
    7,
    255,
    256,
    65535,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63,
    2**64 - 1,
)
_MOST_PARTS = 20  # of a key's value, whose numbers are changed: arrays have thousands


def _numbers(path: Path) -> list[tuple[int, int]]:
    """Offset and size of each number in the header of a GGUF file; none in another file."""
    if not path.read_bytes().startswith(b"GGUF"):
        return []
    found = list[tuple[int, int]]()
    reader = gguf.GGUFReader(path)
    for field in (*reader.fields.values(), *(tensor.field for tensor in reader.tensors)):
        at = field.offset
        for part in field.parts[:_MOST_PARTS]:
            if part.itemsize > 1 or part.size == 1:  # else it is a text
                found += [
                    (at + place * part.itemsize, part.itemsize) for place in range(part.size)
                ]
            at += part.nbytes
    return found


def damaged(path: Path, random: Random) -> bytes:
    """The file's bytes with one to three faults."""
    numbers = _numbers(path)
    found = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(found) + 1)
        chance = random.random()
        if numbers and chance < 0.7:
            at, size = random.choice(numbers)
            old = int.from_bytes(found[at : at + size], "little")
            other, width = random.choice(numbers)
            copied = int.from_bytes(found[other : other + width], "little")
            new = random.choice((old + 1, old - 1, 2 * old, copied, random.choice(_BOUNDS)))
            found[at : at + size] = (new % 256**size).to_bytes(size, "little")
        elif chance < 0.8:
            found[at : at + 1] = random.randbytes(1)
        elif chance < 0.9:
            found[at:at] = found[at : at + 16] * random.choice((1, 2, 1000))
        else:
            del found[at : random.choice((at + 1, at + 64, len(found)))]
    return bytes(found)


@dataclass(frozen=True)
class _Kind:
    """name: a keyword of `explain` for models, which are given with those `beside` them."""

    name: str
    whole: Path
    beside: Mapping[str, Path] | None = None

    def read(self, path: Path) -> None:
        """Read a file of this kind."""
        if self.beside is not None:
            localspec.explain(**{**self.beside, self.name: path})  # type: ignore[arg-type]
        elif self.name == "presets":
            read_presets("damaged.toml", path.read_text("utf-8", "replace"), {})
        else:
            Picture.read(path.read_bytes())

    def load(self, path: Path) -> None:
        """Load the model in a process of its own, and ask it for two tokens."""
        given = {**(self.beside or {}), self.name: path, **_SMALL}
        with localspec.IsolatedEngine(**given) as engine:  # type: ignore[arg-type]
            engine.generate_raw("ab", max_tokens=2, seed=1).reply()


def _kinds(folder: Path) -> list[_Kind]:
    from PIL import Image

    from gguf_maker import write_random_model, write_spm_tokenizer
    from head_maker import BlockHead, write_block_head, write_head_model
    from vision_maker import write_vision_pair

    found = [_Kind("presets", ROOT / "models.toml")]
    rgb = Image.frombytes("RGB", (24, 16), Random(0).randbytes(24 * 16 * 3))
    for form in ("png", "jpeg", "webp", "gif"):
        rgb.save(folder / form, form)
        found.append(_Kind(form, folder / form))
    marks = ("<|im_start|>", "<|im_end|>")
    tokens, _ = write_spm_tokenizer(folder / "tokens", (), control=marks, user_defined=())
    model = write_random_model(folder / "model", tokens)
    experts = write_random_model(folder / "experts", tokens, num_experts=4)
    trunk = write_head_model(folder / "trunk", tokens, "qwen3", part="trunk")
    head = write_head_model(folder / "mtp", trunk, "qwen3", part="head")
    block = write_block_head(folder / "block", trunk, BlockHead(num_known=200, mask=250))
    seeing, projector = write_vision_pair(folder, "qwen2vl_merger")
    return [
        *found,
        _Kind("target", model, {}),
        _Kind("target", experts, {}),
        _Kind("draft", model, {"target": model}),
        _Kind("head", head, {"target": trunk}),
        _Kind("head", block, {"target": trunk}),
        _Kind("mmproj", projector, {"target": seeing}),
    ]


def run(seconds: float, seed: int, folder: Path) -> list[str]:
    """Damage and read files for so many seconds; a line for each that was lost."""
    kinds = _kinds(folder)
    losses = list[str]()
    number = 0
    num_refused = 0
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s or number < len(kinds):
        kind = kinds[number % len(kinds)]
        random = Random(f"{seed} {number}")
        path = folder / f"{number}-{kind.name}"
        path.write_bytes(damaged(kind.whole, random))
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        number += 1
        try:
            kind.read(path)
            if kind.beside is not None and random.random() < 1 / _LOADED_OF:
                faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
                kind.load(path)
            path.unlink()
        except localspec.LocalspecError:
            num_refused += 1
            path.unlink()
        except Exception as error:
            losses.append(f"{path}: {error!r}")
        faulthandler.cancel_dump_traceback_later()
    print(f"{number} files, {num_refused} refused, {len(losses)} lost")
    return losses


def _bound_memory() -> None:
    with contextlib.suppress(ImportError):  # Windows
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, -1))


def main() -> int:
    """Run, and name what was lost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    _bound_memory()
    losses = run(asked.minutes * 60, asked.seed, Path(tempfile.mkdtemp(prefix="damaged-")))
    print("\n".join(losses))
    return int(bool(losses))


if __name__ == "__main__":
    sys.exit(main())
