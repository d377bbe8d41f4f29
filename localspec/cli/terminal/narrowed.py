"""A message that is being typed, in a window that is made narrower."""

from __future__ import annotations

from typing import Any

from prompt_toolkit.application import Application


class NarrowedWindow:
    """Has an application erase what a narrower window has made of the rows that it drew.

    On a resize prompt_toolkit goes up as many rows as it drew, and draws again. Most terminals
    have by then wrapped those rows into more, and the first ones would stay. A terminal that
    cuts rows off instead loses as many rows above, of which the first is the blank line that
    every message begins after.
    """

    def __init__(self, application: Application[Any]) -> None:
        self._columns = 0  # of the window when it was drawn; 0 if nothing is
        self._widths: list[int] = []  # of the rows down to the cursor, in columns
        application.before_render += self._erase
        application.after_render += self._remember

    def _remember(self, application: Application[Any]) -> None:
        screen = application.renderer.last_rendered_screen
        if screen is None:  # the message is finished
            self._columns = 0
            return
        cursor = screen.get_cursor_position(application.layout.current_window)
        rows = [screen.data_buffer[y] for y in range(cursor.y)]
        widths = [[x for x, cell in row.items() if cell.char.strip()] for row in rows]
        self._widths = [max(row, default=0) + 1 for row in widths] + [cursor.x + 1]
        self._columns = application.output.get_size().columns

    def _erase(self, application: Application[Any]) -> None:
        columns = application.output.get_size().columns
        if columns < self._columns:
            # A key may be drawn before the resize is heard of.
            application.renderer.erase(leave_alternate_screen=False)
            num_more = sum((width - 1) // columns for width in self._widths)
            application.output.cursor_up(num_more)
            application.output.erase_down()
