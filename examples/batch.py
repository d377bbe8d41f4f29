"""Answer every line of a file into a file of JSON lines; a second run goes on where it was.

python examples/batch.py questions.txt answers.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import localspec


def main(questions: Path, answers: Path) -> None:
    num_done = len(answers.read_text("utf-8").splitlines()) if answers.exists() else 0
    lines = [line for line in questions.read_text("utf-8").splitlines() if line.strip()]
    with localspec.load() as engine, answers.open("a", encoding="utf-8") as file:
        for number, question in enumerate(lines[num_done:], num_done):
            # No question knows of the others. The seed makes each answer repeatable.
            reply = engine.generate(question, seed=number, max_tokens=400).reply()
            result = {
                "question": question,
                "answer": reply.text,
                "finish_reason": reply.finish_reason,
                "tokens_per_s": reply.stats.tokens_per_s,
            }
            file.write(json.dumps(result) + "\n")
            file.flush()
            print(f"{number + 1}/{len(lines)} {question[:60]}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/batch.py QUESTIONS.txt ANSWERS.jsonl")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
