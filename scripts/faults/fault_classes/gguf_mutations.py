"""Changes GGUF files part by part: counts, keys, values and their kinds, tensors, weights."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from random import Random

from fault_classes.mutations import BOUNDS, changed_bytes

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of kinds
_FLOATS = {6: "<f", 12: "<d"}
_STRING, _ARRAY, _ALIGNMENT = 8, 9, 32
_ODD_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e30, 3e38, float("inf"), float("nan"))
_NUM_TYPES = 42  # of ggml's tensors, with a few that there are not


@dataclass
class _Entry:
    key: bytes
    kind: int
    value: bytes


@dataclass
class _Tensor:
    name: bytes
    shape: list[int]
    kind: int
    offset: int


@dataclass
class _File:
    """version, counts: what is written first; None writes the right counts."""

    entries: list[_Entry]
    tensors: list[_Tensor]
    data: bytes
    version: int = 3
    counts: tuple[int | None, int | None] = (None, None)
    padding: int = field(default=0)


def changed_gguf(data: bytes, random: Random) -> bytes:
    """A GGUF file with a few of its parts changed, or cut short."""
    chance = random.random()
    if chance < 0.05:
        return data[: random.randrange(len(data))]
    file = _read(data)
    if chance < 0.15:
        header = len(data) - len(file.data)
        return changed_bytes(data[:header], random) + data[header:]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change(file, random)
    return _written(file)


def _change(file: _File, random: Random) -> None:
    what = random.random()
    if what < 0.5 and file.entries:
        _change_entry(file, random)
    elif what < 0.88 and file.tensors:
        _change_tensor(file, random)
    elif what < 0.92:
        _change_counts(file, random)
    else:
        _change_weights(file, random)


def _change_counts(file: _File, random: Random) -> None:
    number = random.choice((*BOUNDS, len(file.tensors) + 1, len(file.entries) - 1)) % 2**64
    match random.randrange(4):
        case 0:
            file.version = number % 2**32
        case 1:
            file.counts = number, None
        case 2:
            file.counts = None, number
        case _:
            file.padding = random.choice((1, 8, 31, 4096))


def _change_weights(file: _File, random: Random) -> None:
    found = bytearray(file.data)
    for _ in range(random.choice((1, 4, 64))):
        at = random.randrange(len(found) // 4) * 4 if len(found) >= 4 else 0
        found[at : at + 4] = struct.pack("<f", random.choice(_ODD_FLOATS))
    size = random.choice((len(found), len(found), random.randrange(len(found) + 1)))
    file.data = bytes(found[:size])


def _change_entry(file: _File, random: Random) -> None:
    at = random.randrange(len(file.entries))
    entry = file.entries[at]
    match random.randrange(10):
        case 0:
            del file.entries[at]
        case 1:
            file.entries.insert(
                random.randrange(at + 1), _Entry(entry.key, entry.kind, entry.value)
            )
        case 2:
            entry.key = random.choice(
                (b"", b"x", entry.key[:-1], random.choice(file.entries).key)
            )
        case 3:
            other = random.choice(file.entries)
            entry.kind, entry.value = other.kind, other.value
        case 4:
            kind = random.choice(list(_SIZES))
            entry.kind = kind
            entry.value = _number(kind, random, entry.value)
        case 5:
            entry.kind = random.choice((13, 255, 2**32 - 1, *_SIZES, _STRING, _ARRAY))
        case _:
            _change_value(entry, random)


def _change_value(entry: _Entry, random: Random) -> None:
    if entry.kind in _SIZES:
        entry.value = _number(entry.kind, random, entry.value)
    elif entry.kind == _STRING:
        entry.value = _changed_string(entry.value, random)
    elif entry.kind == _ARRAY:
        entry.value = _changed_array(entry.value, random)


def _number(kind: int, random: Random, old: bytes) -> bytes:
    if kind in _FLOATS:
        number = random.choice(_ODD_FLOATS)
        return struct.pack(_FLOATS[kind], number)
    size = _SIZES[kind]
    was = int.from_bytes(old[:8], "little")
    near = (was + 1, was - 1, was * 2, was // 2, was ^ 1, -1, random.choice(BOUNDS))
    return (random.choice(near) % 256**size).to_bytes(size, "little")


def _changed_string(value: bytes, random: Random) -> bytes:
    text = value[8:]
    if random.random() < 0.1:  # a length that is not that of the text
        return struct.pack("<Q", random.choice(BOUNDS) % 2**64) + text
    text = random.choice(
        (b"", b"\x00", b"\xff\xfe", b"x" * 100_000, changed_bytes(text, random))
    )
    return struct.pack("<Q", len(text)) + text


def _changed_array(value: bytes, random: Random) -> bytes:
    kind, count = struct.unpack_from("<IQ", value)
    items = _items(value, kind, count)
    at = random.randrange(len(items)) if items else 0
    match random.randrange(8):
        case 0:
            items = []
        case 1:
            del items[at:]
        case 2:
            items = items + items[:1] if items else items
        case 3:
            count = random.choice(BOUNDS) % 2**64
            return struct.pack("<IQ", kind, count) + b"".join(items)
        case 4:
            kind = random.choice((*_SIZES, _STRING, _ARRAY, 99))
            return struct.pack("<IQ", kind, count) + b"".join(items)
        case 5 if items:
            items[at] = items[random.randrange(len(items))]
        case _ if items:
            text = kind == _STRING
            items[at] = _changed_string(items[at], random) if text else (
                _number(kind, random, items[at]) if kind in _SIZES else items[at]
            )  # fmt: skip
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def _change_tensor(file: _File, random: Random) -> None:
    at = random.randrange(len(file.tensors))
    tensor, other = file.tensors[at], random.choice(file.tensors)
    match random.randrange(9):
        case 0:
            del file.tensors[at]
        case 1:
            file.tensors.append(
                _Tensor(tensor.name, list(tensor.shape), tensor.kind, tensor.offset)
            )
        case 2:
            tensor.name, other.name = other.name, tensor.name
        case 3:
            renamed = changed_bytes(tensor.name, random)
            tensor.name = random.choice((b"", b"x" * 64, b"x" * 5000, renamed))
        case 4:
            tensor.kind = random.choice((other.kind, random.randrange(_NUM_TYPES), 2**32 - 1))
        case 5:
            tensor.offset = random.choice(
                (other.offset, tensor.offset + 32, tensor.offset + 1, *BOUNDS)
            )
        case 6:
            tensor.shape = random.choice(
                (
                    [],
                    tensor.shape[::-1],
                    [*tensor.shape, 1],
                    [*tensor.shape, 2, 2, 2],
                    other.shape[:],
                )
            )
        case _ if tensor.shape:
            place = random.randrange(len(tensor.shape))
            old = tensor.shape[place]
            near = (old + 1, max(old - 1, 0), old * 2, old // 2, random.choice(BOUNDS))
            tensor.shape[place] = random.choice(near) % 2**64


def _written(file: _File) -> bytes:
    num_tensors, num_entries = file.counts
    parts = [
        b"GGUF",
        struct.pack(
            "<IQQ",
            file.version,
            len(file.tensors) if num_tensors is None else num_tensors,
            len(file.entries) if num_entries is None else num_entries,
        ),
    ]
    for entry in file.entries:
        parts += [_text(entry.key), struct.pack("<I", entry.kind), entry.value]
    for tensor in file.tensors:
        parts += [_text(tensor.name), struct.pack("<I", len(tensor.shape))]
        parts += [struct.pack("<Q", size) for size in tensor.shape]
        parts += [struct.pack("<IQ", tensor.kind, tensor.offset % 2**64)]
    header = b"".join(parts)
    return header + b"\0" * (-len(header) % _ALIGNMENT + file.padding) + file.data


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _read(data: bytes) -> _File:
    """The parts of a file that is right."""
    num_tensors, num_entries = struct.unpack_from("<QQ", data, 8)
    at, entries, tensors = 24, [], []
    for _ in range(num_entries):
        key, at = _text_at(data, at)
        kind = struct.unpack_from("<I", data, at)[0]
        end = _end(data, at + 4, kind)
        entries.append(_Entry(key, kind, data[at + 4 : end]))
        at = end
    for _ in range(num_tensors):
        name, at = _text_at(data, at)
        count = struct.unpack_from("<I", data, at)[0]
        shape = list(struct.unpack_from(f"<{count}Q", data, at + 4))
        kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * count)
        tensors.append(_Tensor(name, shape, kind, offset))
        at += 16 + 8 * count
    return _File(entries, tensors, data[-(-at // _ALIGNMENT) * _ALIGNMENT :])


def _text_at(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 8 + struct.unpack_from("<Q", data, at)[0]
    return data[at + 8 : end], end


def _end(data: bytes, at: int, kind: int) -> int:
    """Where a value of that kind ends."""
    if kind == _STRING:
        return _text_at(data, at)[1]
    if kind != _ARRAY:
        return at + _SIZES[kind]
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind in _SIZES:
        return int(at + count * _SIZES[kind])
    for _ in range(count):
        at = _end(data, at, kind)
    return at


def _items(value: bytes, kind: int, count: int) -> list[bytes]:
    at, items = 12, []
    for _ in range(min(count, len(value))):  # a count may be one of the changes
        end = _end(value, at, kind)
        items.append(value[at:end])
        at = end
    return items
