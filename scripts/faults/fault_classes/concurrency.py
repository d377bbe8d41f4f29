"""Concurrency.

Processes at once on the same files, of which some are killed by -9 at any moment; and threads
and tasks at once on one engine.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import engine_at_once
import forked
import shared_files
from shared_files import KINDS, PRESET, Work

from fault_classes.tried import Tried
from standin_hub import COMMIT, StandinHub, standin_hub

_NUM_PROCESSES = 4
ROUND_S = 1.5
_BEGIN_S = 60.0
_WHATS = {
    "sessions": ("a session", "Read whole at any time; the last turn that was saved is there"),
    "costs": ("measured costs", "Read whole at any time"),
    "names": (
        "aliases and presets of one's own",
        "What was added is there, what was removed is not",
    ),
    "caches": (
        "a folder of kept caches that is too small",
        "Every answer is that of an engine which keeps nothing",
    ),
    "files": (
        "a preset that is downloaded, loaded and removed at the same time",
        "No file that is not right, no error but those that say what to do",
    ),
}


def tries(seconds: float, seed: int) -> Iterator[Tried]:
    """A row for each kind of file, then those of one engine."""
    forked.begin()
    share = seconds / (len(KINDS) + 2)
    for kind in KINDS:
        until_s, number, count, losses = time.monotonic() + share, 0, 0, list[str]()
        with tempfile.TemporaryDirectory() as folder, standin_hub() as hub:
            while number == 0 or time.monotonic() < until_s:
                done, lost = one_round(
                    kind, Path(folder), hub, random.Random(f"{seed}/{number}")
                )
                losses += [f"{kind}, round {number} of seed {seed}: {each}" for each in lost]
                count, number = count + done, number + 1
        what, holds = _WHATS[kind]
        yield Tried(f"{_NUM_PROCESSES} processes and kills on {what}", holds, count, losses)
    yield from engine_at_once.tries(share, seed)


def one_round(
    kind: str, folder: Path, hub: StandinHub, chance: random.Random
) -> tuple[int, list[str]]:
    """How much was done by processes in a folder of their own, and what was lost."""
    own = Path(tempfile.mkdtemp(dir=folder))
    # Caches stay from round to round, as does what is known of exactness.
    environment = {"XDG_CACHE_HOME": str(folder)} if kind == "caches" else {}
    if kind == "files":
        environment = _hub_at(hub, own)
    work = Work(own, 0, chance, ROUND_S)
    change, check = KINDS[kind]
    if kind == "caches" and not (folder / shared_files.EXPECTED).exists():
        forked.ended(forked.started(shared_files.expect_caches, work, environment))
    work.ledger.touch()
    losses, running = list[str](), list[BaseProcess]()
    for number in range(_NUM_PROCESSES):
        part = replace(work, number=number, chance=random.Random(chance.random()))
        running.append(forked.started(change, part, environment))
    number, until_s = _NUM_PROCESSES, time.monotonic() + _BEGIN_S
    while not work.lines("kept") + work.lines("did") and time.monotonic() < until_s:
        time.sleep(0.01)  # until they are at it
    until_s = time.monotonic() + ROUND_S
    while time.monotonic() < until_s:
        time.sleep(ROUND_S / 4 * chance.random())
        if fault := forked.killed(running.pop(chance.randrange(len(running)))):
            losses.append(fault)
        part = replace(work, number=number, chance=random.Random(chance.random()))
        running.append(forked.started(change, part, environment))
        number += 1
    losses += [fault for each in running if (fault := forked.ended(each))]
    if fault := forked.ended(forked.started(check, work, environment)):
        losses.append(fault)
    done = len(work.lines("kept")) + len(work.lines("did"))
    return done, losses + work.lines("lost")


def _hub_at(hub: StandinHub, folder: Path) -> dict[str, str]:
    """Have the hub serve the demo pair as that preset's; the environment to use it."""
    import localspec

    demo = Path(localspec.__file__).parent / "demo"
    presets = [f'[{PRESET}]\nextends = "{PRESET}"\ncontext_length = 512\n']
    for role in ("target", "draft"):
        content = (demo / f"{role}.gguf").read_bytes()
        served = hub.add(f"owner/{role}", f"{role}.gguf", content)
        presets.append(
            f'[{PRESET}.{role}]\nrepo = "owner/{role}"\nfile = "{role}.gguf"\n'
            f'revision = "{COMMIT}"\nsize_bytes = {len(content)}\nsha256 = "{served.sha256}"\n'
        )
    (folder / "localspec").mkdir()
    (folder / "localspec/models.toml").write_text("\n".join(presets), "utf-8")
    hub.pace_s = 0.002
    return {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HOME": str(folder / "hf"),
    }
