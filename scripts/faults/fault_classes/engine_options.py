"""Options of answers, and questions, drawn by a number."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

_WORDS = [
    "the",
    "fox",
    "owl",
    "and",
    "a",
    "lantern",
    "river",
    "kite",
    "tells",
    "story",
    "of",
    "two",
    "mice",
    "7",
    "x=1;",
    "Überraschung",
]
_RARE = ("日本", "😀", "<|im_end|>", "e\u0301", "\n\n", "  ", "\u200b", "tab\t", '{"a": 1}')
_STOPS = (" ", "e", "th", "\n", "fox", ".")
_CONSTRAINTS: tuple[dict[str, Any], ...] = (
    {"regex": "[a-z ]{2,12}"},
    {"choices": ["yes", "no, never", "a kite"]},
    {"json_schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    {"grammar": 'root ::= "a" | "b" root'},
    {"regex": "[0-9]+", "trigger": "a"},
)
_TOOLS = [
    {
        "name": "look",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["a", "b"]}},
            "required": ["at"],
        },
    }
]
_CUTS = (
    {"top_k": 5},
    {"top_k": 0, "top_p": 0.7},
    {"min_p": 0.0, "top_k": 0},
    {"typical_p": 0.9},
    {"top_n_sigma": 1.5},
)
_PENALTIES = (
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.8, "penalty_last_n": 9},
    {"frequency_penalty": -0.4},
    {"dry_multiplier": 0.8},
    {"logit_bias": {7: 3.0, 9: float("-inf")}},
    {"min_tokens": 4},
    {"ignore_eos": True},
)


def text_of(number: int, *, most: int = 9) -> str:
    """A few words, some of them odd."""
    drawn = random.Random(number)
    words = drawn.choices(_WORDS, k=drawn.randint(0 if drawn.random() < 0.05 else 1, most))
    if drawn.random() < 0.15:
        words.append(drawn.choice(_RARE))
    return " ".join(words)


def long_text(number: int, num_words: int) -> str:
    """As many words, which hardly fit or do not."""
    return " ".join(random.Random(number).choices(_WORDS, k=num_words))


def options_of(number: int, proposers: Sequence[str]) -> dict[str, Any]:
    """Keywords of an answer that go together. proposers: that the engine has, by name."""
    drawn = random.Random(number)

    def sometimes(share: float, choices: Sequence[Any]) -> Any:
        return drawn.choice(choices) if drawn.random() < share else {}

    options: dict[str, Any] = {"max_tokens": drawn.choice((1, 2, 3, 5, 8, 13))}
    options |= drawn.choice(
        (
            {"temperature": 0.0},
            {"temperature": 0.0, "rule": "token"},
            {"temperature": drawn.choice((0.5, 1.0, 2.0)), "seed": drawn.randrange(9**9)},
            {"temperature": 1.0, "rule": "coupled", "seed": drawn.randrange(9**9)},
            {"temperature": 1.0, "rule": "token", "logprobs": 0},
            {"temperature": 0.7, "rule": "block", "logprobs": 2},
        )
    )
    options |= sometimes(0.2, _CUTS) | sometimes(0.2, _PENALTIES)
    if not options.keys() & {"ignore_eos", "min_tokens"}:
        options |= sometimes(0.15, _CONSTRAINTS)
    options |= sometimes(0.5, [{"draft_tokens": count} for count in (0, 1, 2, 3, 5, 8, 16)])
    options |= sometimes(0.25, [{"proposer": name} for name in ("auto", "none", *proposers)])
    options |= sometimes(0.2, [{"stop": stop} for stop in (*_STOPS, list(_STOPS[:2]))])
    if drawn.random() < 0.3:
        options.setdefault("logprobs", drawn.choice((0, 2)))
    if drawn.random() < 0.1:
        options["prediction"] = text_of(drawn.randrange(9**9))
    return options


def tools_of(number: int) -> dict[str, Any]:
    """Sometimes tools for an answer of a conversation, which may have to be called."""
    drawn = random.Random(~number)
    if drawn.random() > 0.4:
        return {}
    tools: dict[str, Any] = {"tools": _TOOLS}
    if drawn.random() < 0.5:
        tools |= {"tool_choice": "required", "max_tokens": 60}
    return tools
