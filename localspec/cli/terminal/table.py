"""Tables drawn in columns that fit the window."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_BORDER = 3  # columns of the window for each of the table's; one more closes it
_RULER = re.compile(r":?-+:?")
_WORD = re.compile(r"[^\s\u2e80-\uffff]+|\S")  # lines may end between any two wide characters


def table_lines(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The table as lines: the first row is the head, the second the ruler below it.

    If the words do not fit into `width`, every cell is a line with its column's name, and may
    be longer than `width`. Empty if the rows are not a table.
    """
    if len(rows) < 2 or not all(map(_RULER.fullmatch, rows[1])):
        return []
    head, _, *body = rows
    if any(len(row) > len(head) for row in body):
        return []
    columns = [list(column) for column in zip_longest(head, *body, fillvalue="")]
    room = width - _BORDER * len(head) - 1
    sizes = _sizes(columns, room)
    if sum(sizes) > room:
        named = (map(": ".join, zip(head, row, strict=False)) for row in body)
        return [line for row in named for line in (*row, "")][:-1]
    table = Table()
    for cell, size in zip(head, sizes, strict=True):
        # Text, because rich would read markup in a str. Fold: nothing is cut off.
        table.add_column(Text(cell), overflow="fold", width=size)
    for row in body:
        table.add_row(*map(Text, row))
    drawn = io.StringIO()
    Console(file=drawn, width=width, color_system=None).print(table)
    return drawn.getvalue().splitlines()


def _sizes(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """The widths of columns that keep words whole: together `room`, or more if they must."""
    words = (_WORD.findall(" ".join(column)) for column in columns)
    least = [max(map(cell_len, each), default=1) for each in words]
    sizes = [max(map(cell_len, column)) for column in columns]
    sizes = [max(few, min(size, room)) for few, size in zip(least, sizes, strict=True)]
    while sum(sizes) > room and sizes != least:
        widest = max(range(len(sizes)), key=lambda i: sizes[i] * (sizes[i] > least[i]))
        sizes[widest] -= 1
    return sizes
