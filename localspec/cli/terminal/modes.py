"""The terminal's modes: changed for a while, and as they were before."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def modes_kept() -> Iterator[None]:
    """After the block the terminal is as it was before, however the block ended.

    A console of Windows is left to those who change it.
    """
    if sys.platform == "win32":
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    modes = termios.tcgetattr(terminal)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal may have gone
            termios.tcsetattr(terminal, termios.TCSANOW, modes)


@contextlib.contextmanager
def echo_off() -> Iterator[None]:
    """While the block runs, the terminal does not show what is typed.

    It would stand in the middle of what is written and shift it. It is not lost: whoever
    reads next gets it. A console of Windows shows nothing by itself.
    """
    with modes_kept():
        if sys.platform != "win32":
            import termios

            terminal = sys.stdin.fileno()
            modes = termios.tcgetattr(terminal)
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
        yield
