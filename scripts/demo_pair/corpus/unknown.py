"""What the model does not know, asked in many ways, and the honest answers."""
# ruff: noqa: E501 - a wording stays on its line

from random import Random

from .grammar import say
from .texts import texts
from .turn import Memory, Turn
from .words import NAMES, person_name

_WORDINGS = texts("unknown")

_THINGS = _WORDINGS["things"]
_PEOPLE = _WORDINGS["people"]
_PLACES = _WORDINGS["places"]
_LANGUAGES = _WORDINGS["languages"]
_CODE = _WORDINGS["code"]
_TEXTS = _WORDINGS["texts"]
_HELP = _WORDINGS["help"]

ASKS = _WORDINGS["asks"]

_SORRY = _WORDINGS["sorry"]
_ABOUT = _WORDINGS["about"]
_SMALL = _WORDINGS["small"]
_CAN = _WORDINGS["can"]
_TO_REFUSE = _WORDINGS["to_refuse"]
_ACTION = (7, 8, 25, 26, 27, 29)
_MEDICAL = (14, 15)
_FOREIGN, _GIBBERISH, _TRICKS = 17, 18, 28


def _answer(rng: Random, index: int, slots: dict[str, str]) -> str:
    """An honest answer to the question form at `index`."""
    if index in _MEDICAL:
        return say(
            rng,
            "{I cannot give medical advice.|I know nothing about medicine.|I am only a tiny model, so please do not ask me about health.} {Please ask a doctor.|A doctor or a pharmacist can help.|If it is bad, see a doctor.}",
        )
    if index == _FOREIGN:
        return say(
            rng,
            "{I only speak English.|Sorry, I know only English.|I understand English only.|My only language is English.} "
            + _CAN,
        )
    if index == _GIBBERISH:
        return say(
            rng,
            "{I did not understand that.|I do not understand.|Sorry, what did you mean?|That I could not read.|I am not sure what you mean.|Hm, I do not follow.} "
            + _CAN,
        )
    if index == _TRICKS:
        return say(
            rng,
            "{I have no secrets: I am only a tiny demo model.|I am just a small demo model and cannot play other roles.|I am too small for that.|There is nothing hidden in me but small stories.} "
            + _CAN,
        )
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
        slots = {
            "thing": rng.choice(_THINGS), "person": rng.choice(_PEOPLE), "place": rng.choice(_PLACES), "place2": rng.choice(_PLACES),
            "language": rng.choice(_LANGUAGES), "code": rng.choice(_CODE), "text": rng.choice(_TEXTS), "help": rng.choice(_HELP),
            "name": person_name(rng) if rng.random() < 0.5 else rng.choice(NAMES),
        }  # fmt: skip
        short = (
            "I only speak English."
            if index == _FOREIGN
            else "Please ask a doctor."
            if index in _MEDICAL
            else rng.choice(("I do not know.", "That is beyond me."))
        )
        told.append(Turn(say(rng, ASKS[index], slots), _answer(rng, index, slots), short))
    return told
