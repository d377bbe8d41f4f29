"""Offers to fetch a preset that a command needs and that is not here."""

from __future__ import annotations

import click

from localspec.cli.bars import fetch_with_bars, readable_bytes, shows_bars
from localspec.cli.download import ask_reuse
from localspec.cli.standard_input import on_terminal
from localspec.cli.waiting import waiting
from localspec.downloads import plan_download
from localspec.fetch import place_for
from localspec.hub import missing_files
from localspec.preset import hub_files
from localspec.presets import find_preset


def offer_download(name: str) -> None:
    """On a terminal, ask whether to fetch what is missing, and do so.

    Elsewhere, and after a no, it does nothing: loading the preset tells what to type.
    """
    preset = find_preset(name)
    if not missing_files(preset) or not (on_terminal() and shows_bars()):
        return
    with waiting(lambda: "Asking the hub …"):
        plan = plan_download(hub_files(preset.models), place_for(None), lambda _progress: None)
    question = (
        f"{name} is not on this machine. Fetch {readable_bytes(plan.num_bytes)} into "
        f"{plan.place.root} ({readable_bytes(plan.free_bytes)} free)?"
    )
    if click.confirm(question, default=True, err=True):
        fetch_with_bars(plan, reuse=ask_reuse(plan))
