"""What can happen in a story: each plot is a few sentences, each with many wordings.

Slots: `name`, `kind`, `thing`, `friend` ("an owl" is `<a:friend>`), `he`, `his`, `him`.
A plot begins after the hero is introduced and stops before the last sentence.
"""

from dataclasses import dataclass

from .texts import texts

_WORDINGS = texts("plots")


@dataclass(frozen=True)
class Plot:
    """A course of events, and what a visitor may ask about it afterwards."""

    about: str
    lines: tuple[str, ...]
    found: str
    helped: str
    end: str


PLOTS = tuple(Plot(**each) for each in _WORDINGS["plots"])

ENDINGS = _WORDINGS["endings"]
SAD_ENDINGS = _WORDINGS["sad_endings"]
FUNNY_ENDINGS = _WORDINGS["funny_endings"]
