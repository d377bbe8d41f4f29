"""Writes trimmed files that propose the tokens a test asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.trimming import trimmed_path, why_not_trimmed, write_trimmed


def trimmed_file(path: Path, ids: Sequence[int], out: Path | None = None) -> Path:
    """The trimmed file of a draft's or a head's, where it is found, or elsewhere."""
    header = check_model_file(path)
    assert why_not_trimmed(header) == ""
    out = out or trimmed_path(header)
    write_trimmed(header, ids, out)
    return out
