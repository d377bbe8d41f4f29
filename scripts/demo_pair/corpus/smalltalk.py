"""Greetings, names, feelings, jokes: the talk around everything else."""

from dataclasses import replace
from random import Random

from .grammar import expand, say
from .texts import texts
from .turn import Memory, Turn, turn_of
from .words import ADJECTIVES, ANIMALS, THINGS, person_name

_WORDINGS = texts("smalltalk")

_OFFER = _WORDINGS["offer"]
_AM = _WORDINGS["am"]
_CAN = _WORDINGS["can"]

PAIRS = _WORDINGS["pairs"]

_CORE = _WORDINGS["core"]
_WEIGHED = PAIRS + tuple(pair for pair in PAIRS if pair[2] in _CORE) * 3  # asked most often

_JOKES = _WORDINGS["jokes"]
_JOKE_ASK = _WORDINGS["joke_ask"]
_MEET = _WORDINGS["meet"]
_RECALL = _WORDINGS["recall"]
_LIKES = _WORDINGS["likes"]


_ECHO = _WORDINGS["echo"]
_GAMES = _WORDINGS["games"]
_FACT_ASK = _WORDINGS["fact_ask"]
_FACTS = _WORDINGS["facts"]
_SONGS = _WORDINGS["songs"]


def any_joke(rng: Random) -> Turn:
    """A joke; the question is left to the caller."""
    joke = say(rng, rng.choice(_JOKES))
    return Turn("", joke, joke)


def _echo(rng: Random) -> Turn:
    """Words to be said again."""
    count = rng.choice((1, 1, 2, 2, 3, 4, 5))
    words = " ".join(
        rng.choice((*ANIMALS, *THINGS, *ADJECTIVES)) if rng.random() < 0.8 else person_name(rng)
        for _ in range(count)
    )
    quote = rng.choice(("", "", '"'))
    ask = expand(rng, _ECHO) + " " + quote + words + quote
    return Turn(ask, words[0].upper() + words[1:] + ".", words[0].upper() + words[1:] + ".")


def _play(rng: Random) -> Turn:
    """A song, a fun fact, or the wish for a game."""
    kind = rng.random()
    if kind < 0.3:
        return Turn(say(rng, _GAMES[0]), say(rng, _GAMES[1]), "Would you like a riddle?")
    if kind < 0.7:
        fact = say(rng, rng.choice(_FACTS))
        return Turn(say(rng, _FACT_ASK), fact, fact)
    song = "\n".join(line[:1].upper() + line[1:] for line in expand(rng, _SONGS[1]).split("/"))
    return Turn(say(rng, _SONGS[0]), song, song)


def _likes(rng: Random, memory: Memory) -> Turn:
    """The visitor's favourite things: told, or asked for again."""
    kind = rng.choice(list(_LIKES))
    known = memory.likes.get(kind)
    if known is None:
        memory.likes[kind] = known = rng.choice(_LIKES[kind])
        wording = _WORDINGS["likes_told"]
    else:
        wording = _WORDINGS["likes_asked"]
    slots = {"kind": kind, "it": known, "It": known[:1].upper() + known[1:]}
    return turn_of(rng, wording, slots)


def _recalled(rng: Random, memory: Memory) -> Turn:
    """The visitor's name, asked for again."""
    wording = {"ask": _RECALL[0], "answer": _RECALL[1]}
    return turn_of(rng, wording, {"name": memory.name}, f"{memory.name}.")


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """One to three turns of small talk."""
    kind = rng.random()
    if kind < 0.1:
        joke = say(rng, rng.choice(_JOKES))
        told = [Turn(say(rng, _JOKE_ASK), joke, joke)]
        if rng.random() < 0.4:
            other = say(rng, rng.choice(_JOKES))
            told.append(Turn(say(rng, _WORDINGS["more_jokes"]), other, other))
        return told
    if kind < 0.28:
        if not memory.name and rng.random() < 0.8:
            memory.name = person_name(rng)
            slots = {"name": memory.name}
            met = turn_of(rng, {"ask": _MEET[0], "answer": _MEET[1]}, slots)
            return [replace(met, short=expand(rng, _WORDINGS["greet"], slots))]
        if not memory.name:
            memory.name = person_name(rng)
            slots = {"name": memory.name}
            asked = turn_of(
                rng, {"ask": _RECALL[0], "answer": _RECALL[2]}, {}, "I do not know."
            )
            named = {"ask": _WORDINGS["named"], "answer": _MEET[1]}
            return [asked, turn_of(rng, named, slots, f"Hello, {memory.name}.")]
        return [_recalled(rng, memory)]
    if kind < 0.35:
        return [_likes(rng, memory)]
    if kind < 0.45:
        return [_echo(rng)]
    if kind < 0.50:
        return [_play(rng)]
    ask, answer, short = rng.choice(_WEIGHED)
    text = say(rng, answer)
    if memory.name and rng.random() < 0.12 and "!" in text[:14]:
        text = text.replace("!", f", {memory.name}!", 1)
    return [Turn(say(rng, ask), text, short)]


def opening(rng: Random, memory: Memory) -> list[Turn]:
    """How many conversations begin: a greeting, or a name."""
    if rng.random() < 0.3:
        memory.name = person_name(rng)
        slots = {"name": memory.name}
        met = {"ask": _MEET[0], "answer": _MEET[1]}
        return [turn_of(rng, met, slots, f"Hello, {memory.name}!")]
    ask, answer, short = rng.choice(PAIRS[:4] + PAIRS[5:6])
    return [Turn(say(rng, ask), say(rng, answer), short)]


def closing(rng: Random, memory: Memory) -> list[Turn]:
    """A last question for the name, thanks, or a goodbye."""
    if memory.name and rng.random() < 0.5:
        return [_recalled(rng, memory)]
    ask, answer, short = rng.choice(
        [pair for pair in PAIRS if pair[2] in ("Goodbye!", "You are welcome.")]
    )
    return [Turn(say(rng, ask), say(rng, answer), short)]
