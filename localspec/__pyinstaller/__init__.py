"""Where PyInstaller finds localspec's hook: it asks the entry point `pyinstaller40`."""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """The folders that hold hooks."""
    return [str(Path(__file__).parent)]
