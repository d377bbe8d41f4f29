"""Turns in which a visitor takes up, or refuses, what an answer offered."""
# ruff: noqa: E501 - a wording stays on its line

from dataclasses import replace
from random import Random

from . import smalltalk, story, verses
from .grammar import say
from .turn import Turn

_YES = "{Yes|Yes please|Ok|Sure|Yeah|Yes, please|Please|Go ahead|Of course|Okay|Yep|Do it|Why not|Gladly|Please do|Yes!|Sure, go ahead|Alright|I would like that|Oh yes}{.|!|}"
_NO = "{No|No thanks|No, thank you|Not now|Nope|Maybe later|Rather not|Nah}{.|}"
_NO_ANSWER = "{All right.|No problem.|That is fine.|As you like.} {What would you like instead?|Just tell me what you want.|Ask me something else.}"
_FINE = "{Good|Fine|I am fine|Good, thanks|Great|Not bad|Fine, thank you|Very well|I'm good|Me too|It is good}{.|!|}"
_FINE_ANSWER = "{I am glad to hear that.|Good to hear!|That is nice.|Lovely.} {What shall we talk about?|What can I do for you?|Would you like a story?|}"
_STORY = (
    "a story?",
    "tell you one?",
    "story help?",
    "story instead?",
    "a bedtime story?",
    "a new one?",
)
_RIDDLE = ("a riddle?", "a riddle instead?", "a riddle?")
_JOKE = ("another joke?", "tell a joke?")
_ASKED = ("And you?", "How are you?", "How is your day?")


def reply(rng: Random, answer: str) -> list[Turn]:
    """The turn after an answer that ends in an offer, or none."""
    if rng.random() > 0.45:
        return []
    if answer.endswith(_ASKED):
        return [Turn(say(rng, _FINE), say(rng, _FINE_ANSWER), "Good to hear.")]
    if answer.endswith(_STORY):
        offered = story.any_story(rng)
    elif answer.endswith(_RIDDLE):
        offered = verses.any_riddle(rng)
    elif answer.endswith(_JOKE):
        offered = smalltalk.any_joke(rng)
    else:
        return []
    if rng.random() < 0.15:
        return [Turn(say(rng, _NO), say(rng, _NO_ANSWER), "All right.")]
    return [replace(offered, user=say(rng, _YES))]
