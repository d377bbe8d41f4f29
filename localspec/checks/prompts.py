"""The prompts of `verify` and `bench`: built in, or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.chat.text_file import read_text_file
from localspec.errors import ContextError, OptionError

# Some have one good answer, some thousands; some suit the demo pair's small world.
QUESTIONS = (
    "Tell me a story about a fox and a lantern.",
    "What is speculative decoding?",
    "Name the days of the week.",
    "Write a short poem about the sea.",
    "What is 7 times 8, and why?",
    "Write a Python function that reverses a list.",
    "Give me three tips for sleeping better.",
    "Explain to a child why the sky is blue.",
)


def check_lengths(prompts: Sequence[list[int]], context_length: int) -> None:
    """Raise ContextError for a prompt of token ids that leaves no room for an answer."""
    for prompt in prompts:
        if len(prompt) >= context_length:
            raise ContextError(
                f"a prompt has {len(prompt)} tokens; the context holds {context_length}",
                "Leave it out, or use a larger context (--ctx).",
            )


def read_prompts(path: Path) -> list[str]:
    """The lines of a text file, one prompt each, without empty lines.

    Raises OptionError if the file cannot be read or has no prompt.
    """
    try:
        lines = read_text_file(path).splitlines()
    except (OSError, ValueError) as error:
        raise OptionError(
            f"{path}: {error}", "Give a text file with one prompt per line."
        ) from error
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise OptionError(f"{path} has no prompts", "Write one prompt per line.")
    return prompts
