"""Every error of the package keeps what it says on its way through pickle and copy."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator

import pytest

import localspec
from localspec.errors import LocalspecError


def error_classes(
    base: type[LocalspecError] = LocalspecError,
) -> Iterator[type[LocalspecError]]:
    """The base and all that derive from it, at any depth, in any module."""
    yield base
    for derived in base.__subclasses__():
        yield from error_classes(derived)


for _module in pkgutil.walk_packages(localspec.__path__, "localspec."):
    if ".__" not in _module.name:  # what Python and PyInstaller run
        importlib.import_module(_module.name)

CLASSES = sorted(set(error_classes()), key=lambda cls: cls.__qualname__)


def test_they_are_found():
    assert {"DownloadError", "HubBusyError", "Interrupted"} <= {c.__name__ for c in CLASSES}


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("way", [*range(pickle.HIGHEST_PROTOCOL + 1), copy.copy, copy.deepcopy])
def test_nothing_is_lost_on_the_way(cls, way):
    """Message, hint and what a subclass adds; also what was set or noted later."""
    values = {name: f"the {name}" for name in inspect.signature(cls).parameters}
    error = cls(**values)
    error.hint = "what to do"
    error.__notes__ = ["seen in a test"]
    again = pickle.loads(pickle.dumps(error, way)) if isinstance(way, int) else way(error)
    assert type(again) is cls
    assert str(again) == str(error) == "the message"
    assert again.args == error.args
    assert vars(again) == vars(error)
    for name in values.keys() - {"message", "hint"}:
        assert f"the {name}" in vars(again).values()
