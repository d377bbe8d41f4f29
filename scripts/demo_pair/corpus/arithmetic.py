"""Easy sums, comparisons, counting on, and small word problems."""
# ruff: noqa: E501 - a wording stays on its line

from random import Random

from .grammar import say, words
from .turn import Memory, Turn
from .words import NAMES

LARGEST = 20  # of the numbers to add and subtract: what so small a model can learn
_SAY = "{What is|What's|How much is|Calculate|Compute|Whats|Can you do|Tell me|What does|Do you know|} "
_UNITS = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
)
_TENS = words("twenty thirty forty fifty sixty seventy eighty ninety")
_GOODS = words(
    "apples nuts coins books pencils marbles cookies eggs stones shells balls cups flowers fish stars sweets oranges cakes buttons sheep hens pears"
)
_TOO_BIG = (
    "{That is too big for me.|That is beyond me.|I cannot do that one.|Such a sum is too hard for me.} "
    "{I add numbers up to 20 and know the times table up to 12.|I only know easy sums: numbers up to 20, and times up to 12.|Please use a calculator.|A calculator will do better.}"
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
        a, b = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
        return a, sign, b, a + b
    if sign == "-":
        a = rng.randint(0, LARGEST)
        b = rng.randint(0, a)
        return a, sign, b, a - b
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    if sign == "*":
        if rng.random() < 0.05:
            b = 0
        return a, sign, b, a * b
    return a * b, sign, b, a


_SPOKEN = {
    "+": ("+", "+", "+", "plus", "plus", "and", "added to"), "-": ("-", "-", "-", "minus", "minus", "take away", "less"),
    "*": ("*", "x", "*", "times", "times", "times", "multiplied by", "\u00d7"), "/": ("/", "/", "divided by", "divided by", ":", "over", "÷"),
}  # fmt: skip
_NICE = {"+": "+", "-": "-", "*": "\u00d7", "/": "÷"}


def _sum(rng: Random) -> tuple[Turn, int]:
    a, sign, b, result = _operation(rng)
    word = rng.choice(_SPOKEN[sign])
    slots = {"a": str(a), "b": str(b), "sign": word, "op": _NICE[sign], "c": str(result)}
    if word.isalpha() and rng.random() < 0.3 and a < 100 and b < 100:
        slots |= {"a": in_words(a), "b": in_words(b)}
    start = rng.choice((_SAY, _SAY, "{And|Now|Ok, and|What about|How about|Then} ", ""))
    gap = "" if len(word) == 1 and rng.random() < 0.4 else " "
    ask = start + f"<a>{gap}<sign>{gap}<b>" + rng.choice(("?", "?", "", " =", "=", " = ?"))
    slots_answer = slots | {"a": str(a), "b": str(b)}
    answer = "{<a> <op> <b> = <c>.|<a> <op> <b> is <c>.|That is <c>.|It is <c>.|<c>.|<a> <op> <b> makes <c>.|The answer is <c>.|That makes <c>.|<a> <op> <b> equals <c>.}"
    return Turn(say(rng, ask, slots), say(rng, answer, slots_answer), f"{result}."), result


def _follow_up(rng: Random, value: int) -> tuple[Turn, int]:
    """A sum that goes on from the last result, or a doubt about it."""
    step = rng.randint(1, 10)
    kind = rng.random()
    if kind < 0.35 and value <= LARGEST:
        result, op = value + step, "+"
        ask = "{And plus|Plus|Add|And add|Now add|Now plus} <b>{?||.}"
    elif kind < 0.6 and step <= value <= LARGEST:
        result, op = value - step, "-"
        ask = "{And minus|Minus|Now minus|Take away|Subtract|Now subtract} <b>{?||.}"
    elif kind < 0.72 and value <= LARGEST:
        return Turn(
            say(rng, "{And doubled|Double that|Times two|Now double it|And twice that}{?||.}"),
            say(
                rng,
                "{<a> doubled is <c>.|Twice <a> is <c>.|That is <c>.}",
                {"a": str(value), "c": str(2 * value)},
            ),
            f"{2 * value}.",
        ), 2 * value
    else:
        ask = "{Are you sure|Really|Is that right|Sure|Is that correct}{?|}"
        return Turn(
            say(rng, ask),
            say(
                rng,
                "{Yes, it is <c>.|Yes: <c>.|I think so: <c>.|I am fairly sure it is <c>.}",
                {"c": str(value)},
            ),
            "Yes.",
        ), value
    slots = {"a": str(value), "b": str(step), "c": str(result), "op": op}
    return Turn(
        say(rng, ask, slots),
        say(
            rng, "{<a> <op> <b> = <c>.|That is <c>.|Then it is <c>.|<c>.|Now it is <c>.}", slots
        ),
        f"{result}.",
    ), result


def _half(rng: Random) -> Turn:
    n = rng.randint(1, LARGEST)
    if rng.random() < 0.5:
        slots = {"a": str(2 * n), "c": str(n)}
        return Turn(
            say(
                rng,
                "{What is half of <a>|Half of <a>|How much is half of <a>|What is a half of <a>|Divide <a> by two|Halve <a>}{?|}",
                slots,
            ),
            say(rng, "{Half of <a> is <c>.|It is <c>.|<c>.|That is <c>.}", slots),
            f"{n}.",
        )
    slots = {"a": str(n), "c": str(2 * n)}
    return Turn(
        say(
            rng,
            "{What is double <a>|Double <a>|What is twice <a>|Twice <a>|What is the double of <a>|What is two times <a>}{?|}",
            slots,
        ),
        say(rng, "{Double <a> is <c>.|Twice <a> is <c>.|It is <c>.|<c>.}", slots),
        f"{2 * n}.",
    )


def _neighbour(rng: Random) -> Turn:
    n = rng.randint(1, 100)
    if rng.random() < 0.6:
        slots = {"a": str(n), "c": str(n + 1)}
        return Turn(
            say(
                rng,
                "{What comes after <a>|What number comes after <a>|What is the next number after <a>|Which number follows <a>|After <a> comes}?",
                slots,
            ),
            say(rng, "{After <a> comes <c>.|<c> comes after <a>.|<c>.|It is <c>.}", slots),
            f"{n + 1}.",
        )
    slots = {"a": str(n), "c": str(n - 1)}
    return Turn(
        say(
            rng,
            "{What comes before <a>|What number comes before <a>|Which number is before <a>}?",
            slots,
        ),
        say(rng, "{Before <a> comes <c>.|<c> comes before <a>.|<c>.}", slots),
        f"{n - 1}.",
    )


def _compare(rng: Random) -> Turn:
    a, b = rng.sample(range(101), 2)
    high, low = max(a, b), min(a, b)
    slots = {"a": str(a), "b": str(b), "high": str(high), "low": str(low)}
    if rng.random() < 0.7:
        return Turn(
            say(
                rng,
                "{Which is bigger, <a> or <b>|What is larger, <a> or <b>|Which number is bigger: <a> or <b>|<a> or <b>, which is more|What is more, <a> or <b>|Which is greater, <a> or <b>}?",
                slots,
            ),
            say(
                rng,
                "{<high> is bigger than <low>.|<high> is the bigger one.|<high>.|The bigger number is <high>.}",
                slots,
            ),
            f"{high}.",
        )
    if rng.random() < 0.5:
        return Turn(
            say(
                rng,
                "{Which is smaller, <a> or <b>|What is less, <a> or <b>|Which number is smaller: <a> or <b>}?",
                slots,
            ),
            say(rng, "{<low> is smaller than <high>.|<low> is the smaller one.|<low>.}", slots),
            f"{low}.",
        )
    yes = "Yes, <a> is bigger than <b>." if a > b else "No, <a> is smaller than <b>."
    return Turn(
        say(rng, "Is <a> {bigger|larger|more|greater} than <b>?", slots),
        say(rng, yes, slots),
        "Yes." if a > b else "No.",
    )


def _parity(rng: Random) -> Turn:
    n = rng.randint(0, 100)
    word = "odd" if n % 2 else "even"
    slots = {"a": str(n), "word": word}
    return Turn(
        say(rng, "Is <a> {even or odd|odd or even|an even number or an odd one}?", slots),
        say(rng, "{<a> is <word>.|<a> is an <word> number.|It is <word>.}", slots),
        word.capitalize() + ".",
    )


def _problem(rng: Random) -> Turn:
    """A word problem with one step."""
    a, b = rng.randint(2, 12), rng.randint(1, 8)
    things, name, other = rng.choice(_GOODS), *rng.sample(NAMES, 2)
    kind = rng.random()
    if kind < 0.45:
        ask = "{<n> has <a> <t> and {gets|finds|buys|picks} <b> more. How many {<t> |}does <n> have{ now|}|I have <a> <t> and {get|buy|find} <b> more. How many {<t> |}do I have{ now|}|There are <a> <t> and <b> more come. How many are there}?"
        c, answer = (
            a + b,
            "{<a> + <b> = <c>, so {it is|there are} <c> <t>.|<c> <t>, because <a> + <b> = <c>.|<a> and <b> make <c> <t>.}",
        )
    elif kind < 0.85:
        a += b
        ask = "{<n> has <a> <t> and {gives <b> to <o>|loses <b>|eats <b>|gives away <b>}. How many {<t> |}{are left|does <n> have left}|I have <a> <t> and {give away|lose|eat|sell} <b>. How many {are left|do I have left|<t> are left}|If I have <a> <t> and take away <b>, how many are left}?"
        c, answer = (
            a - b,
            "{<a> - <b> = <c>, so <c> <t> are left.|<c> <t> are left, because <a> - <b> = <c>.|There are <c> <t> left.}",
        )
    else:
        a, b = rng.randint(2, 10), rng.randint(2, 10)
        ask = "{There are <a> boxes with <b> <t> each|<n> has <a> bags with <b> <t> in each|I have <a> baskets with <b> <t> each}. How many <t> {are there|is that|in all|altogether}?"
        c, answer = (
            a * b,
            "{<a> \u00d7 <b> = <c>, so there are <c> <t>.|<c> <t>, because <a> \u00d7 <b> = <c>.}",
        )
    slots = {"a": str(a), "b": str(b), "c": str(c), "t": things, "n": name, "o": other}
    if c == 1:
        return _half(rng)
    return Turn(say(rng, ask, slots), say(rng, answer, slots), f"{c}.")


def _too_hard(rng: Random) -> Turn:
    big = str(rng.choice((rng.randint(101, 999), rng.randint(1000, 99999))))
    other = str(rng.randint(21, 999))
    slots = {"a": big, "b": other, "c": str(rng.randint(25, 99)), "d": str(rng.randint(11, 99))}
    ask = "{What is|How much is|Calculate|} {<a> times <b>|<a> * <b>|<b> x <a>|the square root of <a>|the root of <b>|<a> plus <a>|<b> + <a>|<a> divided by <b>|<b> percent of <a>|<b> squared|<b> to the power of 5|the factorial of <b>|the sine of <b>|<a>-<b>|the integral of x squared|the derivative of x^2|<b>*<b>|log <b>|pi|the <b>th prime number|x if 3x + 7 = <b>}?"
    if rng.random() < 0.55:
        ask = "{What is|What's|How much is|Calculate|And|} {<c> + <d>|<c>+<d>|<d>+<c>|<d> + <c>|<c> plus <d>|<d> plus <c>|<c> - <d>|<c>-<d>|<c> minus <d>|<c> * <d>|<c>*<d>|<c> times <d>}{?|?|}"
    return Turn(say(rng, ask, slots), say(rng, _TOO_BIG), "Too big for me.")


def _series(rng: Random) -> Turn:
    kind = rng.random()
    if kind < 0.5:
        n = rng.choice((3, 5, 5, 6, 7, 8, 10, 10, 10, 12, 15, 20))
        numbers = ", ".join(str(i) for i in range(1, n + 1))
        return Turn(
            say(
                rng,
                f"{{Count to {n}|Count up to {n}|Can you count to {n}|Count from 1 to {n}|Count from one to {in_words(n)}|Count to {in_words(n)}}}.",
            ),
            numbers + ".",
            numbers + ".",
        )
    if kind < 0.7:
        n = rng.choice((3, 5, 10, 10))
        numbers = ", ".join(str(i) for i in range(n, 0, -1))
        return Turn(
            say(
                rng,
                f"{{Count down from {n}|Count backwards from {n}|Count down from {in_words(n)}}}.",
            ),
            numbers + rng.choice(("!", ".", ", go!")),
            numbers + ".",
        )
    step = rng.randint(2, 12)
    numbers = ", ".join(str(i * step) for i in range(1, 11))
    return Turn(
        say(
            rng,
            f"{{The {step} times table|Times table of {step}|Tell me the {step} times table|Count in steps of {step}|Multiples of {step}}}.",
        ),
        numbers + ".",
        numbers + ".",
    )


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
