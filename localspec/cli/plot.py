"""The plot of `localspec bench`: the costs of steps and the gains of drafting."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import OptionError

if TYPE_CHECKING:
    from localspec.checks.bench import Bench


def check_plot(path: Path) -> None:
    """Raise OptionError, before anything is measured, if the plot could not be written."""
    if path.suffix not in (".png", ".html"):
        raise OptionError(f"--plot {path} is neither .png nor .html", "Choose one of them.")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"--plot {path}: the folder does not exist", "Create it first.")
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError(
            "--plot needs matplotlib", "Install it: python -m pip install 'localspec[plot]'."
        )


def write_plot(found: Bench, path: Path) -> None:
    """Write two charts into one file. Raises OptionError if that fails."""
    from matplotlib.figure import Figure  # an extra

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    costs, gains = figure.subplots(1, 2)
    ratios = () if found.costs is None else found.costs.ratios
    costs.plot(range(1, len(ratios) + 1), ratios, marker="o")
    costs.set(title="What a step costs", xlabel="tokens in a step", ylabel="target-only steps")
    acceptance = found.comparisons[0].acceptance_rate if found.comparisons else 0.0
    if predicted := found.predicted(acceptance):
        label = f"predicted at acceptance {acceptance:.2f}"
        gains.plot(list(predicted), list(predicted.values()), label=label)
    if found.sweep:
        gains.plot(list(found.sweep), list(found.sweep.values()), "o", label="measured")
    for comparison in found.comparisons:
        gains.axhline(
            comparison.speedup, linestyle="--", label=f"{comparison.name}, as it drafts"
        )
    gains.axhline(1.0, color="grey")
    gains.set(title="What it gains", xlabel="draft tokens", ylabel="times plain")
    if found.comparisons:
        gains.legend()
    try:
        if path.suffix == ".png":
            figure.savefig(path, format="png", dpi=150)
            return
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg")
        svg = drawing.getvalue()
        page = f'<!doctype html>\n<meta charset="utf-8">\n<title>localspec bench</title>\n{svg}'
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--plot {path}: {error}", "Choose another place.") from error
