"""Writes the repository's address wherever a package index shows it, before a release is built.

    python scripts/develop/set_home.py https://github.com/someone/localspec v0.1.0

In the checkout, README.md links to files by relative paths, and `[project.urls]`, README.md and
pages of docs/ contain the placeholder OWNER. On PyPI all of these have to be full addresses.
The second argument is the tag that the links point to.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACEHOLDER = "https://github.com/OWNER/localspec"
RELATIVE = re.compile(r"\]\((?!https?:|#)([^)]+)\)")  # the target of a Markdown link


def with_home(folder: Path, home: str, tag: str) -> dict[Path, str]:
    """pyproject.toml, README.md and pages of docs/ in `folder` with addresses below `home`."""
    project = folder / "pyproject.toml"
    readme = folder / "README.md"
    linked = RELATIVE.sub(rf"]({home}/blob/{tag}/\1)", readme.read_text("utf-8"))
    texts = {project: project.read_text("utf-8"), readme: linked}
    pages = {page: page.read_text("utf-8") for page in sorted(folder.glob("docs/*.md"))}
    texts |= {page: text for page, text in pages.items() if PLACEHOLDER in text}
    return {path: text.replace(PLACEHOLDER, home) for path, text in texts.items()}


if __name__ == "__main__":
    for path, text in with_home(ROOT, sys.argv[1].rstrip("/"), sys.argv[2]).items():
        path.write_text(text, "utf-8", newline="\n")
