"""How each family of models marks its thoughts and its speech.

Some put tags around their thoughts, others write messages with heads. Some marks are control
tokens, others are plain text.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass


class Following(enum.Enum):
    """The kind of text after a mark."""

    SPEECH = enum.auto()
    THOUGHT = enum.auto()
    HEAD = enum.auto()  # the head of a message, up to its body
    BODY = enum.auto()  # the body of a message: thought or speech, as its head says
    NOTHING = enum.auto()  # text of neither kind, up to the next mark


@dataclass(frozen=True, slots=True)
class Family:
    """How the models of a family mark their thoughts."""

    signs: tuple[str, ...]
    """Texts that a template of the family has, or else its vocabulary."""

    marks: Mapping[str, Following]
    """The kind of text after each mark. Marks belong to neither thoughts nor speech."""

    are_tokens: bool = True
    """Whether the marks are tokens of the vocabulary, which count everywhere. A tag that is
    plain text counts only at the beginning of an answer."""

    thoughtful: str = ""
    """A pattern that matches the heads of messages that are not for the user."""


def family_of_tags(opening: str, closing: str) -> Family:
    """A family that puts its thoughts between two texts."""
    marks = {opening: Following.THOUGHT, closing: Following.SPEECH}
    return Family((closing,), marks, are_tokens=False)


# Tags in plain text. Many models use them without naming them in their templates.
_TAGS = tuple(
    family_of_tags(opening, f"{opening[0]}/{opening[1:]}")
    for opening in (
        *("<think>", "<thinking>", "<thought>"),  # Qwen, DeepSeek, GLM, SmolLM …
        *("<seed:think>", "<mm:think>", "<think:opensource>"),  # Seed, MiniMax M3, Hunyuan
        "[THINK]",  # Mistral
    )
)


def _marks(**marks: tuple[str, ...]) -> Mapping[str, Following]:
    """Marks by the kind of text that follows each: speech=…, thought=…, head=…"""
    return {
        mark: Following[kind.upper()] for kind, several in marks.items() for mark in several
    }


# If a template has the signs of several families, the first of these counts.
FAMILIES = (
    # Muse (recipients), whose calls are marked within messages to tools
    Family(
        ("<|start|>", "<|message|>", "<|eom|>"),
        _marks(
            head=("<|start|>",),
            body=("<|message|>",),
            nothing=("<|eom|>",),
        ),
        thoughtful=" to=self",
    ),
    # gpt-oss (channels). Here messages to tools are thoughts; what else they are `AnswerText`
    # knows.
    Family(
        ("<|start|>", "<|message|>"),
        _marks(
            head=("<|start|>", "<|channel|>"),
            body=("<|message|>",),
            nothing=("<|end|>",),
        ),
        thoughtful="analysis| to=(?!assistant|user)",
    ),
    # Solar
    Family(
        ("<|begin|>", "<|content|>"),
        _marks(
            head=("<|begin|>",),
            thought=("<|think|>",),
            speech=("<|content|>", "<|tool_calls|>"),
            nothing=("<|end|>",),
        ),
    ),
    # Gemma 4
    Family(
        ("<|channel>", "<channel|>"),
        _marks(thought=("<|channel>thought", "<|channel>"), speech=("<channel|>",)),
    ),
    # Command-R 7B, Command A, and those that call the response a text
    Family(
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        _marks(
            thought=("<|START_THINKING|>", "<|START_ACTION|>"),
            speech=("<|END_THINKING|>", "<|START_RESPONSE|>", "<|START_TEXT|>"),
            nothing=("<|END_RESPONSE|>", "<|END_TEXT|>", "<|END_ACTION|>"),
        ),
    ),
    # Apertus
    Family(
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        _marks(thought=("<|inner_prefix|>",), speech=("<|inner_suffix|>",)),
    ),
    # Kimi K3, whose template puts the marks together
    Family(
        ("<|open|>", "<|close|>", "<|end_of_msg|>"),
        _marks(
            thought=("<|open|>think<|sep|>", "<|open|>tools<|sep|>"),
            speech=("<|open|>response<|sep|>",),
            nothing=tuple(
                f"<|close|>{name}<|sep|>" for name in ("think", "response", "tools", "message")
            ),
        ),
    ),
    # Granite 3.3
    Family(
        ("<think></think>", "<response></response>"),
        _marks(
            thought=("<think>",),
            speech=("</think>", "<response>"),
            nothing=("</response>",),
        ),
        are_tokens=False,
    ),
    # Apriel
    Family(
        ("[BEGIN FINAL RESPONSE]",),
        _marks(
            thought=("Here are my reasoning steps:",),
            speech=("[BEGIN FINAL RESPONSE]",),
            nothing=("[END FINAL RESPONSE]",),
        ),
        are_tokens=False,
    ),
    *_TAGS,
)


def families_of(template: str, control_texts: Collection[str]) -> tuple[Family, ...]:
    """The families whose signs the template's source names, or else the vocabulary.

    If neither does, all whose tags are mere text.
    """
    texts = set(control_texts)
    return (
        tuple(each for each in FAMILIES if all(sign in template for sign in each.signs))
        or tuple(each for each in FAMILIES if texts.issuperset(each.signs))
        or _TAGS
    )
