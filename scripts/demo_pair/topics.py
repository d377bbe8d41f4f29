"""Right answers counted topic by topic, in fresh single questions at temperature 0."""

from collections.abc import Callable, Iterator
from random import Random

import llama_cpp

from .corpus import fact_lists, words
from .corpus.grammar import entries

Question = tuple[str, Callable[[str], bool]]
_HONEST = entries(
    "not know;don't know;beyond me;cannot;No idea;no idea;never learned;too hard;nothing about;"
    "too small;only guess;not something;not learned"
)
_OUTSIDE = entries("""write a merge sort in java;who is the king of spain;explain entropy;
how do i fix a tap;what is the gdp of france;who painted guernica;how tall is the eiffel tower;
translate good night to greek;what is a monad;recommend a film;who wrote dracula;
what happened in 1848;how do i learn the piano;what is dark energy;is coffee healthy;
what is the price of silver;how does a jet engine work;write a cover letter;
who is Ada Lovelace;what are the rules of rugby""")


def _has(text: str) -> Callable[[str], bool]:
    return lambda answer: text.lower() in answer.lower()


def _honest(answer: str) -> bool:
    return any(sign in answer for sign in _HONEST)


def questions() -> Iterator[tuple[str, list[Question]]]:
    """Topics with their questions and checks."""
    rng = Random(1)
    facts = (
        ("capitals", fact_lists.CAPITALS, "what is the capital of {}?"),
        ("opposites", fact_lists.OPPOSITES, "what is the opposite of {}?"),
        ("plurals", fact_lists.PLURALS, "plural of {}"),
        ("baby animals", fact_lists.BABIES, "what is a baby {} called?"),
        ("animal sounds", fact_lists.SOUNDS, "what does the {} say?"),
        ("numbers of legs", fact_lists.LEGS, "how many legs does a {} have?"),
    )
    for topic, table, form in facts:
        yield topic, [(form.format(key), _has(value)) for key, value in table.items()]
    pairs = [(a, b) for a in range(1, 13) for b in range(1, 13)]
    products = [(f"what is {a} x {b}?", _has(f"{a * b}.")) for a, b in pairs]
    yield "times table to 12", products
    pairs = [(rng.randint(0, 20), rng.randint(0, 20)) for _ in range(100)]
    yield "sums to 20 + 20", [(f"what is {a} + {b}?", _has(f"{a + b}.")) for a, b in pairs]
    cast = [(rng.choice(words.ANIMALS), rng.choice(words.THINGS)) for _ in range(60)]
    ask = "tell me a story about a {} and a {}"
    yield "story has the hero", [(ask.format(*pair), _has(f" {pair[0]}")) for pair in cast]
    yield "story has the thing", [(ask.format(*pair), _has(f" {pair[1]}")) for pair in cast]
    names = rng.sample(words.NAMES, 60)
    yield "a known name said back", [(f"my name is {name}", _has(name)) for name in names]
    yield "says it does not know", [(ask, _honest) for ask in _OUTSIDE]


def topic_lines(target: llama_cpp.Llama) -> Iterator[str]:
    """One line a topic: how many answers were right."""
    for topic, asked in questions():
        right = 0
        for question, check in asked:
            messages = [{"role": "user", "content": question}]
            reply = target.create_chat_completion(messages, max_tokens=250, temperature=0.0)
            right += check(reply["choices"][0]["message"]["content"])
        yield f"{topic}: {right} of {len(asked)}"
