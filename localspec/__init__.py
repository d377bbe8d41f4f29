"""Lossless speculative decoding for llama.cpp models on your own machine.

    import localspec

    with localspec.load() as engine:
        print(engine.generate("What is 7 times 8?").reply().text)

Everything is loaded on first use: importing this package is quick. Its names are those of the
stub next to this file, which type checkers read, too.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from localspec._version import __version__ as __version__

# Modules that import NumPy, which has to be imported after libllama (`llama/loaded.py`).
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
    """The module of each public name, as the stub says, except for the version."""
    import ast  # late: importing it takes as long as everything else here
    from pathlib import Path

    stub = Path(__file__).with_suffix(".pyi")
    tree = ast.parse(stub.read_text("utf-8"))
    modules = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for imported in node.names:
                modules[imported.name] = str(node.module)
    modules.pop("__version__", None)
    return modules


def __getattr__(name: str) -> Any:
    """Import a public name at its first use. Raises AttributeError for other names."""
    if name == "__all__":
        # Classes first.
        return sorted(_modules(), key=lambda public: (public.islower(), public))
    if name.startswith("_") or name not in _modules():
        from localspec.keywords import OF_MODULE  # late: only errors need it

        message = f"module 'localspec' has no attribute {name!r}"
        if name in OF_MODULE:
            message = f"{message}. Write {OF_MODULE[name]}."
        raise AttributeError(message)
    module = _modules()[name]
    # A process that has imported isolated engines needs no libllama.
    is_isolated = "localspec.isolated.isolated_engine" in sys.modules
    needs_numpy = module.removeprefix("localspec.") in _WITH_NUMPY
    if needs_numpy and not is_isolated:
        importlib.import_module("localspec.llama.loaded")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return [*_modules(), "__version__"]
