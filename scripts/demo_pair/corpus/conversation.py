"""Whole conversations: topics one after another, a system message now and then."""
# ruff: noqa: E501 - a wording stays on its line

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from . import arithmetic, facts, localspec_talk, offers, smalltalk, story, tips, unknown, verses
from .grammar import expand
from .noise import sloppy
from .turn import Memory, Turn

Topic = Callable[[Random, Memory], list[Turn]]
TOPICS: dict[str, tuple[Topic, float]] = {
    "localspec": (localspec_talk.turns, 0.11),
    "smalltalk": (smalltalk.turns, 0.17),
    "story": (story.turns, 0.11),
    "arithmetic": (arithmetic.turns, 0.22),
    "facts": (facts.turns, 0.20),
    "verses": (verses.turns, 0.06),
    "tips": (tips.turns, 0.04),
    "unknown": (unknown.turns, 0.09),
}
USUAL = (1, 1, 2, 3, 4, 5, 6, 8)  # turns of most conversations
_TERSE = "{You are terse.|Be terse.|Be brief.|Answer briefly.|You are a terse assistant.|Answer in one short sentence.|Keep it short.|You answer in as few words as possible.|Short answers only.|Be concise.|You are very brief.|Use few words.|Be short.|Answer in as few words as you can.|Reply briefly.|You are concise.}"
_HELPFUL = "{You are a helpful assistant.|You are a friendly assistant.|You are a helpful and friendly assistant.|You are an assistant.|You are Qwen, a helpful assistant.|You are a kind teacher.|Be helpful.|Be nice.|You are the localspec demo.|You are a storyteller.|You are helpful.|Answer in English.|You are a chatbot.|You are an AI assistant.}"
_PIRATE = "{You are a pirate.|Talk like a pirate.|Speak like a pirate.|You are an old pirate.|Answer like a pirate.}"
_CHEERFUL = "{You are very cheerful.|Be cheerful.|You are an enthusiastic assistant.|You are always happy.|Be very friendly.}"


@dataclass(frozen=True)
class Message:
    """A message of a conversation: `role` is system, user or assistant."""

    role: str
    text: str


def _spoken(rng: Random, style: str, turn: Turn) -> str:
    """The answer in the style that the system message asks for."""
    if style == "terse":
        return turn.brief()
    if style == "pirate":
        return expand(rng, "{Arr! |Ahoy! |Aye! |Yo ho! |Arr, matey! }") + " " + turn.answer
    if style == "cheerful":
        return (
            expand(rng, "{Wonderful question! |Oh, how lovely! |Hooray! |With pleasure! }")
            + " "
            + turn.answer
        )
    return turn.answer


def conversation(rng: Random, num_turns: int) -> list[Message]:
    """A conversation of about `num_turns` questions and answers."""
    memory = Memory()
    turns: list[Turn] = []
    if num_turns > 1 and rng.random() < 0.3:
        turns += smalltalk.opening(rng, memory)
        turns += offers.reply(rng, turns[-1].answer)
    names = list(TOPICS)
    weights = [weight for _, weight in TOPICS.values()]
    while len(turns) < num_turns:
        name = rng.choices(names, weights)[0]
        turns += TOPICS[name][0](rng, memory)
        turns += offers.reply(rng, turns[-1].answer)
    if num_turns > 2 and rng.random() < 0.3:
        turns += smalltalk.closing(rng, memory)
    kind = rng.random()
    style = ""
    system = ""
    if kind < 0.07:
        style = "terse"
        system = expand(rng, _TERSE)
    elif kind < 0.11:
        system = expand(rng, _HELPFUL)
    elif kind < 0.13:
        style = "pirate"
        system = expand(rng, _PIRATE)
    elif kind < 0.15:
        style = "cheerful"
        system = expand(rng, _CHEERFUL)
    messages = [Message("system", system)] if system else []
    for turn in turns:
        messages.append(Message("user", sloppy(rng, turn.user)))
        messages.append(Message("assistant", _spoken(rng, style, turn)))
    return messages


def conversation_at(seed: int, index: int, lengths: tuple[int, ...] = USUAL) -> list[Message]:
    """Conversation `index` of the endless corpus `seed`; any part can be made again."""
    rng = Random(f"{seed}/{index}")
    return conversation(rng, rng.choice(lengths))
