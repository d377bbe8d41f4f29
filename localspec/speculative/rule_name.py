"""The rules of verification by name: the command line lists them without loading any."""

from __future__ import annotations

from typing import Literal

RuleName = Literal["greedy", "token", "block", "coupled"]
