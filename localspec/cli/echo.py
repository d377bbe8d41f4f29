"""What is typed while something else is written, kept off the screen."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def echo_off() -> Iterator[None]:
    """While the block runs, the terminal does not show what is typed.

    It would stand in the middle of what is written and shift it. It is not lost: whoever
    reads next gets it. A console of Windows shows nothing by itself.
    """
    if sys.platform == "win32":
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    modes = termios.tcgetattr(terminal)
    silent = [*modes[:3], modes[3] & ~termios.ECHO, *modes[4:]]
    termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal may have gone
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
