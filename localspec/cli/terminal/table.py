"""Tables drawn in columns that fit the window."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_MIN_COLUMN = 6  # columns of the window for each of the table's, its border included
_RULER = re.compile(r":?-+:?")


def table_lines(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The rows drawn: the first is the head, the second the ruler below it.

    Empty if they are no such table, or have more columns than fit into `width`.
    """
    if len(rows) < 2 or not all(map(_RULER.fullmatch, rows[1])):
        return []
    head, _, *body = rows
    if len(head) * _MIN_COLUMN > width or any(len(row) > len(head) for row in body):
        return []
    table = Table()
    for cell in head:
        # Text, because a str would be read as rich's own markup. Fold: nothing is cut off.
        table.add_column(Text(cell), overflow="fold")
    for row in body:
        table.add_row(*map(Text, row))
    drawn = io.StringIO()
    Console(file=drawn, width=width, color_system=None).print(table)
    return drawn.getvalue().splitlines()
