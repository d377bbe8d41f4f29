"""Lists names that two modules of localspec use for two different things.

    python scripts/develop/unique_names.py

It compares what modules define outside of functions: all classes, private ones too, and public
functions, constants and aliases. It leaves out names that many modules share by convention: the
commands of the command line, the `main` of a script, loggers and type variables.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_OF_A_KIND = {"getLogger", "TypeVar", "ParamSpec", "NewType"}  # what makes one


def twice_defined(folder: Path) -> dict[str, list[str]]:
    """The names that more than one module defines, with those modules.

    folder: of the package localspec.
    """
    modules: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        for name in set(_defined(path.read_text("utf-8"))):
            modules.setdefault(name, []).append(module)
    return {name: found for name, found in sorted(modules.items()) if len(found) > 1}


def _defined(source: str) -> Iterator[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_counted = not node.name.startswith("_") and node.name != "main"
            if is_counted and not any(map(_is_command, node.decorator_list)):
                yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not _is_of_a_kind(node.value):
                for target in targets:
                    if isinstance(target, ast.Name) and not target.id.startswith("_"):
                        yield target.id


def _is_command(decorator: ast.expr) -> bool:
    """Whether it makes a command of click's: @click.command(), @group.command("name")."""
    made = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(made, ast.Attribute) and made.attr in ("command", "group")


def _is_of_a_kind(value: ast.expr | None) -> bool:
    made = value.func if isinstance(value, ast.Call) else None
    return getattr(made, "attr", getattr(made, "id", "")) in _OF_A_KIND


if __name__ == "__main__":
    for name, modules in twice_defined(ROOT / "localspec").items():
        print(f"{name}: {', '.join(modules)}")
