"""The campaign's class of engines: it notices what is planted, and shortens what it lost."""

from __future__ import annotations

import sys

import pytest

if sys.platform == "win32":
    pytest.skip("signals and forks of Unix", allow_module_level=True)

from fault_classes import engine
from fault_classes.engine_kinds import KINDS
from fault_classes.engine_machine import WEIGHTS, Machine, drawn_operations

DRAFTED = "attention, a draft model"
NOT_CUT = """
import inside
import pytest


def cut(loop, num_tokens):
    loop.target.truncate(min(loop.target.num_cached, num_tokens + 1))
    for proposer in loop.proposers:
        proposer.truncate(num_tokens)


inside.replace_truncation(cut, pytest.MonkeyPatch())
"""
DIES = """
import os, signal
from localspec.chat.chat import Chat

Chat.undo = lambda chat: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_operation_is_there():
    assert all(hasattr(Machine, f"_{name}") for name in WEIGHTS)
    assert drawn_operations("a", 50) == drawn_operations("a", 80)[:50]
    assert {each.name for each in drawn_operations("a", 9000)} == set(WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [DRAFTED, "hybrid, an MTP head", "a sliding window, an assistant"]
)
def test_a_short_run_loses_nothing(kind, tmp_path):
    operations = drawn_operations("b", 60)
    asked = {"kind": kind, "number": 1, "operations": operations}
    assert engine.in_process(asked, tmp_path) == {"count": 60, "at": 60}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "words"),
    [
        pytest.param(NOT_CUT, "rows of logits", id="cut"),
        pytest.param(DIES, "ended with -9", id="dies"),
    ],
)
def test_what_is_planted_is_noticed_and_shortened(plant, words, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "SHORTENING_S", 1000.0)
    (tmp_path / "plant.py").write_text(plant)
    tried = engine.of_kind(DRAFTED, 60.0, 0, tmp_path, str(tmp_path / "plant.py"))
    (loss,) = tried.losses
    assert words in loss
    assert loss.startswith(f"{DRAFTED}, 0: ")
    assert loss.rpartition("; ")[2].count("(") <= 10


def test_the_real_model_is_skipped_and_said(monkeypatch):
    monkeypatch.delenv("LOCALSPEC_REAL_MODELS", raising=False)
    monkeypatch.setattr(engine, "of_kind", lambda *_: None)
    said = [each for each in engine.tries(1.0, 0) if each is not None]
    assert [each.what for each in said] == ["SmolLM2, lookup"]
    assert said[0].holds.startswith("skipped")
    assert len(KINDS) > 15
