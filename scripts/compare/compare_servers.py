"""A coding agent's session with localspec's server and with llama-server, on the same files.

    python scripts/compare/compare_servers.py --target T.gguf --record ROUNDS
    python scripts/compare/compare_servers.py --target T.gguf --record ROUNDS --temperature 0.7

Each call is one round: it starts both servers, as they come, asks both every request of the
session in turn, another one first each time, and appends what came of each to the file. Then it
prints a Markdown table of all rounds in the file, which differ in their seeds: prompt tokens
that were not cached, seconds in all and for each kind of request, medians with the lowest and
the highest, and ours ÷ theirs. The programs are built first, see compare_llama_cpp.py. The
session is made up, see comparison/agents.py. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from comparison import agents, report
from comparison.llama_programs import server_as_it_comes
from comparison.llama_tools import build, default_folder
from comparison.options import add_files, positive, run, setup_of


def compare(asked: argparse.Namespace) -> None:
    setup = setup_of(asked)
    tools = build(default_folder(), jobs=os.cpu_count() or 1, no_amx=False)
    session = agents.Session(
        asked.turns, asked.system_tokens, asked.answer_tokens, asked.temperature, asked.seed
    )
    servers = [agents.localspec_server(setup), server_as_it_comes(tools, setup)]
    with servers[0], servers[1]:
        agents.hold(session, servers, asked.record)
    print(report.header(setup, ["python", *sys.argv]))
    print(f"- llama.cpp: {tools.system_info}\n")
    print(agents.table(asked.record))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare servers as a coding agent uses them.")
    add_files(parser)
    add = parser.add_argument
    add("--record", type=Path, required=True, help="the file that gets a line for each request")
    add("--temperature", type=float, default=0.0, help="default: 0, greedy")
    add(
        "--seed", type=int, default=0, help="of the answers; an odd one asks llama-server first"
    )
    add("--turns", type=positive, default=20, help="default: 20")
    add("--system-tokens", type=positive, default=8000, help="default: 8000")
    add("--answer-tokens", type=positive, default=100, help="default: 100")
    parser.set_defaults(ctx=24576)
    run(parser, compare)


if __name__ == "__main__":
    main()
