"""localspec against llama.cpp's own programs, on the same files, in turn.

    python scripts/compare/compare_llama_cpp.py [--target T.gguf --draft D.gguf]
    python scripts/compare/compare_llama_cpp.py --target T.gguf --head [HEAD.gguf]

Builds llama-bench, llama-server and llama-speculative-simple from the source of the installed
llama-cpp-python (minutes, once; needs CMake and a C++ compiler), checks that they are built
for the same processor features, and prints a Markdown table: plain decoding, the same number
of draft tokens, and both sides' own defaults, greedy and sampled; then for each side what it
costs to have a draft or a head that is not used. llama-server has no such rest: it decodes the
draft in each step, and a threshold that no token reaches keeps it from proposing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from comparison import report, workers
from comparison.contender import Setup
from comparison.duel import Duel, fight
from comparison.llama_programs import Bench, Server, Simple, UnsureServer
from comparison.llama_tools import RPC_SERVER, Tools, build, default_folder
from comparison.options import add_common, prompts_of, run, setup_of
from comparison.rpc_server import running_servers

PARTS = ("plain", "equal", "default", "sampled", "tax")


def duels(
    parts: list[str], counts: list[int], setup: Setup, other: Setup, tools: Tools
) -> Iterator[Duel]:
    """The cases, in the table's order. counts: draft tokens of the part "equal".

    other: what the programs load, the same on other RPC servers, which take one client each.
    """
    if "plain" in parts:
        ours, theirs = workers.localspec_plain(setup), Bench(tools, other)
        yield Duel("plain", ours, theirs, temperature=0.0)
    if not setup.drafts:
        return
    for count in counts if "equal" in parts else ():
        for temperature, program in ((0.0, Simple), (0.0, Server), (1.0, Server)):
            ours, theirs = workers.localspec_fixed(setup, count), program(tools, other, count)
            yield Duel(f"{_title(temperature)}, equal K", ours, theirs, temperature)
    temperatures = [0.0] * ("default" in parts) + [0.8, 1.0] * ("sampled" in parts)
    for temperature in temperatures:
        ours, theirs = workers.localspec_default(setup), Server(tools, other, None)
        yield Duel(f"{_title(temperature)}, defaults", ours, theirs, temperature)
    if "tax" in parts:
        resting, plain = workers.localspec_resting(setup), workers.localspec_plain(other)
        yield Duel("what is not used", resting, plain, temperature=0.0)
        unsure, alone = UnsureServer(tools, setup), Server(tools, other.alone(), None)
        yield Duel("what is not used", unsure, alone, temperature=0.0)


def _title(temperature: float) -> str:
    return f"temperature {temperature:g}, no filters" if temperature else "greedy"


def compare(asked: argparse.Namespace) -> None:
    setup = setup_of(asked)
    prompts = prompts_of(asked, setup.target)
    tools = build(asked.build_folder, jobs=asked.jobs, no_amx=asked.no_amx)
    program = tools.path(RPC_SERVER)
    with contextlib.ExitStack() as undo:
        sides = []
        for _ in range(2):
            servers = running_servers(program, asked.rpc_servers, setup.num_threads)
            addresses = [server.address for server in undo.enter_context(servers)]
            sides.append(replace(setup, rpc=tuple(addresses)))
        outcomes = [
            fight(duel, prompts, max_tokens=asked.max_tokens, num_rounds=asked.rounds)
            for duel in duels(asked.parts, asked.draft_tokens, sides[0], sides[1], tools)
        ]
    print(report.header(sides[0], ["python", *sys.argv]))
    print(f"- llama.cpp: {tools.system_info}\n")
    print(report.table(outcomes))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare localspec with llama.cpp's programs.")
    add_common(parser)
    add = parser.add_argument
    add("--draft-tokens", type=int, nargs="+", default=[3], help="values of K (default: 3)")
    add("--parts", choices=PARTS, nargs="+", default=PARTS, help="default: all")
    where = "where llama.cpp is built (default: in the user's cache)"
    add("--build-folder", type=Path, default=default_folder(), help=where)
    add("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once")
    add("--rpc-servers", type=int, default=0, help="on the loopback, that hold the target")
    amx = "build without AMX; chosen by itself if the compiler breaks ggml's AMX kernels"
    add("--no-amx", action="store_true", help=amx)
    run(parser, compare)


if __name__ == "__main__":
    main()
