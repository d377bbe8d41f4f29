"""Small stories that obey the subject asked for, and the questions that follow them."""
# ruff: noqa: E501 - a wording stays on its line

from dataclasses import dataclass, replace
from random import Random

from .grammar import article, capital, expand, say, words
from .plots import ENDINGS, FUNNY_ENDINGS, PLOTS, SAD_ENDINGS, Plot
from .turn import Memory, Turn
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

_PRONOUNS = (("he", "his", "him"), ("she", "her", "her"))
_SHE = frozenset(words("girl queen witch princess mermaid grandmother hen cow nurse")) | {
    "old woman"
}
_HE = frozenset(words("boy king prince wizard grandfather knight cowboy fisherman postman")) | {
    "old man"
}
_OPENINGS = (
    "Once there was <a:who> {called|named} <name> who lived <place>.",
    "{There once was|Once upon a time there was} <a:who> {called|named} <name> who lived <place>.",
    "<a:who> {called|named} <name> lived <place>.",
    "<name> was <a:who> who lived <place>.",
    "Long ago, <place>, there lived <a:who> {called|named} <name>.",
    "{Far away|Not far from here}, <place>, lived <a:who> whose name was <name>.",
)
_IN_PLACE = {
    "island": "on an island", "farm": "on a farm", "hill": "on a hill", "moon": "on the moon",
    "sea": "by the sea", "river": "by a river", "lake": "by a lake", "beach": "on a beach",
    "mountains": "in the mountains", "ship": "on a ship", "bridge": "under a bridge", "space": "in space",
    "harbour": "by the harbour", "ocean": "by the ocean", "field": "in a field", "mill": "in a mill",
    "desert": "in the desert", "jungle": "in the jungle", "forest": "in a forest", "city": "in a city",
}  # fmt: skip
_ASK = (
    "{Tell me|Tell|Write|Write me|Give me|Make up|I want|I would like|Can you tell me|Could you write|Please tell me|I'd like|Can I have|Create|Say} "
    "{a|a|a|a <size>} {story|story|tale|short story|little story|bedtime story|fairy tale}",
    "{Story please|A story|Story time|Story|Tell me a story|Do you know a story|Can you tell stories|Another story|tell me something|I want to hear a story}",
    "{Do you know|Have you got|Got} {a|any} {story|good story|stories}",
)
_ABOUT = ("about", "about", "about", "about", "with", "on", "featuring", "of")


@dataclass(frozen=True)
class Cast:
    """Who and what a story is about, and its mood ("", "sad" or "funny")."""

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
    endings = {"sad": SAD_ENDINGS, "funny": FUNNY_ENDINGS}.get(who.mood, ENDINGS)
    body = list(who.plot.lines)
    if short:
        lines = [rng.choice(_OPENINGS), body[0], capital(who.plot.end)]
    else:
        lines = [rng.choice(_OPENINGS), *body, rng.choice(endings)]
    return " ".join(say(rng, line, slots) for line in lines)


def _subject(rng: Random, base: Cast) -> tuple[str, Cast]:
    """What is asked for ("about a fox and a lantern"), and the cast that obeys it."""
    about = rng.choice(_ABOUT)
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
        return (
            f"{about} {the(kind)} who {rng.choice(('finds', 'has', 'loses', 'wants', 'found'))} {the(thing)}",
            replace(plain, kind=kind, thing=thing),
        )
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
    size = rng.choice(
        (
            "nice",
            "funny",
            "sad",
            "short",
            "little",
            "quick",
            "happy",
            "good",
            "cute",
            "new",
            "tiny",
        )
    )
    start = say(rng, rng.choice(_ASK[:1] * 5 + _ASK), {"size": size})
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
    slots = who.slots()
    plot = who.plot
    options = (
        (
            "{What was the <kind> called|What was the name of the <kind>|What was <his> name|What's the name of the hero|Who was the hero|What did you call the <kind>|Remind me of the <kind>'s name}?",
            "{The <kind> was called <name>.|<name>.|Its name was <name>.|The hero was <name>, the <kind>.}",
        ),
        (
            "{Where did the <kind> live|Where did <he> live|Where did <name> live|Where was that|Where does the story take place|Where was the <kind>}?",
            "{<name> lived <place>.|The <kind> lived <place>.|It was <place>.}",
        ),
        (
            "{What did <name> find|What happened to the <thing>|What about the <thing>|Whose was the <thing>|Where was the <thing>|What was with the <thing>}?",
            plot.found,
        ),
        (
            "{Who helped|Who helped <name>|Did anyone help <him>|Who was the friend|Who else was in the story|Who was the other one|Who did <name> meet}?",
            f"{{It was the <friend>.|There was <a:friend>.|The other one was <a:friend>.}} {plot.helped}",
        ),
        (
            "{How did it end|What happened in the end|How does it end|And then|What happened next|And what happened then|Did it end well}?",
            "{In the end, |At the end, |}"
            + plot.end
            + " {That was the end.|It was a good end.|}",
        ),
        (
            "{What is the moral|What was it about|What do we learn from it|What is the story about|Why did you tell me that|What is the lesson}?",
            f"{{It is a story about|The story is about|For me it is about}} {plot.about}.",
        ),
        (
            "{What kind of animal was <name>|Who was <name>|Who is <name>|What was <name>}?",
            "<name> was <a:who>{.| who lived <place>.}",
        ),
        (
            "{That was nice|Nice story|I liked that|Lovely|Great story|That was a good one|Thanks for the story|Good story|Cute|I like <name>|That was sweet}{!|.}",
            "{Thank you!|I am glad you liked it.|I am happy that you liked <name>.} {Do you want another one?|Shall I tell another one?|Tell me a hero and a thing, and I will make a new one.|}",
        ),
        (
            "{That was boring|I did not like it|Bad story|That makes no sense|Meh|That was silly}{!|.}",
            "{Fair enough.|I am sorry about that.|I am a small model, so my stories are simple.} {Shall I try another one?|Tell me what it should be about, and I try again.}",
        ),
    )
    ask, answer = rng.choice(options)
    return Turn(say(rng, ask, slots), say(rng, answer, slots))


def _sequel(rng: Random, who: Cast) -> tuple[Turn, Cast]:
    """Another story after this one: shorter, changed, or quite new."""
    fresh = cast(rng)
    kind = rng.random()
    if kind < 0.3:
        ask = "{Another one|One more|Another story|Another|Again|More|Tell me another one|Tell me another story|Can I have another one|A new one|A different one|Next one|Another one please|Do you have another}{.|!|?|}"
        return Turn(say(rng, ask), tell(rng, fresh), tell(rng, fresh, short=True)), fresh
    if kind < 0.5:
        ask = "{A shorter one|Shorter please|Make it shorter|Too long|Can you make it shorter|Tell it in short|The short version|Sum it up|A shorter one please|Summarise it}{.|?|}"
        text = tell(rng, who, short=True)
        return Turn(say(rng, ask), text, text), who
    if kind < 0.8:
        wanted, new = _subject(rng, fresh)
        subject = wanted.split(" ", 1)[1]
        ask = f"{{Make it about|Now about|Now one about|Another one about|And one about|One about|What about|Now tell one about|How about|The same with|And now with|Can you make it about}} {subject}"
        return Turn(
            say(rng, ask) + rng.choice((".", "?", "")),
            tell(rng, new),
            tell(rng, new, short=True),
        ), new
    if kind < 0.9:
        mood = rng.choice(("sad", "funny"))
        new = replace(fresh, mood=mood)
        ask = f"{{Now a {mood} one|A {mood} one|Make it {mood}|Can you make it {mood}|Tell me a {mood} one|Something {mood}}}{{.|?|}}"
        return Turn(say(rng, ask), tell(rng, new), tell(rng, new, short=True)), new
    new = replace(
        fresh, kind=who.kind, name=who.name, adjective=who.adjective, pronouns=who.pronouns
    )
    ask = "{Another one about|One more about|Tell me more about|More about} {<name>|the <kind>|the same <kind>|him|her}{.|}"
    return Turn(say(rng, ask, who.slots()), tell(rng, new), tell(rng, new, short=True)), new


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """A story and, often, questions about it or further stories."""
    ask, who, short = _request(rng)
    if memory.name and rng.random() < 0.06:
        ask = say(
            rng,
            "{Tell me a story about me|A story about me|Can you tell a story with me in it}.",
        )
        who, short = (
            replace(
                who, name=memory.name, kind=rng.choice(("child", "girl", "boy", "traveller"))
            ),
            False,
        )
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
