"""`localspec kernels`: libllama, compiled for this processor."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from localspec.cli.help import Command
from localspec.cli.json_output import json_option, write_json
from localspec.cli.screen import duration, readable_bytes, say
from localspec.cli.signal_handlers import leave_on_termination
from localspec.cli.standard_streams import is_terminal
from localspec.errors import OptionError

if TYPE_CHECKING:
    from localspec.kernels.making import BuildPlan
    from localspec.kernels.steps import OnStep
    from localspec.llama.own_build import OwnBuild


@click.command(cls=Command)
@click.option("--remove", is_flag=True, help="Remove what was compiled, and use it no more.")
@click.option("--zig", is_flag=True, help="Compile with zig, even if there is a compiler.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option("object with what is there; with --yes, after compiling it")
def kernels(
    *,
    remove: bool,
    zig: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Compile libllama for this processor, and use it if it is faster.

    A ready-made libllama has kernels that many processors can run. One that is compiled here
    uses all instructions of this one, and reads prompts up to three times as fast. The source
    is that of the installed llama-cpp-python, pinned by its sha256. The compiler is gcc or
    clang if there is one, or else zig, which comes as a Python package and is removed again.

    What was compiled is used only if it multiplies right and is faster, both of which are
    tried here. It lies in the user's data folder, and changes nothing that is installed.

    \b
        localspec kernels
        localspec kernels --yes
        localspec kernels --remove
    """
    from localspec.llama import own_build

    if remove and (zig or yes):
        raise OptionError("--remove goes with neither --yes nor --zig", "Leave these out.")
    if remove:
        removed = own_build.remove_builds()
        _report_removal(removed, as_json=as_json)
        return
    # Imported here, since other commands do not need it at once.
    from localspec.kernels.making import make_build, plan_build
    from localspec.llama.binding import installed_library

    build = own_build.usable_build(installed_library().origin)
    if build is None and (yes or not as_json):
        plan = plan_build(only_packages=zig)
        _describe_plan(plan)
        if not yes:
            _confirm()
        # A closed terminal ends the compilers, too, and leaves nothing.
        with leave_on_termination(_exit_like_signal), _progress_shown() as on_progress:
            build = make_build(plan, on_progress)
    if as_json:
        write_json({"build": build, "installed": installed_library().origin})
        return
    assert build is not None
    _report(build)


def _exit_like_signal(number: int) -> None:
    """Exit with the code of a process that this signal has ended."""
    sys.exit(128 + number)


def _describe_plan(plan: BuildPlan) -> None:
    """Say what will be compiled, downloaded and stored, and how long it takes."""
    download = readable_bytes(plan.download_bytes)
    packages = "".join(f", and {package}" for package in plan.toolchain.packages)
    say(
        f"This compiles libllama with {plan.toolchain.name}, for this processor alone, in "
        f"about {duration(plan.seconds)}.\n"
        f"It downloads about {download}: llama-cpp-python's source{packages}.\n"
        f"It needs {readable_bytes(plan.disk_bytes)} of disk while it compiles "
        f"({readable_bytes(plan.free_bytes)} free), and some 20 MB then: {plan.folder}"
    )


def _confirm() -> None:
    """Ask whether to compile. Raises click.Abort after a no, OptionError without a terminal."""
    if not is_terminal(sys.stdin):
        raise OptionError("there is no terminal to ask on", "To compile it: --yes.")
    click.confirm(
        "Go ahead?",
        default=True,
        abort=True,
        err=True,
    )


def _report(build: OwnBuild) -> None:
    """Print where the compiled libllama is, and how much faster its matrix products are."""
    click.echo(f"In use from now on: {build.libraries}")
    mean_speedup = statistics.geometric_mean(build.speedups.values())
    click.echo(
        f"Matrix products are {mean_speedup:.2f} times as fast as with {build.instead_of}, "
        "which it replaces:"
    )
    for product, speedup in build.speedups.items():
        click.echo(f"  {product:<20}{speedup:.2f}")
    click.echo("'localspec kernels --remove' removes it.")


def _report_removal(removed: list[OwnBuild], *, as_json: bool) -> None:
    """Print the folders that were removed."""
    if as_json:
        write_json({"removed": [build.folder for build in removed]})
        return
    for build in removed:
        click.echo(f"Removed {build.folder}")
    if not removed:
        click.echo("There is nothing to remove.")


@contextmanager
def _progress_shown() -> Iterator[OnStep]:
    """Yields a function that shows the progress of compiling.

    It draws a bar on a terminal. On a pipe it prints a line for each kind of work, and for each
    tenth of it.
    """
    if not is_terminal(sys.stderr):
        yield _progress_lines()
        return
    # Imported here, because every command imports this module, and should start fast.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn

    bar = Progress(
        "{task.description}",
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task("", total=None)

    def show(step: str, share: float | None) -> None:
        if share is None:  # unknown: the bar has no end
            bar.update(
                task,
                description=step,
                total=None,
                completed=0.0,
            )
        else:
            bar.update(
                task,
                description=step,
                total=1.0,
                completed=share,
            )

    with bar:
        yield show


def _progress_lines() -> OnStep:
    """A function that prints each step, and each tenth of it if the share is known."""
    last_line = ""

    def show(step: str, share: float | None) -> None:
        nonlocal last_line
        line = step
        if share is not None:
            num_tenths = int(share * 10)
            line = f"{step}: {num_tenths * 10} %"
        if line != last_line:
            say(line)
            last_line = line

    return show
