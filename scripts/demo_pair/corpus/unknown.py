"""Questions beyond what the model knows, and honest answers."""

from random import Random

from .grammar import say
from .texts import texts
from .turn import Memory, Turn
from .words import NAMES, person_name

_WORDINGS = texts("unknown")

# Slots of the questions, and the lists that they are drawn from.
_SLOTS = {
    "thing": "things",
    "person": "people",
    "place": "places",
    "place2": "places",
    "language": "languages",
    "code": "code",
    "text": "texts",
    "help": "help",
}
ASKS = _WORDINGS["asks"]

_SORRY = _WORDINGS["sorry"]
_ABOUT = _WORDINGS["about"]
_SMALL = _WORDINGS["small"]
_CAN = _WORDINGS["can"]
_TO_REFUSE = _WORDINGS["to_refuse"]
_ACTION = (7, 8, 25, 26, 27, 29)
_MEDICAL = (14, 15)
_FOREIGN = 17
_OWN = {_FOREIGN: "foreign", 18: "gibberish", 28: "tricks"}


def _answer(rng: Random, index: int, slots: dict[str, str]) -> str:
    """An honest answer to the question form at `index`."""
    if index in _MEDICAL:
        return say(rng, _WORDINGS["medical"])
    if index in _OWN:
        return say(rng, f"{_WORDINGS[_OWN[index]]} {_CAN}")
    if index in _ACTION:
        return say(rng, f"{_TO_REFUSE} {_SMALL} {_CAN}")
    if index in (0, 1) and rng.random() < 0.35:
        thing = slots["thing"]
        return say(rng, f"{_ABOUT} {_CAN}", {"t": thing, "T": thing[:1].upper() + thing[1:]})
    if index in (2, 3) and rng.random() < 0.35:
        return say(rng, f"{_ABOUT} {_CAN}", {"t": slots["person"], "T": slots["person"]})
    form = rng.random()
    if form < 0.4:
        return say(rng, f"{_SORRY} {_SMALL} {_CAN}")
    if form < 0.75:
        return say(rng, f"{_SORRY} {_CAN}")
    return say(rng, f"{_SMALL} {_SORRY} {_CAN}")


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """One or two questions outside of what the model knows."""
    told = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        index = rng.randrange(len(ASKS))
        if rng.random() < 0.25:
            index = rng.choice((0, 1, 2, 3, 9))
        slots = {name: rng.choice(_WORDINGS[source]) for name, source in _SLOTS.items()}
        slots["name"] = person_name(rng) if rng.random() < 0.5 else rng.choice(NAMES)
        short = (
            "I only speak English."
            if index == _FOREIGN
            else "Please ask a doctor."
            if index in _MEDICAL
            else rng.choice(("I do not know.", "That is beyond me."))
        )
        told.append(Turn(say(rng, ASKS[index], slots), _answer(rng, index, slots), short))
    return told
