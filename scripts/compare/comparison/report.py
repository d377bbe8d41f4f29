"""Outcomes as a Markdown table, below the facts they depend on."""

from __future__ import annotations

import platform
import shlex
import statistics
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from comparison.contender import Setup
from comparison.duel import Outcome, Side


def header(setup: Setup, command: Sequence[str]) -> str:
    """When, where, with what, on which files."""
    facts = header_facts(setup, command)
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


def header_facts(setup: Setup, command: Sequence[str]) -> dict[str, str]:
    """The same, each fact by its name."""
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


def table(outcomes: Sequence[Outcome]) -> str:
    """Medians (smallest … largest), accepted ÷ proposed, peak memory of the process."""
    lines = [
        "| what | one side | tokens/s | kept | MiB | against | tokens/s | kept | MiB | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        sides = " | ".join(_cells(side) for side in (outcome.ours, outcome.theirs))
        ratio = f"**{outcome.median_ratio:.2f}** ({_spread(outcome.ratios, 2)})"
        lines.append(f"| {outcome.title} | {sides} | {ratio} |")
    return "\n".join(lines)


def _cells(side: Side) -> str:
    speed = f"{statistics.median(side.speeds):.1f} ({_spread(side.speeds, 1)})"
    rate = side.acceptance_rate
    kept = "-" if rate is None else f"{rate:.2f}"
    peak = "-" if side.peak_bytes is None else f"{side.peak_bytes / 2**20:.0f}"
    return f"{side.name} | {speed} | {kept} | {peak}"


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{min(values):.{digits}f} … {max(values):.{digits}f}"


def _processor() -> str:
    """The processor's usual name, where Linux has it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"
