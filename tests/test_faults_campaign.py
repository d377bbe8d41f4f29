"""The campaign itself: a class that fails ends neither the others nor its own table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import campaign
import pytest
from fault_classes.tried import Tried


def module_of(name: str, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """A class of faults that tries one thing, and raises then, or does not."""

    def tries(_seconds: float, _seed: int) -> Iterator[Tried]:
        yield Tried(f"the first of {name}", "it holds", 3, [])
        if fails:
            raise SystemExit("a log\nwhose end counts")
        yield Tried(f"the second of {name}", "it holds", 0, [])

    module = ModuleType(f"fault_classes.{name}", f"The {name}.")
    monkeypatch.setattr(module, "tries", tries, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_class_that_raises_is_lost_and_the_next_one_goes_on(monkeypatch, capsys):
    module_of("broken", monkeypatch, fails=True)
    module_of("sound", monkeypatch, fails=False)
    monkeypatch.setattr(campaign, "CLASSES", ("broken", "sound"))
    monkeypatch.setattr(sys, "argv", ["campaign.py"])
    assert campaign.main() == 1
    said = capsys.readouterr().out
    assert "| the first of broken | it holds | 3 | nothing |" in said
    assert "| broken | the class runs to its end | 1 | 1 |" in said
    assert "lost: whose end counts\n" in said
    assert "| the second of sound | it holds | 0 | not tried |" in said


@pytest.mark.parametrize("name", campaign.CLASSES)
def test_the_page_has_the_table_of_every_class(name):
    page = campaign.PAGE.read_text("utf-8")
    part = page.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]
    assert f"campaign.py {name} --seed" in part
    assert "| tried | what has to hold | times | lost |" in part
