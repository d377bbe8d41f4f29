"""Questions about simple facts: capitals, animals, opposites, plurals and the like."""

from collections.abc import Callable, Mapping
from random import Random

from .grammar import capital, say, words
from .texts import texts
from .turn import Memory, Turn, turn_of

_WORDINGS = texts("facts")
_LISTS = texts("fact_lists")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_RINGS = (  # what has an order, and how one of it is called
    (words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"), "day"),
    (_LISTS["months"], "month"),
    (words("spring summer autumn winter"), "season"),
    (list(_LETTERS), "letter"),
    (words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"), "planet"),
)


def _turn(
    rng: Random,
    wording: Mapping[str, str],
    slots: dict[str, str],
    short: str = "",
    ask: str = "",
) -> Turn:
    """A question and its answer, `y` of the slots; `ask` in place of the usual wording."""
    worded = {"ask": ask or wording["ask"], "answer": wording["answer"]}
    return turn_of(rng, worded, slots, capital((short or slots["y"]).rstrip(".")) + ".")


def _capital(rng: Random) -> list[Turn]:
    wording = _WORDINGS["capital"]
    told = []
    for country in rng.sample(list(_LISTS["capitals"]), rng.choice((1, 1, 1, 2, 2, 3))):
        city = _LISTS["capitals"][country]
        slots = {"x": country, "X": country, "y": city, "w": say(rng, _WORDINGS["which"])}
        kind = rng.random()
        if kind > 0.93:
            told.append(_turn(rng, _WORDINGS["country"], slots, country))
            continue
        ask = wording["again"] if told and kind < 0.45 else wording["ask"]
        told.append(_turn(rng, wording, slots, ask=ask))
        if rng.random() < 0.08:
            told.append(_turn(rng, _WORDINGS["sure"], slots, "Yes"))
    if rng.random() < 0.14:
        place = rng.choice(_LISTS["no_capital"])
        slots = {"x": place, "X": place, "w": say(rng, _WORDINGS["which"])}
        unknown = {"ask": wording["ask"], "answer": wording["unknown"]}
        told.append(_turn(rng, unknown, slots, "I do not know."))
    return told


def _animal(rng: Random) -> list[Turn]:
    kind = ("sounds", "legs", "babies", "homes", "eats")[rng.randrange(5)]
    table = _LISTS[kind]
    wording = _WORDINGS["animals"][kind]
    told: list[Turn] = []
    for x in rng.sample(list(table), rng.choice((1, 1, 2))):
        is_again = bool(told) and rng.random() >= 0.4
        ask = _WORDINGS["animals"]["again"] if is_again else wording["ask"]
        told.append(_turn(rng, wording, {"x": x, "y": table[x]}, ask=ask))
    return told


def _listed(rng: Random, table: dict[str, str], wording: Mapping[str, str]) -> list[Turn]:
    """One or two entries of a table."""
    told: list[Turn] = []
    for x in rng.sample(list(table), rng.choice((1, 1, 2))):
        ask = wording["again"] if told else wording["ask"]
        told.append(_turn(rng, wording, {"x": x, "y": table[x]}, ask=ask))
    return told


def _opposite(rng: Random) -> list[Turn]:
    return _listed(rng, _LISTS["opposites"], _WORDINGS["opposite"])


def _plural(rng: Random) -> list[Turn]:
    return _listed(rng, _LISTS["plurals"], _WORDINGS["plural"])


def _colour(rng: Random) -> list[Turn]:
    is_mixed = rng.random() < 0.5
    table = _LISTS["mixes"] if is_mixed else _LISTS["colours"]
    x = rng.choice(list(table))
    return [_turn(rng, _WORDINGS["mixed" if is_mixed else "colour"], {"x": x, "y": table[x]})]


def _order(rng: Random) -> list[Turn]:
    """The neighbour of a day, month, season, letter or planet, or the nth of them."""
    ring, noun = rng.choice(_RINGS)
    at = rng.randrange(len(ring) - (noun in ("letter", "planet")))
    one = ring[at]
    following = ring[(at + 1) % len(ring)]
    kind = rng.random()
    if kind < 0.55:
        return [_turn(rng, _WORDINGS["after"], {"x": one, "y": following, "noun": noun})]
    if kind < 0.75:
        return [_turn(rng, _WORDINGS["before"], {"x": following, "y": one, "noun": noun})]
    at = rng.randrange(min(12, len(ring)))
    slots = {"x": _LISTS["ordinals"][at], "y": ring[at], "noun": noun}
    return [_turn(rng, _WORDINGS["nth"], slots | {"z": _WORDINGS["wholes"][noun]})]


def _spelling(rng: Random) -> list[Turn]:
    x = rng.choice(_LISTS["spelled"])
    kind = rng.random()
    if kind < 0.6:
        asked = "spelling"
        answer = "-".join(x.upper())
    elif kind < 0.75:
        asked = "length"
        answer = str(len(x))
    elif kind < 0.9:
        asked = "first_letter"
        answer = x[0].upper()
    else:
        asked = "last_letter"
        answer = x[-1].upper()
    return [_turn(rng, _WORDINGS[asked], {"x": x, "y": answer})]


def _single(rng: Random) -> list[Turn]:
    ask, answer, short = rng.choice(_LISTS["singles"])
    question = rng.choice(ask.rstrip("?").split("?|")) + "?"
    text = say(rng, answer)
    return [Turn(say(rng, question), text, short or text)]


_KINDS: tuple[Callable[[Random], list[Turn]], ...] = (
    *(_capital, _capital, _capital, _capital, _animal, _animal, _animal, _opposite, _plural),
    *(_colour, _order, _order, _spelling, _single, _single, _single),
)


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """One to three small facts."""
    told: list[Turn] = []
    for _ in range(rng.choice((1, 1, 2))):
        told += rng.choice(_KINDS)(rng)
    return told
