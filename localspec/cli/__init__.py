"""The command line: commands, terminals and exit codes.

No other package imports click. Each command is in a module of `commands`, what several of them
share beside it, and a conversation on a terminal in `terminal`.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from typing import Any

import click

from localspec._version import __version__
from localspec.cli import exit_codes
from localspec.cli.commands.chat_command import chat
from localspec.cli.commands.completion import completion
from localspec.cli.commands.doctor import doctor
from localspec.cli.commands.download import download
from localspec.cli.commands.evaluation_commands import bench, verify
from localspec.cli.commands.explain import explain
from localspec.cli.commands.generate import generate
from localspec.cli.commands.kernels_command import kernels
from localspec.cli.commands.launch import LAUNCHERS
from localspec.cli.commands.mcp import mcp
from localspec.cli.commands.models import models
from localspec.cli.commands.serve import serve
from localspec.cli.commands.sessions import sessions
from localspec.cli.help import Group
from localspec.cli.progress_line import line_cleared
from localspec.cli.screen import error_lines, note, printable
from localspec.errors import LocalspecError, OptionError

_READER_GONE = (errno.EPIPE, errno.EINVAL)  # Windows raises the second


class _Main(Group):
    """Ends the process with an exit code of `exit_codes`; shows errors without a traceback."""

    def main(self, *args: Any, **keywords: Any) -> Any:
        """Run the command that is typed, and end the process with its exit code."""
        keywords["standalone_mode"] = False  # click raises its errors, and returns exit codes
        logging.lastResort = _WarningNotes(logging.WARNING)
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a character the terminal lacks is "?"
        try:
            code = super().main(*args, **keywords)
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            code = exit_codes.INTERRUPTED
        except LocalspecError as error:
            click.echo(error_lines(error), err=True)
            code = exit_codes.FAILED
            if isinstance(error, OptionError):
                code = exit_codes.USAGE
        except OSError as error:
            # Perhaps the program that reads our output has ended, or the disk is full. What is
            # left in the buffer goes to the null device: writing it at exit would fail again.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            if error.filename or error.errno not in _READER_GONE:
                file = printable(str(error.filename or "output"))
                click.echo(f"Error: {error.strerror}: {file}", err=True)
            code = exit_codes.FAILED
        sys.exit(code)


class _WarningNotes(logging.Handler):
    """Shows warnings as notes if no other handler does, as `logging.lastResort`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show the warning."""
        with line_cleared():
            note(record.getMessage())


# Commands of Ollama, LM Studio and llama.cpp, and what to type here.
_FOREIGN_COMMANDS = {
    **dict.fromkeys(
        ("run", "cli"),
        "localspec chat MODEL, or localspec generate -m MODEL PROMPT",
    ),
    **dict.fromkeys(("list", "ls"), "localspec models"),
    **dict.fromkeys(("pull", "get"), "localspec download PRESET"),
    **dict.fromkeys(("show", "info"), "localspec explain MODEL"),
    **dict.fromkeys(("rm", "remove", "delete"), "localspec models remove PRESET"),
    **dict.fromkeys(
        ("ps", "stop", "load", "unload"),
        "localspec serve MODEL, and Ctrl-C to stop it; nothing runs in the background",
    ),
    **dict.fromkeys(("server", "start"), "localspec serve"),
    "cp": "localspec models alias SHORT MODEL",
    "create": "localspec models add NAME --target MODEL",
    "import": "localspec models import DIR",
    "MODEL": "localspec chat MODEL",
    "help": "localspec --help",
    "version": "localspec --version",
}


@click.group(
    cls=_Main,
    foreign_commands=_FOREIGN_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Completion for bash, zsh and fish: localspec completion --help",
)
@click.version_option(__version__, prog_name="localspec")
def main() -> None:
    """Lossless speculative decoding for llama.cpp models on your own machine.

    \b
        localspec chat                 chat with the demo pair, offline
        localspec chat qwen3.5-9b      a preset, a file or a name on the hub
        localspec chat T.gguf --draft D.gguf
        localspec generate "Why is the sky blue?"
        localspec serve                a server for OpenAI's and other clients
        localspec claude qwen2.5-7b    Claude Code with a model of this machine
        localspec explain qwen3.5-9b   whether it fits and would be faster
        localspec download qwen3.5-9b  download a preset's files
        localspec sessions             saved conversations
        localspec mcp                  MCP servers, whose tools a model may call
        localspec doctor               what is installed, and what to improve
        localspec kernels              libllama for this processor
    """


_COMMANDS = (
    bench,
    chat,
    generate,
    mcp,
    sessions,
    serve,
    verify,
    download,
    models,
    explain,
    doctor,
    kernels,
    completion,
    *LAUNCHERS,
)
for _command in _COMMANDS:
    main.add_command(_command)
