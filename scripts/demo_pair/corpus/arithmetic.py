"""Easy sums, comparisons, counting on, and small word problems."""

from random import Random

from .grammar import say, words
from .texts import texts
from .turn import Memory, Turn, turn_of
from .words import NAMES

LARGEST = 20  # of the numbers to add and subtract: what so small a model can learn
_WORDINGS = texts("arithmetic")
_UNITS = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_TENS = words("twenty thirty forty fifty sixty seventy eighty ninety")
_GOODS = words(
    "apples nuts coins books pencils marbles cookies eggs stones shells balls cups flowers "
    "fish stars sweets oranges cakes buttons sheep hens pears"
)


def in_words(number: int) -> str:
    """A number from 0 to 99 as English words."""
    if number < 20:
        return _UNITS[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f"-{_UNITS[ones]}" if ones else "")


def _operation(rng: Random) -> tuple[int, str, int, int]:
    """Two numbers, the sign between them, and the result."""
    sign = rng.choice("++--*****/")
    if sign == "+":
        a = rng.randint(0, LARGEST)
        b = rng.randint(0, LARGEST)
        return a, sign, b, a + b
    if sign == "-":
        a = rng.randint(0, LARGEST)
        b = rng.randint(0, a)
        return a, sign, b, a - b
    a = rng.randint(1, 12)
    b = rng.randint(1, 12)
    if sign == "*":
        if rng.random() < 0.05:
            b = 0
        return a, sign, b, a * b
    return a * b, sign, b, a


_SPOKEN = {
    "+": ("+", "+", "+", "plus", "plus", "and", "added to"),
    "-": ("-", "-", "-", "minus", "minus", "take away", "less"),
    "*": ("*", "x", "*", "times", "times", "times", "multiplied by", "\u00d7"),
    "/": ("/", "/", "divided by", "divided by", ":", "over", "÷"),
}
_NICE = {"+": "+", "-": "-", "*": "\u00d7", "/": "÷"}


def _sum(rng: Random) -> tuple[Turn, int]:
    a, sign, b, result = _operation(rng)
    word = rng.choice(_SPOKEN[sign])
    wording = _WORDINGS["sum"]
    told = {"a": str(a), "b": str(b), "op": _NICE[sign], "c": str(result)}
    slots = told | {"sign": word}
    if word.isalpha() and rng.random() < 0.3 and a < 100 and b < 100:
        slots |= {"a": in_words(a), "b": in_words(b)}
    start = rng.choice((wording["start"], wording["start"], wording["next"], ""))
    gap = "" if len(word) == 1 and rng.random() < 0.4 else " "
    ask = start + f"<a>{gap}<sign>{gap}<b>" + rng.choice(("?", "?", "", " =", "=", " = ?"))
    return Turn(say(rng, ask, slots), say(rng, wording["answer"], told), f"{result}."), result


def _follow_up(rng: Random, value: int) -> tuple[Turn, int]:
    """A sum that goes on from the last result, or a doubt about it."""
    step = rng.randint(1, 10)
    kind = rng.random()
    if kind < 0.35 and value <= LARGEST:
        result = value + step
        op = "+"
    elif kind < 0.6 and step <= value <= LARGEST:
        result = value - step
        op = "-"
    elif kind < 0.72 and value <= LARGEST:
        result = 2 * value
        slots = {"a": str(value), "c": str(result)}
        return turn_of(rng, _WORDINGS["doubled"], slots, f"{result}."), result
    else:
        return turn_of(rng, _WORDINGS["sure"], {"c": str(value)}, "Yes."), value
    slots = {"a": str(value), "b": str(step), "c": str(result), "op": op}
    wording = _WORDINGS["more"]
    told = turn_of(rng, wording | {"ask": wording[op]}, slots, f"{result}.")
    return told, result


def _half(rng: Random) -> Turn:
    n = rng.randint(1, LARGEST)
    of, asked, result = (2 * n, "half", n) if rng.random() < 0.5 else (n, "double", 2 * n)
    return turn_of(rng, _WORDINGS[asked], {"a": str(of), "c": str(result)}, f"{result}.")


def _neighbour(rng: Random) -> Turn:
    n = rng.randint(1, 100)
    asked, result = ("after", n + 1) if rng.random() < 0.6 else ("before", n - 1)
    return turn_of(rng, _WORDINGS[asked], {"a": str(n), "c": str(result)}, f"{result}.")


def _compare(rng: Random) -> Turn:
    a, b = rng.sample(range(101), 2)
    high = max(a, b)
    low = min(a, b)
    slots = {"a": str(a), "b": str(b), "high": str(high), "low": str(low)}
    if rng.random() < 0.7:
        return turn_of(rng, _WORDINGS["bigger"], slots, f"{high}.")
    if rng.random() < 0.5:
        return turn_of(rng, _WORDINGS["smaller"], slots, f"{low}.")
    yes, than = ("Yes", "bigger") if a > b else ("No", "smaller")
    return turn_of(rng, _WORDINGS["is_bigger"], slots | {"yes": yes, "than": than}, f"{yes}.")


def _parity(rng: Random) -> Turn:
    n = rng.randint(0, 100)
    word = "odd" if n % 2 else "even"
    slots = {"a": str(n), "word": word}
    return turn_of(rng, _WORDINGS["parity"], slots, f"{word.capitalize()}.")


def _problem(rng: Random) -> Turn:
    """A word problem with one step."""
    a = rng.randint(2, 12)
    b = rng.randint(1, 8)
    things, name, other = rng.choice(_GOODS), *rng.sample(NAMES, 2)
    kind = rng.random()
    if kind < 0.45:
        asked = "gained"
        c = a + b
    elif kind < 0.85:
        a += b
        asked = "lost"
        c = a - b
    else:
        a = rng.randint(2, 10)
        b = rng.randint(2, 10)
        asked = "packed"
        c = a * b
    if c == 1:
        return _half(rng)
    slots = {"a": str(a), "b": str(b), "c": str(c), "t": things, "n": name, "o": other}
    return turn_of(rng, _WORDINGS[asked], slots, f"{c}.")


def _too_hard(rng: Random) -> Turn:
    big = str(rng.choice((rng.randint(101, 999), rng.randint(1000, 99999))))
    other = str(rng.randint(21, 999))
    slots = {"a": big, "b": other, "c": str(rng.randint(25, 99)), "d": str(rng.randint(11, 99))}
    ask = _WORDINGS["large" if rng.random() < 0.55 else "hard"]
    return Turn(say(rng, ask, slots), say(rng, _WORDINGS["too_big"]), "Too big for me.")


def _series(rng: Random) -> Turn:
    kind = rng.random()
    end = "."
    if kind < 0.5:
        n = rng.choice((3, 5, 5, 6, 7, 8, 10, 10, 10, 12, 15, 20))
        asked = "up"
        counted = range(1, n + 1)
    elif kind < 0.7:
        n = rng.choice((3, 5, 10, 10))
        asked = "down"
        counted = range(n, 0, -1)
    else:
        n = rng.randint(2, 12)
        asked = "steps"
        counted = range(n, 10 * n + 1, n)
    numbers = ", ".join(map(str, counted))
    ask = say(rng, _WORDINGS["count"][asked], {"n": str(n), "word": in_words(n)})
    if asked == "down":
        end = rng.choice(("!", ".", ", go!"))
    return Turn(ask, numbers + end, numbers + ".")


_KINDS = (
    _half,
    _neighbour,
    _compare,
    _parity,
    _problem,
    _problem,
    _too_hard,
    _too_hard,
    _series,
)


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """A run of sums, some of which go on from the last result."""
    told: list[Turn] = []
    for _ in range(rng.choice((1, 2, 2, 3, 4))):
        if rng.random() < 0.62:
            turn, value = _sum(rng)
            told.append(turn)
            if rng.random() < 0.25:
                turn, value = _follow_up(rng, value)
                told.append(turn)
        else:
            told.append(rng.choice(_KINDS)(rng))
    return told
