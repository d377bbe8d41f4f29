"""Lossless speculative decoding for llama.cpp models on your own machine.

    import localspec

    with localspec.load() as engine:
        print(engine.generate("What is 7 times 8?").reply().text)

Everything is loaded on first use: importing this package is quick. Its names are those of the
stub beside this file, which type checkers read, too.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from localspec._version import __version__ as __version__

# Modules that load NumPy, which has to come after libllama (`llama/loaded.py`).
_WITH_NUMPY = {
    "chat.chat",
    "chat.tool_loop",
    "engine.disk_usage",
    "sampling.logprobs",
    "streaming.answer",
    "streaming.reply",
}


@functools.cache
def _modules() -> dict[str, str]:
    """The module of each public name but the version."""
    import ast  # here, and not at the top, since it takes as long as everything else
    from pathlib import Path

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    found = {each.name: str(node.module) for node in imports for each in node.names}
    return {name: found[name] for name in found.keys() - {"__version__"}}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_modules(), key=lambda each: (each.islower(), each))
    if name.startswith("_") or name not in _modules():
        from localspec.keywords import OF_MODULE  # where all is well, nothing needs it

        hint = f". Write {OF_MODULE[name]}." if name in OF_MODULE else ""
        raise AttributeError(f"module 'localspec' has no attribute {name!r}{hint}")
    module = _modules()[name]
    is_isolated = "localspec.isolated.isolated_engine" in sys.modules  # and needs no libllama
    if module.removeprefix("localspec.") in _WITH_NUMPY and not is_isolated:
        importlib.import_module("localspec.llama.loaded")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return [*_modules(), "__version__"]
