"""Draws the graph of imports between localspec's packages, and lists them, in ARCHITECTURE.md.

    python scripts/develop/draw_packages.py

An arrow leads from a package to one that it imports. Arrows that follow from others are left
out: a package that imports the engine may import everything that the engine imports. What a
package is for is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
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


def from_the_top(imports: dict[str, set[str]]) -> list[str]:
    """The rooms in an order in which each imports later ones only."""
    return sorted(imports, key=lambda room: (-len(reachable(imports, room)), room))


def drawn(imports: dict[str, set[str]]) -> str:
    """The graph as Mermaid has it, without `errors`, which all import."""
    lines = ["graph TD"]
    for room in from_the_top(imports):
        through = {name for other in imports[room] for name in reachable(imports, other)}
        lines += [
            f"  {room} --> {name}" for name in sorted(imports[room] - through - {"errors"})
        ]
    return "\n".join(lines) + "\n"


def listed(folder: Path) -> str:
    """The rows of the table of rooms, each with the first sentence of its docstring."""
    rows = ["|---|---|"]
    for room in from_the_top(package_imports(folder)):
        if (folder / room).is_dir():
            name = f"{room}/"
            path = folder / room / "__init__.py"
        else:
            name = f"{room}.py"
            path = folder / name
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        sentence = re.split(r"\.\s", docstring)[0].replace("\n", " ").removesuffix(".")
        rows.append(f"| `{name}` | {sentence} |")
    return "\n".join(rows)


def with_drawing(page: str, folder: Path) -> str:
    """The page with its graph and its table of rooms written anew.

    folder: of the package localspec.
    """
    page = with_part(page, "```mermaid\n", "```", drawn(package_imports(folder)))
    return with_part(page, "| room | what it is for |\n", "\n\n", listed(folder))


if __name__ == "__main__":
    PAGE.write_text(with_drawing(PAGE.read_text("utf-8"), ROOT / "localspec"), "utf-8")
