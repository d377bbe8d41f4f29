"""A model that calls Python functions, each only where the person at the terminal agrees.

python examples/tools.py qwen3-8b "How much is 17 % of 4350, and what day is it today?"
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sys

import localspec


def percentage(percent: float, number: float) -> float:
    """A percentage of a number.

    Args:
        percent: How many hundredths, such as 25.
        number: Of what.
    """
    return number * percent / 100


def today() -> dt.date:
    """The date of today."""
    return dt.date.today()


TOOLS = [percentage, today]


def main(engine: localspec.Engine, question: str) -> None:
    """Show the answers as they come, and the calls between them."""
    steps = localspec.tool_steps(engine.chat(), question, tools=TOOLS)
    with contextlib.closing(steps):
        for step in steps:
            if isinstance(step, localspec.Answer):
                for piece in step:
                    print(piece.text, end="", flush=True)
                print()
                continue
            if input(f"Run {step.call.name} {step.call.json}? [y/n] ") != "y":
                step.refuse()
            print(f"-> {step.run()}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/tools.py MODEL QUESTION")
    with localspec.load(sys.argv[1]) as engine:
        main(engine, sys.argv[2])
