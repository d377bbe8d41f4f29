"""A tiny text grammar: `{a|b|}` picks one alternative, `<slot>` takes a value."""

import re
from collections.abc import Mapping
from random import Random

_CHOICE = re.compile(r"\{([^{}]*)\}")
_SLOT = re.compile(r"<(\w+)(?::(\w+))?>")
_SPACES = re.compile(r"  +")


def words(text: str) -> list[str]:
    """The words of a list written as running text."""
    return text.split()


def entries(text: str) -> list[str]:
    """The entries of a list written with semicolons, over several lines."""
    return text.replace("\n", "").split(";")


def article(noun: str) -> str:
    """`noun` with "a" or "an" before it, by its spelling."""
    vowel = noun[:1].lower() in "aeiou" and not noun.lower().startswith(("uni", "one", "use"))
    return f"{'an' if vowel else 'a'} {noun}"


def capital(text: str) -> str:
    """`text` with its first letter in upper case, the rest untouched."""
    return text[:1].upper() + text[1:]


def expand(rng: Random, text: str, slots: Mapping[str, str] | None = None) -> str:
    """`text` with every choice made, innermost first, then every slot filled.

    `<a:thing>` is the slot `thing` with its article. A slot's value is never expanded again,
    so what a visitor typed cannot be read as grammar.
    """
    while "{" in text:
        text = _CHOICE.sub(lambda found: rng.choice(found[1].split("|")), text)

    def fill(found: re.Match[str]) -> str:
        if found[2]:
            return article((slots or {})[found[2]])
        return (slots or {})[found[1]]

    return _SPACES.sub(" ", _SLOT.sub(fill, text)).strip()


def say(rng: Random, text: str, slots: Mapping[str, str] | None = None) -> str:
    """`expand`, with a capital at the start: one answer."""
    return capital(expand(rng, text, slots))
