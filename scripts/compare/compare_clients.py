"""Several clients at once of localspec's server and of llama-server, on the same files.

    python scripts/compare/compare_clients.py --target T.gguf --record ROUNDS
    python scripts/compare/compare_clients.py --alone --record ROUNDS

Each call is one round: it starts localspec's server with --parallel 4, the same with --parallel
1, and llama-server with four slots, asks each in turn, and appends what came of it to the file:
the tokens/s of 1, 2 and 4 clients together, and how long a short question waits for its first
text alone, beside a long answer and beside a long prompt. Then it prints a Markdown table of
all rounds in the file, whose seeds are to differ: medians, with the lowest and the highest.
With --alone there is no llama-server; else the programs are built first, see
compare_llama_cpp.py, or those in --programs FOLDER are used. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from comparison import clients, report
from comparison.contender import Setup
from comparison.llama_programs import server_of_slots
from comparison.llama_tools import build, default_folder, program_in
from comparison.options import add_files, positive, run, setup_of
from comparison.server_process import ServerProcess


def localspec_server(setup: Setup, parallel: int) -> ServerProcess:
    """A server of localspec's with so many answers at once."""
    command = [sys.executable, "-m", "comparison.localspec_server", "--target", setup.target]
    command += [] if setup.draft is None else ["--draft", setup.draft]
    command += ["--ctx", str(setup.context_length), "--parallel", str(parallel)]
    return ServerProcess(f"localspec --parallel {parallel}", command, Path(__file__).parent)


def compare(asked: argparse.Namespace) -> None:
    setup, slots = setup_of(asked), asked.parallel
    load = clients.Load(
        tuple(asked.clients),
        asked.answer_tokens,
        asked.prompt_words,
        asked.temperature,
        asked.seed,
    )
    servers: list[ServerProcess] = [
        localspec_server(setup, number) for number in dict.fromkeys((slots, 1))
    ]
    if not asked.alone:
        folder = asked.programs
        if folder is None:
            folder = build(default_folder(), jobs=os.cpu_count() or 1, no_amx=False).folder
        servers.append(server_of_slots(program_in(folder, "llama-server"), setup, slots))
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        slots_of = {each.name: each.ask("/props", None)["total_slots"] for each in servers}
        clients.measure(servers, load, asked.record)
    print(report.header(setup, ["python", *sys.argv]))
    # Fewer than were asked for where the memory for caches is short.
    print(f"- at once: {', '.join(f'{name}: {n}' for name, n in slots_of.items())}\n")
    print(clients.table(asked.record))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare servers with several clients at once."
    )
    add_files(parser)
    add = parser.add_argument
    add("--record", type=Path, required=True, help="the file that gets a line for each result")
    add("--alone", action="store_true", help="without llama-server")
    add("--programs", type=Path, metavar="FOLDER", help="where a built llama-server is")
    add("--parallel", type=positive, default=4, help="answers and slots at once (default: 4)")
    add("--clients", type=positive, nargs="+", default=[1, 2, 4], help="default: 1 2 4")
    add("--temperature", type=float, default=0.0, help="default: 0, greedy")
    add("--seed", type=int, default=0, help="of the round; an odd one asks in the other order")
    add("--answer-tokens", type=positive, default=200, help="default: 200")
    add("--prompt-words", type=positive, default=6000, help="of a long prompt (default: 6000)")
    parser.set_defaults(ctx=24576)
    run(parser, compare)


if __name__ == "__main__":
    main()
