"""A text into a Pydantic class: the answer fits the class, or was cut and says so.

python examples/json_class.py qwen3-8b "Anna is a red fox of three years who likes berries."
"""

from __future__ import annotations

import sys

import pydantic

import localspec


class Animal(pydantic.BaseModel):
    """What is asked for."""

    name: str = pydantic.Field(max_length=30)
    age: int = pydantic.Field(ge=0, le=99)
    is_wild: bool


def read_animal(engine: localspec.Engine, text: str) -> Animal:
    """The animal that the text is about. Raises ValueError where the answer was cut."""
    question = f"Describe the animal as JSON: {text}"
    reply = engine.generate(question, json_schema=Animal, temperature=0, max_tokens=200).reply()
    animal: Animal | None = reply.parsed
    if animal is None:
        raise ValueError(f"the answer was cut ({reply.finish_reason}): {reply.text}")
    return animal


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/json_class.py MODEL TEXT")
    with localspec.load(sys.argv[1]) as engine:
        print(read_animal(engine, sys.argv[2]))
