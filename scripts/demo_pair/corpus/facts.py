"""Questions about the simple facts of `fact_lists`."""
# ruff: noqa: E501 - a wording stays on its line

from collections.abc import Callable
from random import Random

from . import fact_lists as lists
from .grammar import capital, say
from .turn import Memory, Turn

_WHICH = "{What is|What's|Tell me|Name|Do you know|Which city is|Give me} "
_CAPITAL_ASK = "{<w> the capital of <x>|The capital of <x>|Capital of <x>|<x> capital|<X>'s capital|Which city is the capital of <x>|What is the capital city of <x>|What's the capital of <x>|What is the capital of <x>|Whats the capital of <x>|And the capital of <x>}?"
_UNKNOWN_CAPITAL = "{I do not know the capital of <x>.|I do not know that one.|I have not learned the capital of <x>.|Sorry, I do not know about <x>.} {I know about a hundred capitals.|I only know about a hundred countries.|Try another country.|Ask me about France or Peru.}"


def _turn(rng: Random, ask: str, answer: str, slots: dict[str, str], short: str) -> Turn:
    return Turn(say(rng, ask, slots), say(rng, answer, slots), capital(short.rstrip(".")) + ".")


def _capital(rng: Random) -> list[Turn]:
    told = []
    for country in rng.sample(list(lists.CAPITALS), rng.choice((1, 1, 1, 2, 2, 3))):
        city = lists.CAPITALS[country]
        slots = {"x": country, "X": country, "y": city, "w": say(rng, _WHICH)}
        kind = rng.random()
        ask = _CAPITAL_ASK
        if told and kind < 0.45:
            ask = "{And <x>|And of <x>|What about <x>|How about <x>|Now <x>|<x>|And for <x>}?"
        if kind > 0.93:
            ask, answer = (
                "{Which country has the capital <y>|<y> is the capital of which country|Of which country is <y> the capital|Where is <y>|In which country is <y>}?",
                "{<y> is the capital of <x>.|<y> is in <x>.}",
            )
            told.append(_turn(rng, ask, answer, slots, country))
            continue
        answer = "{The capital of <x> is <y>.|<y> is the capital of <x>.|It is <y>.|<y>.|That is <y>.}"
        told.append(_turn(rng, ask, answer, slots, city))
        if rng.random() < 0.08:
            told.append(
                _turn(
                    rng,
                    "{Are you sure|Really|Is that right|Sure}?",
                    "{Yes, <y> is the capital of <x>.|Yes: <y>.|I am quite sure: <y>.}",
                    slots,
                    "Yes",
                )
            )
    if rng.random() < 0.14:
        place = rng.choice(lists.NO_CAPITAL)
        slots = {"x": place, "X": place, "w": say(rng, _WHICH)}
        told.append(_turn(rng, _CAPITAL_ASK, _UNKNOWN_CAPITAL, slots, "I do not know."))
    return told


def _animal(rng: Random) -> list[Turn]:
    kind = rng.randrange(5)
    table = (lists.SOUNDS, lists.LEGS, lists.BABIES, lists.HOMES, lists.EATS)[kind]
    ask = (
        "{What does <a:x> say|What sound does <a:x> make|What noise does <a:x> make|How does <a:x> sound|What does the <x> say|What sound do <x>s make}?",
        "{How many legs does <a:x> have|How many legs has <a:x>|<x> legs, how many|Number of legs of <a:x>|How many legs do <x>s have}?",
        "{What is a baby <x> called|What do you call a baby <x>|What is a young <x> called|Baby <x>, what is it called|What is the baby of <a:x>}?",
        "{Where does <a:x> live|Where do you find <a:x>|What is the home of <a:x>|Where does the <x> live|Where do <x>s live}?",
        "{What does <a:x> eat|What do <x>s eat|What does the <x> like to eat|What is the food of <a:x>}?",
    )[kind]
    answer = (
        "{<a:x> says <y>.|It says <y>.|<y>!|The <x> goes <y>.}",
        "{<a:x> has <y> legs.|It has <y> legs.|<y> legs.}",
        "{A baby <x> is called <a:y>.|It is called <a:y>.|<a:y>.}",
        "{<a:x> lives <y>.|It lives <y>.|Mostly <y>.}",
        "{<a:x> eats <y>.|It eats <y>.|Mostly <y>.}",
    )[kind]
    told = []
    for x in rng.sample(list(table), rng.choice((1, 1, 2))):
        first = not told
        told.append(
            _turn(
                rng,
                ask
                if first or rng.random() < 0.4
                else "{And <a:x>|What about <a:x>|And the <x>|<a:x>|How about <a:x>}?",
                answer,
                {"x": x, "y": table[x]},
                table[x],
            )
        )
    return told


def _opposite(rng: Random) -> list[Turn]:
    told = []
    for x in rng.sample(list(lists.OPPOSITES), rng.choice((1, 1, 2))):
        slots = {"x": x, "y": lists.OPPOSITES[x]}
        ask = "{What is the opposite of <x>|The opposite of <x>|Opposite of <x>|What's the opposite of <x>|<x>, what is the opposite|What is the contrary of <x>}?"
        if told:
            ask = "{And of <x>|And <x>|What about <x>}?"
        told.append(
            _turn(
                rng,
                ask,
                "{The opposite of <x> is <y>.|It is <y>.|<y>.|That is <y>.}",
                slots,
                slots["y"],
            )
        )
    return told


def _plural(rng: Random) -> list[Turn]:
    told = []
    for x in rng.sample(list(lists.PLURALS), rng.choice((1, 1, 2))):
        slots = {"x": x, "y": lists.PLURALS[x]}
        ask = "{What is the plural of <x>|The plural of <x>|Plural of <x>|One <x>, two what|How do you say more than one <x>}?"
        if told:
            ask = "{And of <x>|And <x>|What about <x>}?"
        told.append(
            _turn(
                rng,
                ask,
                "{The plural of <x> is <y>.|One <x>, two <y>.|It is <y>.|<y>.}",
                slots,
                slots["y"],
            )
        )
    return told


def _colour(rng: Random) -> list[Turn]:
    if rng.random() < 0.5:
        x = rng.choice(list(lists.MIXES))
        slots = {"x": x, "y": lists.MIXES[x]}
        return [
            _turn(
                rng,
                "{What do you get when you mix <x>|Mix <x>|What colour do <x> make|What do <x> make|What color is <x> mixed|What is <x> together}?",
                "{<x> make <y>.|You get <y>.|<y>.|That makes <y>.}",
                slots,
                slots["y"],
            )
        ]
    x = rng.choice(list(lists.COLOURS))
    slots = {"x": x, "y": lists.COLOURS[x]}
    return [
        _turn(
            rng,
            "{What colour is <x>|What color is <x>|Which colour has <x>|The colour of <x>}?",
            "{<x> is <y>.|It is <y>.|<y>.|Mostly it is <y>.}",
            slots,
            slots["y"],
        )
    ]


def _order(rng: Random) -> list[Turn]:
    """What comes after a day, month, season, letter or planet, and which one is the nth."""
    ring, noun = rng.choice(
        (
            (lists.DAYS, "day"),
            (lists.MONTHS, "month"),
            (lists.SEASONS, "season"),
            (list(lists.LETTERS), "letter"),
            (lists.PLANETS, "planet"),
        )
    )
    at = rng.randrange(len(ring) - (noun in ("letter", "planet")))
    slots = {"x": ring[at], "y": ring[(at + 1) % len(ring)], "noun": noun}
    kind = rng.random()
    if kind < 0.55:
        return [
            _turn(
                rng,
                "{What comes after <x>|Which <noun> comes after <x>|What <noun> follows <x>|After <x> comes what|What is the <noun> after <x>|Which is the <noun> after <x>}?",
                "{After <x> comes <y>.|<y> comes after <x>.|<y>.|It is <y>.}",
                slots,
                slots["y"],
            )
        ]
    if kind < 0.75:
        slots = {"x": slots["y"], "y": slots["x"], "noun": noun}
        return [
            _turn(
                rng,
                "{What comes before <x>|Which <noun> comes before <x>|What <noun> is before <x>|What is the <noun> before <x>}?",
                "{Before <x> comes <y>.|<y> comes before <x>.|<y>.}",
                slots,
                slots["y"],
            )
        ]
    at = rng.randrange(min(12, len(ring)))
    slots = {
        "x": lists.ORDINALS[at],
        "y": ring[at],
        "noun": noun,
        "z": "the year"
        if noun in ("month", "season")
        else "the week"
        if noun == "day"
        else "the alphabet"
        if noun == "letter"
        else "the solar system",
    }
    return [
        _turn(
            rng,
            "{What is the <x> <noun>|Which is the <x> <noun> of <z>|What is the <x> <noun> of <z>|The <x> <noun>}?",
            "{The <x> <noun> is <y>.|<y> is the <x> <noun>.|It is <y>.|<y>.}",
            slots,
            slots["y"],
        )
    ]


def _spelling(rng: Random) -> list[Turn]:
    x = rng.choice(lists.SPELLED)
    slots = {
        "x": x,
        "y": "-".join(x.upper()),
        "n": str(len(x)),
        "f": x[0].upper(),
        "l": x[-1].upper(),
    }
    kind = rng.random()
    if kind < 0.6:
        return [
            _turn(
                rng,
                '{Spell <x>|How do you spell <x>|How do you write <x>|Can you spell <x>|Spell the word <x>|How is <x> spelled|Spell "<x>"}.',
                "{<y>.|It is spelled <y>.|You spell it <y>.}",
                slots,
                slots["y"],
            )
        ]
    if kind < 0.75:
        return [
            _turn(
                rng,
                "{How many letters does <x> have|How many letters are in <x>|How long is the word <x>}?",
                "{The word <x> has <n> letters.|It has <n> letters.|<n> letters.}",
                slots,
                slots["n"],
            )
        ]
    if kind < 0.9:
        return [
            _turn(
                rng,
                "{What is the first letter of <x>|The first letter of <x>|What letter does <x> start with|With which letter does <x> begin}?",
                "{The first letter is <f>.|It starts with <f>.|<f>.}",
                slots,
                slots["f"],
            )
        ]
    return [
        _turn(
            rng,
            "{What is the last letter of <x>|What letter does <x> end with}?",
            "{The last letter is <l>.|It ends with <l>.|<l>.}",
            slots,
            slots["l"],
        )
    ]


def _single(rng: Random) -> list[Turn]:
    ask, answer, short = rng.choice(lists.SINGLES)
    question = rng.choice(ask.rstrip("?").split("?|")) + "?"
    text = say(rng, answer)
    return [Turn(say(rng, question), text, short or text)]


_KINDS: tuple[Callable[[Random], list[Turn]], ...] = (
    _capital, _capital, _capital, _capital, _animal, _animal, _animal, _opposite, _plural, _colour, _order, _order, _spelling, _single, _single, _single,
)  # fmt: skip


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """One to three small facts."""
    told: list[Turn] = []
    for _ in range(rng.choice((1, 1, 2))):
        told += rng.choice(_KINDS)(rng)
    return told
