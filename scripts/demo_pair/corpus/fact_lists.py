"""Simple facts as plain lists: capitals, animals, opposites, plurals and the like."""

from .grammar import words
from .texts import texts

_WORDINGS = texts("fact_lists")


def pairs(text: str) -> dict[str, str]:
    """`key=value; key=value` as a dictionary."""
    entries = (
        entry.split("=") for entry in text.replace("\n", " ").split(";") if entry.strip()
    )
    return {key.strip(): value.strip() for key, value in entries}


CAPITALS = _WORDINGS["capitals"]
NO_CAPITAL = _WORDINGS["no_capital"]
SOUNDS = _WORDINGS["sounds"]
LEGS = _WORDINGS["legs"]
BABIES = _WORDINGS["babies"]
HOMES = _WORDINGS["homes"]
EATS = _WORDINGS["eats"]
OPPOSITES = _WORDINGS["opposites"]
PLURALS = _WORDINGS["plurals"]
MIXES = _WORDINGS["mixes"]
COLOURS = _WORDINGS["colours"]
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _WORDINGS["months"]
SEASONS = words("spring summer autumn winter")
PLANETS = words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune")
ORDINALS = _WORDINGS["ordinals"]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SPELLED = _WORDINGS["spelled"]
SINGLES = _WORDINGS["singles"]
