"""Measures speed, acceptance and identical texts on really trained models and real text.

    python scripts/measure/measure_real.py FOLDER
    python scripts/measure/measure_real.py FOLDER --prompts SETS --llama-server --write all.json
    python scripts/measure/measure_real.py FOLDER --only code edit --sides automatic 'draft-*'
    python scripts/measure/measure_real.py --read all.json more.json

FOLDER holds the models, by default Qwen2.5-Coder 1.5B and 0.5B; docs/performance.md says how to
get them. SETS is a folder with humaneval.jsonl (code), mt-bench.jsonl (chat, both turns) and
gsm8k-test.jsonl (arithmetic), as they are published; the other kinds of text, and all without
--prompts, are those of `localspec bench`.

The sides: plain; lookup, which proposes from the text alone; draft-1 … draft-4, the draft
model at a fixed K; automatic, without a draft model, and pair, with it, which know nothing
before each answer; automatic-known and pair-known, which know what three answers taught. They
answer each question in turn, another one first each time; they share the weights, and the
reading of the prompt; none remembers earlier answers. With
--llama-server there are also llama-server, llama-server-ngram-… (each of its lookups as it
comes), and llama-server-draft-1 … 4: its answers to the same token ids take turns with plain
decoding's, an answer of each. Without a PATH it is built from the source of the installed
llama-cpp-python (minutes, once).

Greedy, and at temperature 0.8 without a seed and with the usual filters. Times are those of all
tokens but the first. What the draft model takes to read the prompt is among them for pair and
pair-known, which choose to read it or not; not at a fixed K, nor for llama-server. Questions
are asked until the time is over, each kind in turn; what was measured is printed as Markdown,
also after Ctrl-C. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "compare"))

from comparison.contender import Setup
from comparison.llama_tools import build_programs, default_folder, program_in
from comparison.options import positive, run
from comparison.report import header_facts
from localspec.errors import OptionError
from localspec.evaluation.prompts import KINDS
from localspec.system.machine import memory_here, num_usable_cores
from real_text.measurement import Measurement, Plan
from real_text.record import Record, read_record, report
from real_text.servers import DRAFTING_SERVERS, SERVER, SERVERS, Files
from real_text.sides import (
    PLAIN,
    WITH_DRAFT,
    WITHOUT_DRAFT,
    Sides,
    Weights,
    draft_options,
    target_options,
)

TARGET = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
DRAFT = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
KINDS_ASKED = tuple(kind for kind in KINDS if kind != "own")
USUAL_SIDES = (
    *("automatic", "automatic-known", "draft-3", "pair", "pair-known"),
    *("llama-server", "llama-server-ngram-*", "llama-server-draft-3"),
)
_BUILD = Path()
_MEMORY_SHARE = 0.7  # of what is available, that servers may take together


def chosen_sides(asked: argparse.Namespace) -> list[str]:
    """The names of the sides, plain decoding first.

    Raises OptionError for a pattern that means none, or only those that cannot be had.
    """
    names = [*WITHOUT_DRAFT, *WITH_DRAFT, *SERVERS]
    lacking = [] if asked.draft else [*WITH_DRAFT, *DRAFTING_SERVERS]
    lacking += [] if asked.llama_server else SERVERS
    here = [name for name in names if name not in lacking]
    for pattern in asked.sides or ():
        if not fnmatch.filter(names, pattern):
            raise OptionError(f"no side is called {pattern}", f"There are: {', '.join(names)}.")
        if not fnmatch.filter(here, pattern):
            raise OptionError(
                f"{pattern} needs a draft model, or llama-server, which are not there",
                "Give --draft or --llama-server.",
            )
    patterns = asked.sides or USUAL_SIDES
    found = {name for pattern in patterns for name in fnmatch.filter(here, pattern)}
    return [name for name in here if name in found | {PLAIN}]


def measure(asked: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    if asked.read:
        print(report([read_record(path) for path in asked.read]))
        return
    if asked.folder is None:
        raise OptionError("no folder of models is given", "Name it, or give --read FILE.")
    asked.target = asked.folder / asked.target
    asked.draft = asked.folder / asked.draft if asked.draft else None
    names = chosen_sides(asked)
    threads = asked.threads or num_usable_cores()
    setup = Setup(asked.target, asked.draft, None, threads, asked.ctx, None)
    record = Record(facts_of(setup))
    with contextlib.ExitStack() as undo:
        here = [name for name in names if name not in SERVERS]
        sides = opened(asked, threads, here, undo)
        servers = [name for name in names if name in SERVERS]
        files = server_files(asked, threads) if servers else None
        groups = grouped(servers, files)
        measurement = Measurement(plan_of(asked), sides, groups, files, record)
        with contextlib.suppress(KeyboardInterrupt):
            measurement.run()
    if not record.figures:
        raise OptionError("nothing was measured", "Give it more time: --minutes.")
    print(report([record]))


def plan_of(asked: argparse.Namespace) -> Plan:
    return Plan(
        kinds=asked.only,
        temperatures=asked.temperatures,
        prompts=asked.prompts,
        prompts_per_kind=asked.prompts_per_kind,
        max_tokens=asked.tokens,
        minutes=asked.minutes,
        write=asked.write,
    )


def facts_of(setup: Setup) -> dict[str, str]:
    """Facts that the figures depend on, with the sha256 of each file."""
    facts = header_facts(setup, ["python", *sys.argv])
    for path in filter(None, (setup.target, setup.draft)):
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while part := file.read(1 << 20):
                digest.update(part)
        facts[f"sha256 of {path.name}"] = digest.hexdigest()
    return facts


def opened(
    asked: argparse.Namespace,
    num_threads: int,
    names: Sequence[str],
    undo: contextlib.ExitStack,
) -> Sides:
    """The sides of localspec. undo: gets what frees them.

    None changes its number of threads, which would be measured, too; a small draft may have
    fewer, as always.
    """
    options = target_options(asked.ctx, num_threads, exact=asked.exact)
    weights = [Weights(asked.target, options)]
    undo.callback(weights[0].close)
    if any(name in WITH_DRAFT for name in names):
        of_draft = replace(draft_options(options), num_threads=asked.threads)
        weights.append(Weights(asked.draft, of_draft))
        undo.callback(weights[1].close)
    sides = Sides(weights[0], weights[1] if len(weights) > 1 else None, names)
    undo.callback(sides.close)
    return sides


def server_files(asked: argparse.Namespace, num_threads: int) -> Files:
    """The files of llama-server, which is built unless its path is given."""
    program = asked.llama_server
    if program == _BUILD:
        jobs = os.cpu_count() or 1
        binaries = build_programs(default_folder(), [SERVER], jobs=jobs)
        program = program_in(binaries, SERVER)
    return Files(program, asked.target, asked.draft, asked.ctx, num_threads)


def grouped(servers: Sequence[str], files: Files | None) -> list[Sequence[str]]:
    """The servers in groups that fit into memory; one empty group if there are none."""
    if files is None:
        return [()]
    free_bytes = _MEMORY_SHARE * memory_here().available_bytes
    most = max(1, int(free_bytes / files.bytes_of_each))
    return [servers[first : first + most] for first in range(0, len(servers), most)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", type=Path, nargs="?", help="of the models")
    add("--target", default=TARGET, help="file in it (default: %(default)s)")
    add("--draft", default=DRAFT, help="file in it; '' for none (default: %(default)s)")
    add("--prompts", type=Path, metavar="SETS", help="folder of published sets")
    add("--only", nargs="+", choices=KINDS_ASKED, default=KINDS_ASKED, metavar="KIND")
    sides = f"names or patterns, beside plain (default: {' '.join(USUAL_SIDES)})"
    add("--sides", nargs="+", metavar="SIDE", help=sides)
    server = "path of the program; without one it is built"
    add("--llama-server", type=Path, nargs="?", const=_BUILD, metavar="PATH", help=server)
    add("--temperatures", nargs="+", type=float, default=[0.0, 0.8], help="default: 0 0.8")
    add("--prompts-per-kind", type=positive, default=3, help="at most (default: 3)")
    add("--tokens", type=positive, default=128, help="of an answer (default: 128)")
    add("--minutes", type=float, default=25.0, help="after which it ends (default: 25)")
    add("--ctx", type=positive, default=2048, help="context in tokens (default: 2048)")
    add("--threads", type=positive, help="of each side (default: as localspec)")
    add("--exact", action="store_true", help="exact settings, see docs/lossless.md")
    add("--write", type=Path, metavar="FILE", help="gets the raw figures, as JSON")
    add("--read", type=Path, nargs="+", metavar="FILE", help="print what these files hold")
    run(parser, measure)


if __name__ == "__main__":
    main()
