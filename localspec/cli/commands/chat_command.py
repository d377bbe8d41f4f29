"""`localspec chat`"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from localspec.chat.session import check_opens
from localspec.cli import exit_codes
from localspec.cli.answer_output import note_limits, write_answer
from localspec.cli.completers import complete_session
from localspec.cli.help import Command
from localspec.cli.quoted_text import quoted_together, unquoted
from localspec.cli.screen import error_lines, in_flags, note, show_legend
from localspec.cli.session_summary import note_resumed
from localspec.cli.shared_options import (
    CACHE_DISK,
    PairOptions,
    constraint_options,
    model_argument,
    pair_options,
)
from localspec.cli.standard_streams import is_terminal, piped_lines
from localspec.cli.tool_calls import OWN_FILE, Toolbox, configured_servers
from localspec.errors import LocalspecError, OptionError

if TYPE_CHECKING:
    from localspec.cli.conversation import Conversation
    from localspec.streaming.answer import Answer
    from localspec.streaming.reply import Reply


@click.command(cls=Command)
@model_argument
@click.option(
    "--session",
    metavar="NAME",
    shell_complete=complete_session,
    help="Continue a saved conversation, or start one, and save it under this name.",
)
@click.option(
    "--keep-caches",
    is_flag=True,
    help="Keep caches on disk, up to 8 GB, so that a conversation resumes at once.",
)
@click.option(
    "--quiet",
    is_flag=True,
    help="Show no status line below answers; /stats shows all statistics.",
)
@click.option(
    "--no-think", is_flag=True, help="Ask a reasoning model to answer without thinking first."
)
@click.option(
    "--mcp",
    "mcp_source",
    is_flag=False,
    flag_value=OWN_FILE,
    metavar="[FILE]",
    help="Let the model call the tools of MCP servers: those of FILE, or of localspec's own "
    "file, see 'localspec mcp'. You are asked before each call.",
)
@click.option(
    "--mcp-tool",
    "mcp_tools",
    multiple=True,
    metavar="NAME",
    help="With --mcp: a tool, or all tools of a server. Repeatable. [default: all]",
)
@constraint_options
@pair_options
def chat(  # noqa: PLR0913  one argument for each option
    options: PairOptions,
    *,
    mcp_source: str | None,
    mcp_tools: tuple[str, ...],
    session: str | None,
    keep_caches: bool,
    quiet: bool,
    no_think: bool,
    constraints: dict[str, Any],
) -> None:
    """Chat with a model.

    On a terminal, Ctrl-C stops an answer, Ctrl-D or /quit leaves, and /help lists all commands.
    On a pipe, every line of the input is a message, and /exit ends the chat. Lines between
    \"\"\" and \"\"\" are one message. 'localspec sessions' lists saved conversations.

    MODEL is a preset, an alias, a GGUF file, hf:owner/repo/file.gguf or owner/repo:QUANT.
    Without one it is LOCALSPEC_MODEL, 'localspec models default', or the demo pair.

    \b
        localspec chat
        localspec chat qwen3-8b
        localspec chat --session french --system "You teach me French."
        localspec chat big.gguf --draft small.gguf --show-draft
        localspec chat qwen3-8b --mcp
    """
    # Errors of the template and the session come before a model is downloaded or loaded.
    template = options.template()
    if session is not None:
        check_opens(session)
    is_dialogue = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    with contextlib.ExitStack() as until_end:
        toolbox = None
        if mcp_source is not None:
            servers = until_end.enter_context(configured_servers(mcp_source, mcp_tools))
            toolbox = Toolbox(servers, can_ask=is_dialogue)
        cache_disk = 0
        if keep_caches:
            cache_disk = CACHE_DISK
        engine = until_end.enter_context(options.open_engine(cache_disk=cache_disk))
        # Imported here, because it loads NumPy, which libllama has to come before.
        from localspec.cli.conversation import Conversation

        write = _write_plain
        if is_dialogue:
            # Imported here: a pipe does not need the libraries that draw and edit.
            from localspec.cli.terminal.dialogue import converse, show_answer

            write = show_answer
        answer_options = options.answer_options(engine, **constraints)
        if toolbox is not None:
            toolbox.open(engine)
            answer_options = replace(answer_options, tools=toolbox.tools)
        conversation = Conversation(
            engine=engine,
            chat=engine.chat(template=template, think=not no_think),
            options=answer_options,
            write=write,
            show_draft=options.show_draft,
            is_quiet=quiet,
            toolbox=toolbox,
        )
        is_resumed = session is not None and conversation.open_session(session)
        if options.system is not None:
            conversation.chat.system = options.system
        if options.show_draft:
            show_legend()
        num_failed = 0
        if is_dialogue:
            _greet(conversation, session, is_resumed=is_resumed)
            converse(conversation)
        else:
            num_failed = _answer_input(conversation)
        is_saved = _save_at_end(conversation, is_dialogue=is_dialogue)
        if num_failed or not is_saved:
            raise click.exceptions.Exit(exit_codes.FAILED)


def _save_at_end(conversation: Conversation, *, is_dialogue: bool) -> bool:
    """Save the conversation if necessary. Returns False if it could not be saved.

    In a dialogue the user may try again.
    """
    conversation.save_at_end()
    question = "The conversation could not be saved and will be lost. Try again?"
    while is_dialogue and not conversation.is_kept:
        if not click.confirm(question, default=True, err=True):
            break
        conversation.save_at_end()
    return conversation.is_kept


def _greet(conversation: Conversation, session: str | None, *, is_resumed: bool) -> None:
    """Note the models, the most important keys, and the session."""
    note(f"{in_flags(conversation.engine.description)}.")
    note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.")
    if is_resumed:
        note_resumed(conversation)
    elif session is not None:
        note(f"{session} is a new session.")


def _answer_input(conversation: Conversation) -> int:
    """Answer each message on stdin, up to /exit. Returns the number of those that failed.

    A message is a line, or lines between quotes. Raises OptionError if options are at fault.
    """
    from localspec.cli.conversation import LEAVE

    num_failed = 0
    for text in quoted_together(piped_lines()):
        if text in LEAVE:
            break
        quoted = unquoted(text)
        try:
            if quoted is None:
                conversation.ask(text)
            elif quoted.strip():
                conversation.ask(quoted)
        except OptionError:
            raise
        except LocalspecError as error:
            # The messages after it are answered nevertheless.
            click.echo(error_lines(error), err=True)
            num_failed += 1
    return num_failed


def _write_plain(conversation: Conversation, answer: Answer) -> Reply:
    """Print an answer, and return its reply. Raises click.Abort if Ctrl-C stopped it."""
    reply = write_answer(answer, show_draft=conversation.show_draft)
    if reply.finish_reason == "cancelled":
        raise click.Abort
    note_limits(reply, conversation.options.max_tokens, conversation.engine)
    return reply
