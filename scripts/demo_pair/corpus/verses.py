"""Little poems, haikus and riddles."""
# ruff: noqa: E501 - a wording stays on its line

from dataclasses import replace
from random import Random

from .grammar import article, expand, say
from .texts import texts
from .turn import Memory, Turn, turn_of
from .words import ADJECTIVES, ANIMALS, THINGS

_WORDINGS = texts("verses")

# Rhymed pairs of lines by theme; a poem is two pairs. `<x>` is the word asked for.
COUPLETS = _WORDINGS["couplets"]
ANY = _WORDINGS["any"]
# Lines of five, seven and five syllables by theme.
HAIKUS = _WORDINGS["haikus"]
RIDDLES = _WORDINGS["riddles"]
_POEM_ASK = _WORDINGS["poem_ask"]
_HAIKU_ASK = _WORDINGS["haiku_ask"]
_RIDDLE_ASK = _WORDINGS["riddle_ask"]
_GUESSES = _WORDINGS["guesses"]


def poem(rng: Random, theme: str) -> str:
    """Two rhymed pairs of lines about the theme."""
    couplets = rng.sample(COUPLETS.get(theme, ANY), 2)
    lines = [
        part for couplet in couplets for part in expand(rng, couplet, {"x": theme}).split("/")
    ]
    return "\n".join(line[:1].upper() + line[1:] for line in lines)


def haiku(rng: Random, theme: str) -> str:
    """Three lines drawn from the theme's, or from any theme when it has none."""
    parts = HAIKUS[theme if theme in HAIKUS else rng.choice(list(HAIKUS))]
    return "\n".join(rng.choice(part) for part in parts)


def any_riddle(rng: Random) -> Turn:
    """A riddle; the question is left to the caller."""
    riddle = rng.choice(RIDDLES)[0]
    return Turn("", riddle, riddle)


def _poem(rng: Random) -> list[Turn]:
    told = []
    for _ in range(rng.choice((1, 1, 2))):
        theme = rng.choice(
            list(COUPLETS) if rng.random() < 0.6 else rng.choice((ANIMALS, THINGS))
        )
        if rng.random() < 0.12 and theme not in COUPLETS:
            theme = f"{rng.choice(ADJECTIVES)} {theme}"
        the = rng.choice((f"the {theme}", article(theme), theme, f"the {theme}"))
        if theme in ("love", "friendship", "home", "spring", "summer", "autumn", "winter"):
            the = theme
        ask = f"{_POEM_ASK} {{about|on|about}} {the}{{.|?|}}"
        if told:
            ask = f"{{Now one about|And one about|Another one about|And about|One about}} {the}{{.|?|}}"
        elif rng.random() < 0.2:
            theme = rng.choice(list(COUPLETS))
            ask = f"{{{_POEM_ASK}|A poem|Poem please|Poem|Write something that rhymes|A rhyme please}}{{.|?|}}"
        text = poem(rng, theme)
        told.append(Turn(say(rng, ask), text, "\n".join(text.split("\n")[:2])))
    return told


def _haiku(rng: Random) -> list[Turn]:
    theme = rng.choice(list(HAIKUS))
    ask = (
        f"{_HAIKU_ASK}{{.|?|}}"
        if rng.random() < 0.3
        else f"{{{_HAIKU_ASK}|A haiku|Haiku}} about {rng.choice(('the ', '')) if theme not in ('autumn', 'winter', 'spring', 'summer') else ''}{theme}{{.|?|}}"
    )
    text = haiku(rng, theme)
    told = [Turn(say(rng, ask), text, text)]
    if rng.random() < 0.25:
        text = haiku(rng, rng.choice(list(HAIKUS)))
        ask = say(rng, "{Another one|One more|Another haiku|Again}{.|}")
        told.append(Turn(ask, text, text))
    return told


def _riddle(rng: Random) -> list[Turn]:
    riddle, answer = rng.choice(RIDDLES)
    slots = {"r": riddle, "y": answer}
    said = "{<r>|<r>|Here is one: <r>|Try this one: <r>}"
    told = [turn_of(rng, {"ask": _RIDDLE_ASK, "answer": said}, slots, riddle)]
    kind = rng.random()
    if kind < 0.4:
        given_up = turn_of(rng, _WORDINGS["given_up"], slots)
        told.append(replace(given_up, short=say(rng, "<y>.", slots)))
    elif kind < 0.65:
        bare = answer.split(" ", 1)[-1]
        forms = ("<y>", "is it <y>?", bare, "it is <y>", "<y>?", "I think it is <y>")
        guess = rng.choice(forms).replace("<y>", answer)
        told.append(Turn(guess, say(rng, _WORDINGS["right"]["answer"], slots), "Yes!"))
    elif kind < 0.9:
        wrong = rng.choice(_GUESSES)
        if wrong != answer:
            forms = ("<w>", "is it <w>?", "<w>?", "I think it is <w>", "maybe <w>")
            guess = rng.choice(forms).replace("<w>", wrong)
            reply = say(rng, _WORDINGS["wrong"]["answer"], slots)
            told.append(Turn(guess, reply, say(rng, "No: <y>.", slots)))
    return told


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """A poem, a haiku or a riddle, with a follow-up now and then."""
    return rng.choice((_poem, _poem, _haiku, _riddle, _riddle))(rng)
