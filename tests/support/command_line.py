"""Commands of localspec: run in the tests' own process, and the one that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

from click.testing import CliRunner, Result

from localspec.cli import main

LOCALSPEC = Path(sys.executable).with_name("localspec")  # the installed command


def run(*words: object, stdin: str | bytes | None = None) -> Result:
    """What a command of these words writes, and its exit code; never a traceback."""
    result = CliRunner().invoke(main, [str(word) for word in words], input=stdin)
    assert "Traceback" not in result.output
    return result
