"""Tells PyInstaller where localspec's hook is: it calls the entry point `pyinstaller40`."""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """The folders that have hooks for PyInstaller."""
    return [str(Path(__file__).parent)]
