"""The measurement of drafts from memory, on the demo pair: that it runs, and what it asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import measure_remembering
import pytest

from real_text.agent import NUM_WARM, Session, chats, people


def test_a_session_has_twenty_turns_and_files_that_change():
    session, asked = Session(), []
    for kind, task in session.turns():
        asked.append((kind, task.text))
        session.take("Here it is:\n```python\nREVIEWED\n```\n")
    assert len(asked) == 20
    for name in ("tests/examples.py", "tests/engines.py"):
        texts = [text for kind, text in asked if kind == "edit" and text.startswith(name)]
        assert len(texts) == 2
        assert "REVIEWED\n```" not in texts[0]
        assert "REVIEWED\n```" in texts[1]
    assert len(people()) > NUM_WARM
    assert len(chats()) > 1


@pytest.mark.process
@pytest.mark.slow
def test_it_prints_a_table(demo_target: Path):
    told = subprocess.run(
        [sys.executable, measure_remembering.__file__, demo_target.parent, "--target",
         demo_target.name, "--tokens", "8", "--ctx", "1536", "--minutes", "0.5"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "| an agent's session | memory |" in told
    assert "| the same session again | memory |" in told
