"""`localspec completion`"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from localspec.cli.help import Command


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> None:
    """Print the completion script for a shell.

    Tab then completes commands, options and their values, presets (those on this machine
    first), sessions and files. To turn it on for new shells:

    \b
        localspec completion fish > ~/.config/fish/completions/localspec.fish
        echo 'eval "$(localspec completion bash)"' >> ~/.bashrc
        echo 'eval "$(localspec completion zsh)"' >> ~/.zshrc
    """
    script_of = get_completion_class(shell)
    assert script_of is not None
    root = context.find_root().command
    click.echo(script_of(root, {}, "localspec", "_LOCALSPEC_COMPLETE").source())
