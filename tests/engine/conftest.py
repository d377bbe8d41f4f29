"""What several tests of the engine load."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybrid_maker import CACHE_KINDS, write_cache_kind


@pytest.fixture(scope="module", params=CACHE_KINDS)
def cache_kind_file(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_target: Path
) -> Path:
    """A model file for each kind of cache."""
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    return write_cache_kind(path, demo_target, request.param)
