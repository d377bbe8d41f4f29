"""The facts that a comparison's figures depend on."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from comparison.contender import Setup


def header(setup: Setup, command: Sequence[str]) -> str:
    """When, where, with what, on which files."""
    facts = header_facts(setup, command)
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


def header_facts(setup: Setup, command: Sequence[str]) -> dict[str, str]:
    """Date, machine, versions, files and settings, by name."""
    # A head may be in the target's file.
    files = dict.fromkeys(filter(None, (setup.target, setup.draft, setup.head)))
    return {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "machine": f"{_processor()}, {platform.system()} {platform.machine()}",
        "versions": ", ".join(
            f"{name} {version(name)}" for name in ("localspec", "llama-cpp-python")
        )
        + f", Python {platform.python_version()}",
        "files": ", ".join(path.name for path in files),
        "threads": str(setup.num_threads),
        "flash attention": setup.flash_attention,
        "command": f"`{shlex.join(command)}`",
    }


def _processor() -> str:
    """The processor's usual name, where Linux has it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"
