"""Draws the graph of imports between localspec's packages into ARCHITECTURE.md.

    python scripts/develop/draw_packages.py

An arrow leads from a package to one that it imports. Arrows that follow from others are left
out: a package that imports the engine may import everything that the engine imports.
"""

from __future__ import annotations

import ast
from pathlib import Path

from marked_part import with_part

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"


def imported_by(source: str) -> set[str]:
    """Dotted names of everything that a module imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def package_imports(folder: Path) -> dict[str, set[str]]:
    """Package → the packages, or modules beside them, that it imports.

    Without `localspec` itself, and without `__main__` and `__pyinstaller`.
    folder: of the package localspec.
    """
    rooms = {path.stem for path in folder.iterdir() if path.suffix == ".py"}
    rooms |= {path.parent.name for path in folder.glob("*/__init__.py")}
    rooms = {room for room in rooms if not room.startswith("__")}
    imports: dict[str, set[str]] = {room: set() for room in rooms}
    for path in folder.rglob("*.py"):
        room = path.relative_to(folder).with_suffix("").parts[0]
        if room in rooms:
            found = {name.split(".")[1] for name in imported_by(path.read_text("utf-8"))
                     if name.startswith("localspec.")}  # fmt: skip
            imports[room] |= (found & rooms) - {room}
    return imports


def reachable(imports: dict[str, set[str]], room: str) -> set[str]:
    """All that a room imports, directly or through others."""
    found: set[str] = set()
    waiting = list(imports[room])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports[name]
    return found


def drawn(imports: dict[str, set[str]]) -> str:
    """The graph as Mermaid has it, without `errors`, which all import."""
    lines = ["graph TD"]
    for room in sorted(imports, key=lambda room: (-len(reachable(imports, room)), room)):
        through = {name for other in imports[room] for name in reachable(imports, other)}
        lines += [
            f"  {room} --> {name}" for name in sorted(imports[room] - through - {"errors"})
        ]
    return "\n".join(lines) + "\n"


def with_graph(page: str, graph: str) -> str:
    """The page with its graph replaced."""
    return with_part(page, "```mermaid\n", "```", graph)


if __name__ == "__main__":
    graph = drawn(package_imports(ROOT / "localspec"))
    PAGE.write_text(with_graph(PAGE.read_text("utf-8"), graph), "utf-8")
