"""Small stories that obey the subject asked for, and the questions that follow them."""

from dataclasses import dataclass, replace
from random import Random

from .grammar import article, capital, expand, say
from .texts import texts
from .turn import Memory, Turn, turn_of
from .words import (
    ADJECTIVES,
    PLACE_WORDS,
    PLACES,
    THING_ADJECTIVES,
    THINGS,
    hero_kind,
    hero_name,
    person_name,
)

_WORDINGS = texts("story")
_PRONOUNS = (("he", "his", "him"), ("she", "her", "her"))
_SHE = frozenset(_WORDINGS["she"])
_HE = frozenset(_WORDINGS["he"])
_IN_PLACE = _WORDINGS["in_place"]
# Each plot is a few sentences, each with many wordings. It begins after the hero is introduced,
# and stops before the last sentence.
_PLOTS = texts("plots")


@dataclass(frozen=True)
class Plot:
    """A course of events, and what a visitor may ask about it afterwards."""

    about: str
    lines: tuple[str, ...]
    found: str
    helped: str
    end: str


PLOTS = tuple(Plot(**each) for each in _PLOTS["plots"])


@dataclass(frozen=True)
class Cast:
    """Hero, thing, place and plot of a story, and its mood ("", "sad" or "funny")."""

    kind: str
    name: str
    place: str
    thing: str
    friend: str
    plot: Plot
    pronouns: tuple[str, str, str]
    adjective: str = ""
    mood: str = ""

    def slots(self) -> dict[str, str]:
        """The cast as slots of the grammar."""
        last = self.kind.split(" ", 1)[-1] if self.kind not in _SHE | _HE else self.kind
        he, his, him = (
            _PRONOUNS[1 if last in _SHE else 0] if last in _SHE | _HE else self.pronouns
        )
        return {
            "name": self.name, "kind": self.kind, "place": self.place, "thing": self.thing,
            "friend": self.friend, "he": he, "his": his, "him": him,
            "who": f"{self.adjective} {self.kind}".strip(),
        }  # fmt: skip


def cast(rng: Random) -> Cast:
    """A cast drawn at random, with a friend who is of another kind than the hero."""
    kind = hero_kind(rng)
    friend = hero_kind(rng)
    while friend == kind:
        friend = hero_kind(rng)
    return Cast(
        kind=kind,
        name=hero_name(rng),
        place=expand(rng, rng.choice(PLACES)),
        thing=rng.choice(THINGS),
        friend=friend,
        plot=rng.choice(PLOTS),
        pronouns=rng.choice(_PRONOUNS),
        adjective=rng.choice(ADJECTIVES) if rng.random() < 0.7 else "",
    )


def tell(rng: Random, who: Cast, *, short: bool = False) -> str:
    """The story of this cast; `short` leaves out about half of it."""
    slots = who.slots()
    endings = _PLOTS[f"{who.mood}_endings" if who.mood else "endings"]
    body = list(who.plot.lines)
    if short:
        lines = [rng.choice(_WORDINGS["openings"]), body[0], capital(who.plot.end)]
    else:
        lines = [rng.choice(_WORDINGS["openings"]), *body, rng.choice(endings)]
    return " ".join(say(rng, line, slots) for line in lines)


def _subject(rng: Random, base: Cast) -> tuple[str, Cast]:
    """The subject asked for ("about a fox and a lantern"), and the cast that obeys it."""
    about = rng.choice(_WORDINGS["about"])
    thing = base.thing
    if rng.random() < 0.3:
        thing = f"{rng.choice(THING_ADJECTIVES)} {thing}"
    kind = base.kind
    if rng.random() < 0.25:
        kind = f"{rng.choice(ADJECTIVES)} {kind}"
    the = article if rng.random() < 0.9 else str
    plain = replace(base, adjective="" if " " in kind else base.adjective)
    form = rng.random()
    if form < 0.3:
        return f"{about} {the(kind)} and {the(thing)}", replace(plain, kind=kind, thing=thing)
    if form < 0.52:
        return f"{about} {the(kind)}", replace(plain, kind=kind)
    if form < 0.64:
        return f"{about} {the(thing)}", replace(base, thing=thing)
    if form < 0.76:
        return f"{about} {the(kind)} and {the(base.friend)}", replace(plain, kind=kind)
    if form < 0.82:
        verb = rng.choice(("finds", "has", "loses", "wants", "found"))
        asked = f"{about} {the(kind)} who {verb} {the(thing)}"
        return asked, replace(plain, kind=kind, thing=thing)
    if form < 0.9:
        word = rng.choice(PLACE_WORDS)
        place = _IN_PLACE.get(word, f"in {article(word)}")
        ask = f"{about} {the(kind)} {place}" if rng.random() < 0.7 else f"{about} the {word}"
        return ask, replace(
            plain,
            kind=kind if " in " in ask or " on " in ask or " by " in ask else base.kind,
            place=place,
        )
    if form < 0.95:
        name = person_name(rng) if rng.random() < 0.6 else base.name
        return f"{about} {the(kind)} {rng.choice(('called', 'named'))} {name}", replace(
            plain, kind=kind, name=name
        )
    names = (kind, thing, base.friend)
    return f"{about} {the(names[0])}, {the(names[1])} and {the(names[2])}", replace(
        plain, kind=kind, thing=thing
    )


def _request(rng: Random) -> tuple[str, Cast, bool]:
    """A request, the cast it leads to, and whether a short story was asked for."""
    base = cast(rng)
    size = rng.choice(_WORDINGS["sizes"])
    asks = _WORDINGS["ask"]
    start = say(rng, rng.choice(asks[:1] * 5 + asks), {"size": size})
    short = f" {size} " in start and size in ("short", "quick", "tiny")
    if f" {size} " in start and size in ("funny", "sad"):
        base = replace(base, mood=size)
    if start.endswith(("story", "tale", "stories")) and rng.random() < 0.82:
        wanted, base = _subject(rng, base)
        start = f"{start} {wanted}"
        if rng.random() < 0.08:
            start = say(rng, f"{{story|a story|tale}} {wanted}")
    return start + rng.choice((".", ".", "?", "", "!")), base, short


def _question(rng: Random, who: Cast) -> Turn:
    """A question about the story just told, with its answer."""
    asked = rng.choice(_WORDINGS["questions"])
    answer = asked["answer"]
    for part in ("about", "found", "helped", "end"):
        answer = answer.replace(f"<{part}>", getattr(who.plot, part))
    return turn_of(rng, {"ask": asked["ask"], "answer": answer}, who.slots())


def _sequel(rng: Random, who: Cast) -> tuple[Turn, Cast]:
    """Another story after this one: shorter, changed, or quite new."""
    new = cast(rng)
    asks = _WORDINGS["sequel"]
    kind = rng.random()
    if kind < 0.3:
        ask = say(rng, asks["another"])
    elif kind < 0.5:
        text = tell(rng, who, short=True)
        return Turn(say(rng, asks["shorter"]), text, text), who
    elif kind < 0.8:
        wanted, new = _subject(rng, new)
        ask = say(rng, asks["about"], {"subject": wanted.split(" ", 1)[1]})
        ask += rng.choice((".", "?", ""))
    elif kind < 0.9:
        new = replace(new, mood=rng.choice(("sad", "funny")))
        ask = say(rng, asks["mood"], {"mood": new.mood})
    else:
        same = {"kind": who.kind, "name": who.name, "adjective": who.adjective}
        new = replace(new, pronouns=who.pronouns, **same)
        ask = say(rng, asks["same"], who.slots())
    return Turn(ask, tell(rng, new), tell(rng, new, short=True)), new


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """A story and, often, questions about it or further stories."""
    ask, who, short = _request(rng)
    if memory.name and rng.random() < 0.06:
        ask = say(rng, _WORDINGS["about_me"])
        short = False
        kind = rng.choice(("child", "girl", "boy", "traveller"))
        who = replace(who, name=memory.name, kind=kind)
    told = [Turn(ask, tell(rng, who, short=short), tell(rng, who, short=True))]
    while rng.random() < 0.55 and len(told) < 5:
        if rng.random() < 0.62:
            told.append(_question(rng, who))
        else:
            turn, who = _sequel(rng, who)
            told.append(turn)
    return told


def any_story(rng: Random) -> Turn:
    """A story of the model's own choice; the question is left to the caller."""
    who = cast(rng)
    return Turn("", tell(rng, who), tell(rng, who, short=True))
