"""How people really type: lower case, no punctuation, typing errors, filler words."""
# ruff: noqa: E501 - a wording stays on its line

from random import Random

from .grammar import expand

_CONTRACTIONS = (
    ("what is ", "what's "), ("What is ", "What's "), ("who is ", "who's "), ("I am ", "I'm "),
    ("do not ", "don't "), ("cannot ", "can't "), ("it is ", "it's "), ("that is ", "that's "),
    ("What is ", "Whats "), ("what is ", "whats "), ("I am ", "im "), ("you are ", "you're "),
    ("you ", "u "), ("are you", "r u"), ("please", "pls"), ("because", "cause"),
)  # fmt: skip
_BEFORE = "{please |hey, |hi, |ok, |so |and |now |well, |um, |ok |tell me, |quick question: |hey |I wonder, |can you tell me |could you tell me |do you know }"
_AFTER = (
    "{ please| pls| thanks| thx|?| now| :)|!| ...| then| for me| if you can| for me please}"
)


def _typo(rng: Random, text: str) -> str:
    """A slip of the fingers inside a longer lower-case word."""
    words = text.split(" ")
    places = [
        i for i, word in enumerate(words) if len(word) > 4 and word.isalpha() and word.islower()
    ]
    if not places:
        return text
    at = rng.choice(places)
    word = words[at]
    i = rng.randrange(1, len(word) - 1)
    words[at] = rng.choice(
        (
            word[:i] + word[i + 1] + word[i] + word[i + 2 :],
            word[:i] + word[i + 1 :],
            word[:i] + word[i] + word[i:],
        )
    )
    return " ".join(words)


def sloppy(rng: Random, text: str) -> str:
    """`text` as one of many people would have typed it."""
    chance = rng.random
    if chance() < 0.06 and text[:1].isupper() and not text.startswith("I "):
        text = expand(rng, _BEFORE) + " " + text[0].lower() + text[1:]
    if chance() < 0.05:
        text = text.rstrip("?.!") + " " + expand(rng, _AFTER)
        text = text.replace(" ?", "?").replace(" !", "!")
    if chance() < 0.3:
        old, new = rng.choice(_CONTRACTIONS)
        text = text.replace(old, new)
    if chance() < 0.07:
        text = _typo(rng, text)
    kind = chance()
    if kind < 0.45:
        text = text.lower()
    elif kind < 0.46:
        text = text.upper()
    if chance() < 0.45:
        text = text.rstrip("?.!")
    elif chance() < 0.03:
        text = text.rstrip("?.!") + "??"
    return text.strip() or "?"
