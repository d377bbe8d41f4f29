"""The options of what drafts from memory, and the commands that list and wipe it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from localspec.cli.completion import complete_file
from localspec.cli.flags import keyword_option, with_all
from localspec.cli.waiting import waiting

if TYPE_CHECKING:
    from localspec.cli.options import PairOptions
    from localspec.engine.base import BaseEngine


class MemoryOptions(NamedTuple):
    """What drafts from memory. name: of a memory on disk; None keeps nothing there."""

    name: str | None
    paths: tuple[Path, ...]

    @contextlib.contextmanager
    def opened(self, options: PairOptions) -> Iterator[BaseEngine]:
        """The pair, loaded, that remembers the files; closed behind the block.

        Raises as `PairOptions.open_engine` and `BaseEngine.remember_files`.
        """
        with options.open_engine(memory=self.name or True) as engine:
            if self.paths:
                with waiting(lambda: "Reading what is to be remembered …"):
                    engine.remember_files(*self.paths)
            yield engine


def memory_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options. It receives them as `memory`."""

    @functools.wraps(command)
    def with_memory(*arguments: Any, **values: Any) -> Any:
        values["memory"] = MemoryOptions(values["memory"], values.pop("remember"))
        return command(*arguments, **values)

    return with_all(_OPTIONS, with_memory)


_OPTIONS = [
    keyword_option(
        "memory",
        "Keep what is asked and answered on this machine under that name, to draft later "
        "answers; see 'localspec sessions memories'. [default: only until the command ends]",
        metavar="NAME",
    ),
    click.option(
        "--remember",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE|DIR",
        shell_complete=complete_file,
        help="Text that drafts answers which repeat parts of it, such as the code that is "
        "worked on; read again as it changes. Repeatable.",
    ),
]
