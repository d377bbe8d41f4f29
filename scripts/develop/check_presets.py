"""Compares every pin of the presets with the hub: repository, revision, size, hash.

    python scripts/develop/check_presets.py [PRESET…]

Run it before a release; it needs internet access. HF_ENDPOINT names another hub. It sends one
request per repository and revision. The exit code is 1 if a pin is wrong or a file has none.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from localspec.errors import LocalspecError
from localspec.hub.api import list_files
from localspec.hub.hub_file import HubFile
from localspec.presets.presets import find_preset, hub_files, load_presets


def problems_of(file: HubFile, served: dict[str, HubFile]) -> list[str]:
    """The faults of a file's pin, compared with the files that the hub has there."""
    found = served.get(file.file)
    if found is None:
        return ["the repository has no such file at that revision"]
    problems = []
    for what in ("size_bytes", "sha256"):
        pinned = getattr(file, what)
        actual = getattr(found, what)
        if pinned is None:
            problems.append(f"{what} is not pinned; the hub says {actual}")
        elif pinned != actual:
            problems.append(f"{what} is pinned to {pinned}; the hub says {actual}")
    if file.revision is None:
        problems.append("revision is not pinned")
    return problems


def main(names: list[str]) -> int:
    """Print a line for each file; 1 if one of them has a problem."""
    presets = [find_preset(name) for name in names] or list(load_presets().values())
    by_commit: dict[tuple[str, str | None], set[HubFile]] = defaultdict(set)
    for file in hub_files([model for preset in presets for model in preset.models]):
        by_commit[file.repo, file.revision].add(file)
    num_bad = 0
    for (repo, revision), files in sorted(by_commit.items(), key=str):
        try:
            served = {file.file: file for file in list_files(repo, revision)}
        except LocalspecError as error:
            print(f"BAD {repo} at {revision or 'main'}: {error}")
            num_bad += len(files)
            continue
        for file in sorted(files, key=str):
            problems = problems_of(file, served)
            num_bad += bool(problems)
            verdict = "BAD" if problems else "ok "
            print(f"{verdict} {repo} {file.file} {'; '.join(problems)}".rstrip())
    return int(num_bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
