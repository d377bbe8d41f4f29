"""Questions and answers about localspec, with follow-ups."""

from random import Random

from .grammar import expand, say
from .texts import texts
from .turn import Memory, Turn

_WORDINGS = texts("localspec_facts")
FACTS, FRAMES, MORE = (_WORDINGS[name] for name in ("facts", "frames", "more"))

_AGAIN = (
    "{Also: |And one more thing: |Another thing: |There is more: |Here is something else: }"
)


def _questions(text: str) -> list[str]:
    """The wordings of one fact's question: parts at "?|", outside of braces."""
    return [part + "?" for part in text.rstrip("?").split("?|")]


QUESTIONS = tuple((tuple(_questions(ask)), answer, short) for ask, answer, short in FACTS)


def _ask(rng: Random, wordings: tuple[str, ...]) -> str:
    question = expand(rng, rng.choice(wordings))
    frame = rng.choice(FRAMES)
    if frame != "{}":
        question = question[0].lower() + question[1:]
    return frame.replace("{}", question)


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """One to four questions about localspec."""
    asked = []
    for wordings, answer, short in rng.sample(QUESTIONS, rng.choice((1, 1, 1, 2, 2, 3))):
        asked.append(Turn(_ask(rng, wordings), say(rng, answer), short))
    if rng.random() < 0.15:
        _, answer, short = rng.choice(QUESTIONS[:12])
        text = say(rng, answer)
        asked.append(
            Turn(
                say(rng, MORE),
                text if text.startswith("`") else expand(rng, _AGAIN) + " " + text,
                short,
            )
        )
    return asked
