"""`localspec sessions memories`, `forget` and `wipe`: what is kept on this machine."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click
from click.shell_completion import CompletionItem

from localspec.cli.flags import json_option
from localspec.cli.json_output import write_json
from localspec.cli.quantities import counted, readable_bytes
from localspec.cli.standard_streams import is_terminal


def _complete_memory(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from localspec.engine.memory_file import kept_memories

    names = dict.fromkeys(kept.name for kept in kept_memories())
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command("memories")
@json_option("array with everything known")
def list_memories(*, as_json: bool) -> None:
    """List what --memory keeps: tokens, size, last use; one line for each tokenizer."""
    found = _found()
    if as_json:
        write_json(found)
        return
    if not found:
        click.echo("There are no memories yet; 'localspec chat --memory NAME' starts one.")
        return
    width = max(len(each["name"]) for each in found)
    for each in found:
        tokens = "unreadable" if each["num_tokens"] is None else f"{each['num_tokens']} tokens"
        used = f"{datetime.fromisoformat(each['last_used']):%Y-%m-%d %H:%M}"
        size = readable_bytes(each["size_bytes"])
        click.echo(f"{each['name']:<{width}}  {tokens:>16}  {size:>9}  {used}")


@click.command("forget")
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=_complete_memory
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget(*, names: tuple[str, ...], yes: bool) -> None:
    """Delete what --memory keeps under a name.

    A localspec that is running with that memory writes it again when it ends.
    """
    from localspec.engine.memory_file import check_memories, forget_memories

    check_memories(names)
    if not yes:
        if not is_terminal(sys.stdin):
            raise click.UsageError(
                "Nobody can be asked here. Use --yes to remove without asking."
            )
        click.confirm(f"Forget {counted(len(names), 'name')}?", abort=True, err=True)
    click.echo(f"{readable_bytes(forget_memories(names))} freed", err=True)


@click.command("wipe")
@click.option("--yes", is_flag=True, help="Do not ask.")
def wipe(*, yes: bool) -> None:
    """Delete the caches that 'localspec serve' keeps of conversations on this machine.

    The next answer of each reads it again. A server that is running goes on, and keeps what is
    asked from then on.
    """
    from localspec.engine.cache_store import kept_files, wipe_kept

    count = counted(len(kept_files()), "conversation")
    if not yes:
        if not is_terminal(sys.stdin):
            raise click.UsageError(
                "Nobody can be asked here. Use --yes to remove without asking."
            )
        click.confirm(f"Wipe the caches of {count}?", abort=True, err=True)
    click.echo(f"{readable_bytes(wipe_kept())} freed", err=True)


def _found() -> list[dict[str, Any]]:
    # Imported here, because every command imports this module, and NumPy takes its time.
    from localspec.engine.memory_file import kept_memories, num_tokens_in

    found = []
    for kept in kept_memories():
        state = kept.path.stat()
        last_used = datetime.fromtimestamp(state.st_mtime).astimezone()
        found.append(
            {
                "name": kept.name,
                "num_tokens": num_tokens_in(kept.path),
                "size_bytes": state.st_size,
                "last_used": last_used.isoformat(timespec="seconds"),
                "tokenizer": kept.tokenizer,
                "path": str(kept.path),
            }
        )
    return found
