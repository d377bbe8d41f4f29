"""Prints the lowest versions that pyproject.toml allows, as constraints for pip.

    python scripts/develop/lowest_versions.py > lowest.txt
    python -m pip install --constraint lowest.txt '.[all]'

They are those of the package itself and of its extra `all`. What these libraries need in turn
is left to pip, and so are the tools of the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def lowest_of(requirements: Iterable[str]) -> Iterator[str]:
    """The lowest version of each requirement, as a requirement of this version alone.

    Raises ValueError for a requirement without a lowest version.
    """
    for text in requirements:
        requirement = Requirement(text)
        lowest = [each.version for each in requirement.specifier if each.operator == ">="]
        if len(lowest) != 1:
            raise ValueError(f"{text!r} has no lowest version: write NAME>=VERSION")
        marker = f"; {requirement.marker}" if requirement.marker else ""
        yield f"{requirement.name}=={lowest[0]}{marker}"


def lowest_of_project(path: Path) -> Iterator[str]:
    """Those of a pyproject.toml. Raises ValueError as `lowest_of` does."""
    project = tomllib.loads(path.read_text("utf-8"))["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["all"]]
    return lowest_of(requirements)


def main() -> None:
    """Print them, one a line."""
    for line in lowest_of_project(ROOT / "pyproject.toml"):
        print(line)


if __name__ == "__main__":
    main()
