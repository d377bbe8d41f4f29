"""Puts the repository's address where a package index shows it, before a release is built.

    python scripts/develop/set_home.py https://github.com/someone/localspec v0.1.0

In the checkout README.md links to files beside it, and `[project.urls]` and the command that
clones the repository have OWNER for whose it is. On PyPI all of these have to be addresses. The
second argument is the tag that the links go to.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACEHOLDER = "https://github.com/OWNER/localspec"
RELATIVE = re.compile(r"\]\((?!https?:|#)([^)]+)\)")  # the target of a Markdown link


def with_home(folder: Path, home: str, tag: str) -> dict[Path, str]:
    """The text of pyproject.toml and README.md in `folder` with addresses below `home`."""
    project, readme = folder / "pyproject.toml", folder / "README.md"
    linked = RELATIVE.sub(rf"]({home}/blob/{tag}/\1)", readme.read_text("utf-8"))
    return {
        project: project.read_text("utf-8").replace(PLACEHOLDER, home),
        readme: linked.replace(PLACEHOLDER, home),
    }


if __name__ == "__main__":
    for path, text in with_home(ROOT, sys.argv[1].rstrip("/"), sys.argv[2]).items():
        path.write_text(text, "utf-8", newline="\n")
