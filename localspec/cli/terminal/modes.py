"""Changes modes of the terminal for a while, and restores them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def modes_kept() -> Iterator[None]:
    """Restore the modes of the terminal after the block, however it ended.

    Does nothing for the Windows console.
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

    It would mix with the output. It is not lost: the next read gets it. The Windows console
    shows nothing by itself.
    """
    with modes_kept():
        if sys.platform != "win32":
            import termios

            terminal = sys.stdin.fileno()
            modes = termios.tcgetattr(terminal)
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
        yield
