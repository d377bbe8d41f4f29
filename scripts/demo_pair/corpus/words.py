"""Word lists shared by the topics: names, heroes, things and places."""

from random import Random

from .grammar import words
from .texts import texts

_WORDINGS = texts("words")

NAMES = _WORDINGS["names"]

PET_NAMES = _WORDINGS["pet_names"]

_START = words("B C D F G H J K L M N P R S T V W Z Br Tr Kr Dr Fl Sh Th Al El Or An In")
_MIDDLE = words("a e i o u ai ia eo ar er ir or al el il an en in on un")
_END = words("n r l s m ko la na ra ta mi ni vo do lo sa ri len dor bin tin mar wen")

ANIMALS = _WORDINGS["animals"]
PEOPLE = _WORDINGS["people"]
THINGS = _WORDINGS["things"]
ADJECTIVES = _WORDINGS["adjectives"]
THING_ADJECTIVES = _WORDINGS["thing_adjectives"]
PLACES = _WORDINGS["places"]
PLACE_WORDS = _WORDINGS["place_words"]


def person_name(rng: Random) -> str:
    """A given name: usually a known one, sometimes one that nobody has."""
    if rng.random() < 0.75:
        return rng.choice(NAMES)
    return rng.choice(_START) + rng.choice(_MIDDLE) + rng.choice(_END)


def hero_name(rng: Random) -> str:
    """A name for somebody in a story."""
    if rng.random() < 0.7:
        return rng.choice(PET_NAMES)
    return rng.choice(NAMES)


def hero_kind(rng: Random) -> str:
    """The hero of a story: an animal or somebody from a tale."""
    if rng.random() < 0.6:
        return rng.choice(ANIMALS)
    return rng.choice(PEOPLE)
