"""localspec against llama-cpp-python's own prompt lookup decoding, on the same files, in turn.

    python scripts/compare/compare_prompt_lookup.py [--target T.gguf --draft D.gguf]

Lookup pays where a text repeats itself: give prompts that ask for that (summaries, edits,
code), or a target made by make_pair.py with --period. Prints a Markdown table, with
localspec's plain decoding as the measure of what lookup gains.
"""

from __future__ import annotations

import argparse
import sys

from comparison import report, workers
from comparison.duel import Duel, fight
from comparison.options import add_common, prompts_of, run, setup_of


def compare(asked: argparse.Namespace) -> None:
    """Print the table that the command line asks for."""
    setup = setup_of(asked)
    prompts = prompts_of(asked, setup.target)
    outcomes = []
    for temperature in asked.temperatures:
        title = f"temperature {temperature:g}, no filters" if temperature else "greedy"
        for ours in (workers.localspec_default(setup), workers.localspec_plain(setup)):
            theirs = workers.llama_cpp_python_lookup(setup, asked.lookup_tokens)
            duel = Duel(title, ours, theirs, temperature)
            outcome = fight(duel, prompts, max_tokens=asked.max_tokens, num_rounds=asked.rounds)
            outcomes.append(outcome)
    print(report.header(setup, ["python", *sys.argv]) + "\n")
    print(report.table(outcomes))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare localspec with llama-cpp-python's prompt lookup decoding."
    )
    add_common(parser)
    add = parser.add_argument
    tokens = "proposed at most by the lookup (default: 10, as llama-cpp-python's)"
    add("--lookup-tokens", type=int, default=10, help=tokens)
    add("--temperatures", type=float, nargs="+", default=[0.0], help="default: 0, greedy")
    run(parser, compare)


if __name__ == "__main__":
    main()
