"""The clipboard, by way of the terminal: it works over ssh, too, and needs no other program."""

from __future__ import annotations

import base64

import click

from localspec.errors import OptionError

_MAX_BYTES = 74_000  # many terminals ignore a longer sequence


def copy_text(text: str) -> None:
    """Ask the terminal to keep the text (OSC 52). Raises OptionError if it is too long."""
    data = text.encode(errors="replace")
    if len(data) > _MAX_BYTES:
        raise OptionError(
            f"the answer has {len(data)} bytes; terminals take {_MAX_BYTES}",
            "Select it with the mouse, or /save the conversation.",
        )
    # The base64 alphabet has no character that could end the sequence.
    click.echo(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07", nl=False, color=True)
