"""The two places where an engine can live."""

from __future__ import annotations

import pytest

import localspec

PLACES = [
    pytest.param(localspec.load, id="here"),
    pytest.param(localspec.IsolatedEngine, id="isolated", marks=pytest.mark.process),
]
