"""How each family of models marks its thoughts and its speech.

Some families put tags around their thoughts, others write messages with heads. Some marks are
control tokens, others are plain text.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass


class TextKind(enum.Enum):
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
    """Texts that are all in the family's chat template, or all in its vocabulary."""

    marks: Mapping[str, TextKind]
    """The kind of text after each mark. Marks belong to neither thoughts nor speech."""

    has_token_marks: bool = True
    """Whether the marks are tokens of the vocabulary, which count everywhere. A tag of plain
    text counts only at the beginning of an answer."""

    thought_head: str = ""
    """A regular expression that is found in the heads of messages that are not for the user."""


def family_of_tags(opening: str, closing: str) -> Family:
    """A family that puts its thoughts between two texts."""
    marks = {opening: TextKind.THOUGHT, closing: TextKind.SPEECH}
    return Family((closing,), marks, has_token_marks=False)


_OPENING_TAGS = (
    "<think>",  # Qwen, DeepSeek, GLM, SmolLM …
    "<thinking>",
    "<thought>",
    "<seed:think>",  # Seed
    "<mm:think>",  # MiniMax M3
    "<think:opensource>",  # Hunyuan
    "[THINK]",  # Mistral
)
# Families with tags of plain text. Many models use them without naming them in their templates.
_TAG_FAMILIES = tuple(family_of_tags(tag, f"{tag[0]}/{tag[1:]}") for tag in _OPENING_TAGS)


def _marks(**marks_by_kind: tuple[str, ...]) -> Mapping[str, TextKind]:
    """The kind of text after each mark, from the marks of each kind: speech=…, thought=…"""
    kinds = {}
    for name, marks in marks_by_kind.items():
        kind = TextKind[name.upper()]
        kinds.update(dict.fromkeys(marks, kind))
    return kinds


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
        thought_head=" to=self",
    ),
    # gpt-oss (channels). Messages to tools count as thoughts here; `AnswerText` turns them into
    # calls or speech.
    Family(
        ("<|start|>", "<|message|>"),
        _marks(
            head=("<|start|>", "<|channel|>"),
            body=("<|message|>",),
            nothing=("<|end|>",),
        ),
        thought_head="analysis| to=(?!assistant|user)",
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
    # Command-R 7B, Command A, and models with <|START_TEXT|> instead of <|START_RESPONSE|>
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
    # Kimi K3, whose template has the marks only in parts
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
        has_token_marks=False,
    ),
    # Apriel
    Family(
        ("[BEGIN FINAL RESPONSE]",),
        _marks(
            thought=("Here are my reasoning steps:",),
            speech=("[BEGIN FINAL RESPONSE]",),
            nothing=("[END FINAL RESPONSE]",),
        ),
        has_token_marks=False,
    ),
    *_TAG_FAMILIES,
)


def families_of(template: str, control_texts: Collection[str]) -> tuple[Family, ...]:
    """The families to which a model may belong, in the order of `FAMILIES`.

    They are those whose signs are in the template; if there is none, those whose signs are in
    the vocabulary; and if there is none either, all families with tags of plain text.

    Args:
        template: The source of the model's chat template.
        control_texts: The texts of the control tokens in its vocabulary.
    """
    in_template = []
    in_vocabulary = []
    for family in FAMILIES:
        if all(sign in template for sign in family.signs):
            in_template.append(family)
        if all(sign in control_texts for sign in family.signs):
            in_vocabulary.append(family)
    families = in_template or in_vocabulary
    if not families:
        return _TAG_FAMILIES
    return tuple(families)
