"""Commands of localspec, run in the tests' own process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from localspec.cli import main


def run(*words: object, stdin: str | bytes | None = None) -> Result:
    """What a command of these words writes, and its exit code; never a traceback."""
    result = CliRunner().invoke(main, [str(word) for word in words], input=stdin)
    assert "Traceback" not in result.output
    return result
