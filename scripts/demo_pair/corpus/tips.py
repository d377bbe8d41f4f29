"""Short lists of three tips on everyday matters."""

from random import Random

from .grammar import say
from .texts import texts
from .turn import Memory, Turn, turn_of

_WORDINGS = texts("tips")

TIPS = _WORDINGS["tips"]
_ASK = _WORDINGS["ask"]
_VERBS = _WORDINGS["verbs"]


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """A request for tips, and sometimes for one more."""
    names = rng.choice(list(TIPS))
    name = rng.choice(names.split("|"))
    verb = name.startswith(_VERBS) and not name.split(" ")[0].endswith("ing")
    ask = _ASK[1] if verb and rng.random() < 0.6 else rng.choice((_ASK[0], _ASK[2]))
    if verb and ask is not _ASK[1]:
        ask = ask.replace("{for|on|about} <x>", "to <x>").replace("{for|on} <x>", "to <x>")
    chosen = rng.sample(TIPS[names], 4)
    listed = "\n".join(f"{i}. {tip}" for i, tip in enumerate(chosen[:3], 1))
    start = rng.choice(
        ("", "", "Here are three tips:\n", "Three things help:\n", "Try this:\n")
    )
    told = [Turn(say(rng, ask, {"x": name, "v": name}), start + listed, chosen[0])]
    if rng.random() < 0.2:
        told.append(turn_of(rng, _WORDINGS["more"], {"t": chosen[3]}, chosen[3]))
    return told
