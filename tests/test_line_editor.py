"""The line of a chat that is typed: what stays of it where a window narrows."""

from __future__ import annotations

import io

from prompt_toolkit import PromptSession
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from localspec.cli.terminal.line_editor import _NarrowedWindow


def test_a_window_that_narrows_while_a_line_is_drawn_shows_it_once():
    """Its wrapped rows are erased, although its width was another one behind the drawing."""
    widths = [80]
    written = io.StringIO()
    output = Vt100_Output(written, lambda: Size(24, widths[-1]), enable_cpr=False)

    def hear_of_the_resize():
        written.seek(written.truncate(0))
        session.app.invalidate()
        keys.send_text("\r")

    with create_pipe_input() as keys:
        session = PromptSession(input=keys, output=output)
        session.app.after_render += lambda _app: widths.append(40)
        _NarrowedWindow(session.app)
        session.prompt(
            "> ",
            default="a" * 70,
            pre_run=lambda: session.app.loop.call_later(0.1, hear_of_the_resize),
        )
    up, _ = written.getvalue().split("> a", 1)
    assert "\x1b[A" in up
