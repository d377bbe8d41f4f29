"""Changes bytes, texts, and values of JSON and TOML, so that readers get far.

All is drawn from the `Random` that is given, so that a seed and a number repeat an input.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

# Numbers at which counts, lengths and sizes overflow, or are nothing.
BOUNDS = (
    0, 1, 2, 3, 7, 8, 31, 32, 127, 128, 255, 256, 1023, 4096, 65535, 65536, 2**24, 2**31 - 1,
    2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 33, 2**64 - 1,
)  # fmt: skip
_ODD_BYTES = (
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\xff\xfe",
    "\u202e".encode(), "\u2028".encode(), "e\u0301".encode(), "\U0001f600".encode(), b"\xc3",
)  # fmt: skip
_ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, -(10**400), 0.5, -0.0, 1e-308,
    1e308, float("nan"), float("inf"), float("-inf"), "", "0", "nan", "\x00", "\ud800", "..",
    "/", "x" * 300, "9" * 5000, [], [[]], [None], {}, {"": None}, {"type": "object"},
)  # fmt: skip
_TOKENS = re.compile(r"\w+|\s+|[^\w\s]+?", re.DOTALL)
_DEPTHS = (3, 40, 300, 3000, 30_000)


def changed_bytes(data: bytes, random: Random) -> bytes:
    """Some bytes changed, cut out, put in, or said twice."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        at = random.randrange(len(found) + 1)
        size = random.choice((1, 1, 2, 4, 8, 64))
        match random.randrange(7):
            case 0:
                found[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del found[at : at + size]
            case 2:
                found[at:at] = random.choice(_ODD_BYTES)
            case 3:
                found[at:at] = found[at : at + size] * random.choice((1, 2, 1000))
            case 4:
                width, order = random.choice((1, 2, 4, 8)), random.choice(("little", "big"))
                number = random.choice(BOUNDS) % 256**width
                found[at : at + width] = number.to_bytes(width, order)
            case 5:
                if at < len(found):
                    found[at] ^= 1 << random.randrange(8)
            case _:
                if random.random() < 0.2:
                    del found[at:]
    return bytes(found)


def changed_text(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Words and signs changed: dropped, said twice, swapped, or taken from another text."""
    words = _TOKENS.findall(data.decode(errors="replace"))
    theirs = _TOKENS.findall(random.choice(others).decode(errors="replace")) or [""]
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        at, size = random.randrange(len(words) + 1), random.choice((1, 1, 2, 5, 20))
        from_ = random.randrange(len(theirs))
        match random.randrange(7):
            case 0:
                del words[at : at + size]
            case 1:
                words[at:at] = words[at : at + size] * random.choice((1, 2, 50))
            case 2:
                words[at:at] = theirs[from_ : from_ + size]
            case 3:
                words[at : at + size] = theirs[from_ : from_ + size]
            case 4:
                words[at:at] = words[from_ : from_ + size]
            case 5:
                words[at : at + 1] = [str(random.choice(_ODD_VALUES))]
            case _:
                opening, closing = random.choice(("()", "[]", "{}", "(|", "''"))
                depth = random.choice(_DEPTHS)
                words[at : at + 1] = [opening * depth, *words[at : at + 1], closing * depth]
    found = "".join(words).encode(errors="surrogatepass")
    return changed_bytes(found, random) if random.random() < 0.1 else found


def changed_value(value: Any, random: Random) -> Any:
    """A value of JSON with some parts changed; the one that is given may change, too."""
    root = [value]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(root, 0))
        holder, key = random.choice(places)
        _change(holder, key, random, places)
    return root[0]


def _change(holder: Any, key: Any, random: Random, places: Sequence[tuple[Any, Any]]) -> None:
    # Copies: what stood in two places could be put into itself, which no JSON can say.
    old = copy.deepcopy(holder[key])
    match random.randrange(8):
        case 0 | 1:
            holder[key] = copy.deepcopy(random.choice(_ODD_VALUES))
        case 2:
            holder[key] = _near(old, random)
        case 3:
            if len(holder) > 1:
                del holder[key]
        case 4:
            other, place = random.choice(places)
            if isinstance(other, dict | list) and _has(other, place):
                holder[key] = json.loads(json.dumps(other[place], default=str))
        case 5:
            holder[key] = _nested(old, random)
        case 6:
            holder[key] = [old] if random.random() < 0.5 else {"type": old}
        case _:
            if isinstance(holder, dict):
                holder[random.choice(("", "x", f"{key}s", f"{key}".upper()))] = old
            else:
                holder[key:key] = [
                    copy.deepcopy(old) for _ in range(random.choice((1, 2, 500)))
                ]


def _has(holder: Any, place: Any) -> bool:
    return place in holder if isinstance(holder, dict) else place < len(holder)


def _near(old: Any, random: Random) -> Any:
    """A value of the same kind."""
    if isinstance(old, bool) or old is None:
        return not old
    if isinstance(old, int):
        return random.choice((old + 1, old - 1, -old, old * 2, random.choice(BOUNDS)))
    if isinstance(old, float):
        return random.choice((-old, old * 1e300, old * 1e-300, old + 1.0, 1e39, float("nan")))
    if isinstance(old, str):
        return changed_bytes(old.encode(errors="replace"), random).decode(errors="replace")
    return type(old)()


def _nested(old: Any, random: Random) -> Any:
    for _ in range(random.choice((3, 40, 120))):
        old = [old] if random.random() < 0.5 else {"a": old}
    return old


def _places(holder: Any, depth: int) -> Any:
    """Each part of a value, as what holds it and its place there."""
    keys = list(holder) if isinstance(holder, dict) else range(min(len(holder), 40))
    for key in keys:
        yield holder, key
        if isinstance(holder[key], dict | list) and depth < 12:
            yield from _places(holder[key], depth + 1)


def json_bytes(value: Any, random: Random) -> bytes:
    """The value as JSON; at times with a key twice, or nested without end."""
    text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    chance = random.random()
    if chance < 0.03 and text.startswith("{") and len(text) > 2:
        text = f"{text[:-1]}, {text[1:]}"
    elif chance < 0.05:
        depth = random.choice(_DEPTHS)
        text = random.choice(
            (f"{'[' * depth}{text}{']' * depth}", "[" * depth, '{"a":' * depth)
        )
    return text.encode(errors="surrogatepass")


def changed_json(data: bytes, random: Random) -> bytes:
    """A file of JSON with some of its values changed, or some of its bytes."""
    if random.random() < 0.1:
        return changed_bytes(data, random)
    return json_bytes(changed_value(json.loads(data), random), random)


def toml_bytes(value: dict[str, Any], random: Random) -> bytes:
    """The tables of a TOML file, each under its header."""
    lines = [f"{json.dumps(key)} = {_inline(each)}" for key, each in value.items()
             if not isinstance(each, dict)]  # fmt: skip
    for name, table in value.items():
        if isinstance(table, dict):
            own = {key: each for key, each in table.items() if not isinstance(each, dict)}
            lines += [f"[{json.dumps(name)}]"]
            lines += [f"{json.dumps(key)} = {_inline(each)}" for key, each in own.items()]
            for key, each in table.items():
                if isinstance(each, dict):
                    lines += [f"[{json.dumps(name)}.{json.dumps(key)}]"]
                    lines += [f"{json.dumps(k)} = {_inline(v)}" for k, v in each.items()]
    if random.random() < 0.05:
        lines += random.choices(lines or [""], k=2)
    return "\n".join(lines).encode(errors="surrogatepass")


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_inline(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, float):
        return repr(value)
    return '""' if value is None else json.dumps(value, ensure_ascii=False)


def changed_toml(data: bytes, random: Random, parse: Callable[[str], dict[str, Any]]) -> bytes:
    """A TOML file with some of its values changed, or some of its words."""
    if random.random() < 0.4:
        return changed_text(data, random, [data])
    changed = changed_value(parse(data.decode()), random)
    return toml_bytes(changed if isinstance(changed, dict) else {"x": changed}, random)
