"""The measurement of the server's page: a real browser and server, no stopwatch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from page_driver import browser_path

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parent.parent / "scripts/measure/measure_page.py"


def test_it_prints_the_first_paint_and_the_frames_of_an_answer():
    pytest.importorskip("playwright.sync_api", reason="Playwright drives the page")
    if browser_path() is None:
        pytest.skip("there is no Chromium to open the page with")
    small = ["--rates", "500", "--tokens", "200", "--visits", "1"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *small], capture_output=True, text=True, check=True
    )
    first, _, head, _, row = done.stdout.splitlines()
    assert re.match(r"first paint: [1-9]\d* ms ", first)
    assert "above 50 ms" in head
    rate, blocks, frames, above, median, longest, held_up, task = (
        int(cell) for cell in row.strip("|").split("|")
    )
    assert (rate, blocks) == (500, 20)
    assert frames > above >= 0
    assert longest >= median > 0
    assert min(held_up, task) >= 0
