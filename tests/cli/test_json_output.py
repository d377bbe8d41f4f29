"""What --json prints: a dataclass with its properties, in JSON that every reader takes."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from pathlib import Path
from typing import NamedTuple

import pytest

from localspec.cli.json_output import to_json, write_json
from localspec.evaluation.identity import Divergence


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    points: tuple[Point, ...]
    colour: Colour
    name: bytes

    @property
    def num_points(self) -> int:
        return len(self.points)

    @property
    def _private(self) -> int:
        raise AssertionError

    def method(self) -> None:
        raise AssertionError


def test_a_dataclass_has_its_fields_and_its_properties():
    line = Line((Point(1, 2.5),), Colour.RED, b"a\xff")
    assert to_json(line) == {
        "points": [{"x": 1, "y": 2.5}],
        "colour": "red",
        "name": "a\N{REPLACEMENT CHARACTER}",
        "num_points": 1,
    }


def test_keys_are_text_and_sets_are_sorted():
    written = to_json({Path("a"): {"z", "b"}, Colour.RED: frozenset({2, 1}), 3: None})
    assert written == {"a": ["b", "z"], "red": [1, 2], "3": None}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_json_has_no_number_for_is_null(value, capsys):
    write_json(Divergence(0, None, 3, 5, 7, 9, gap=value))
    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail)["gap"] is None
