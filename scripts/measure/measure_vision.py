"""Measures what a loaded projector costs where no picture is read.

    python scripts/measure/measure_vision.py MODEL.gguf MMPROJ.gguf --tokens 200 --rounds 10

Two engines of one model answer one question at once, a token of each in turn: one that was
loaded with the projector, and one without. Printed are the tokens per second with it ÷ without,
median and range of all rounds, of plain decoding and of automatic drafting; and of the prompt.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from side_by_side import Timed, read_in_turn, shown

import localspec

_QUESTION = "Tell me a story about a fox, an owl, a river and a lantern. " * 8
GREEDY = localspec.SamplingParams(temperature=0)


def ratios(
    model: Path, mmproj: Path, draft_tokens: int | None, *, tokens: int, rounds: int
) -> tuple[list[float], list[float]]:
    """With ÷ without the projector: the speed behind the first token, and up to it."""
    behind, first = [], []
    asked = {"max_tokens": tokens, "sampling": GREEDY}
    options = {"target": model, "draft_tokens": draft_tokens, "memory": False}
    with (
        localspec.load(**options, mmproj=mmproj) as seeing,
        localspec.load(**options, mmproj="none") as blind,
    ):
        prompts = [engine.tokenize(_QUESTION) for engine in (seeing, blind)]
        for number in range(rounds + 1):
            # Another beginning each time, so that nothing is cached.
            sides = [
                Timed(engine.generate_raw([number, *prompt], **asked))
                for engine, prompt in zip((seeing, blind), prompts, strict=True)
            ]
            # Who is first meets another machine.
            read_in_turn(sides if number % 2 else sides[::-1])
            if number > 0:  # the first decodes of a context are slower
                seen, plain = (side.total_s - side.first_s for side in sides)
                behind.append(plain / seen)
                first.append(sides[1].first_s / sides[0].first_s)
    return behind, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("mmproj", type=Path)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    for name, draft_tokens in (("plain", 0), ("automatic", None)):
        behind, first = ratios(
            arguments.model,
            arguments.mmproj,
            draft_tokens,
            tokens=arguments.tokens,
            rounds=arguments.rounds,
        )
        print(f"{name}: speed with ÷ without {shown(behind)}, prompt {shown(first)}")


if __name__ == "__main__":
    main()
