"""The commands of a chat: a function for every command."""

from __future__ import annotations

import base64
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click

from localspec.chat.attachment import Attachment, read_attachment
from localspec.chat.session import session_names
from localspec.cli.conversation import LEAVE, Conversation, ThoughtView
from localspec.cli.screen import counted, excerpt, note, show_legend, stats_lines
from localspec.cli.session_summary import note_resumed, session_lines
from localspec.cli.shared_options import SAMPLING_KEYWORDS
from localspec.cli.terminal.line_editor import Values, can_edit
from localspec.errors import OptionError, did_you_mean
from localspec.keywords import keyword_for
from localspec.sampling.params import SamplingParams, check_has_distribution
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import rule_name

# A path such as /etc/hosts is a message, and so is a line that begins with a space.
_COMMAND = re.compile(r"(/(?:[a-z]+|\?))(?:\s+(.*))?", re.DOTALL)
_ALIASES = {
    "/?": "/help",
    "/image": "/file",
    "/sessions": "/load",
}
_ALIASES |= dict.fromkeys((*LEAVE, "exit", "quit"), "/quit")
_SEPARATOR = re.compile(r"[\s=]+")  # between a setting and its value
_MAX_COPIED = 74_000  # bytes; many terminals ignore a longer sequence
_EXCERPT = 60  # characters of a removed question that are shown
# The values of a switch, for /set.
_SWITCHES = {
    "on": True,
    "true": True,
    "off": False,
    "false": False,
}
_NONE = "none"
_DEFAULTS = SamplingParams()


def _scalar_fields() -> Iterator[str]:
    """The names of the fields of SamplingParams that are a number or a switch, not a list."""
    for name in SamplingParams.__dataclass_fields__:
        if isinstance(getattr(_DEFAULTS, name), bool | int | float):
            yield name


_SAMPLING = list(_scalar_fields())
# Fields of AnswerOptions that /set changes, each with the meaning of None.
_ANSWER_OPTIONS = {"seed": "random", "max_tokens": "no limit"}
_SETTINGS = (*_SAMPLING, *_ANSWER_OPTIONS, "think", "quiet")


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """A command that the user types in a chat, such as /help."""

    run: Callable[[Conversation, str], None]
    """Runs it, with the text of its argument."""

    argument: str
    """The argument as /help shows it."""

    help: str
    values: Values = tuple
    """Gives the completions of the argument; None for paths."""


class Leave(Exception):
    """The person wants to end the conversation."""


def run_command(conversation: Conversation, text: str) -> bool:
    """Run a typed command, and save the conversation. Returns False if the text is a message.

    If the user was editing the last question, the editing ends.
    Raises OptionError for an unknown command, Leave for /quit, and the command's own errors.
    """
    text = text.rstrip()
    words = _COMMAND.fullmatch(_ALIASES.get(text, text))  # "exit" alone is a command, too
    if words is None:
        return False
    name = _ALIASES.get(words[1], words[1])
    argument = (words[2] or "").strip()
    command = COMMANDS.get(name)
    if command is None:
        guess = did_you_mean(name, COMMANDS)
        raise OptionError(
            f"there is no command {name}",
            f"{guess}/help lists all commands. To send this text as a message, begin it with a "
            "space.",
        )
    conversation.is_editing = False
    command.run(conversation, argument)
    conversation.save()
    return True


def _show_help(_conversation: Conversation, _argument: str) -> None:
    """List the commands and keys."""
    # In a narrow window the explanations keep a column of their own.
    formatter = click.HelpFormatter(width=shutil.get_terminal_size().columns)
    rows = []
    for name, command in COMMANDS.items():
        rows.append((f"{name} {command.argument}", command.help))
    formatter.write_dl(rows)
    note(
        f"{formatter.getvalue()}"
        "Alt-Enter, or a backslash at the end of a line, continues the message on a new line.\n"
        '""" begins a message of several lines, and """ ends it.\n'
        "With a space before it, a command is sent as a message.\n"
        "Ctrl-C stops an answer or clears the line; Ctrl-D leaves."
    )


def _show_stats(conversation: Conversation, _argument: str) -> None:
    """Show the statistics of the last answer. Raises OptionError if there is none."""
    if conversation.last_reply is None:
        raise OptionError("there is no answer yet", "Ask something first.")
    context_length = conversation.engine.context_length
    note("\n".join(stats_lines(conversation.last_reply.stats, context_length)))


def _handle_set(conversation: Conversation, argument: str) -> None:
    """Change a setting; without a value, show it; without a name, show all settings.

    Raises OptionError.
    """
    name, *values = _SEPARATOR.split(argument, maxsplit=1)
    if f"/{name}" in COMMANDS:
        raise OptionError(f"{name} is not a setting", f"It is a command: /{name}.")
    value = "".join(values)  # none or one
    if value:
        note(_change_setting(conversation, name, value))
    else:
        note("\n".join(_settings_lines(conversation, name)))


def _settings_lines(conversation: Conversation, name: str) -> list[str]:
    """A line with a setting and its value, or such lines for all settings if `name` is "".

    Raises OptionError for an unknown name.
    """
    options = conversation.options
    values = {setting: getattr(options.sampling, setting) for setting in _SAMPLING}
    values |= {setting: getattr(options, setting) for setting in _ANSWER_OPTIONS}
    values |= {"think": conversation.think, "quiet": conversation.is_quiet}
    settings = list(values)
    if name:
        settings = [_known_setting(name)]
    return [f"{setting} {_value_in_words(setting, values[setting])}" for setting in settings]


def _change_setting(conversation: Conversation, name: str, text: str) -> str:
    """Change a setting. Returns a line with its new value.

    Raises OptionError for an unknown setting or a wrong value.

    Args:
        conversation: the conversation whose setting it is.
        name: one of `_SETTINGS`, or an option of the command line.
        text: the value, as it was typed.
    """
    name = _known_setting(name)
    value = _setting_value(name, text)
    options = conversation.options
    sampling = conversation.options.sampling
    assert sampling is not None
    if name == "think":
        conversation.think = value
    elif name == "quiet":
        conversation.is_quiet = value
    elif name in _ANSWER_OPTIONS:
        options = replace(options, **{name: value})
    else:
        sampling = sampling.changed({name: value})
    # These raise the errors that the next answer would raise.
    Randomness(options.seed or 0)
    rule_name(options.rule, is_greedy=sampling.is_greedy, seed=options.seed)
    conversation.options = replace(options, sampling=sampling)
    return f"{name} {_value_in_words(name, value)}"


def _known_setting(name: str) -> str:
    """The setting that a typed name means. Raises OptionError if there is none."""
    typed = name.removeprefix("--").replace("-", "_")
    setting = SAMPLING_KEYWORDS.get(typed, typed)
    if setting in _SETTINGS:
        return setting
    check_has_distribution(setting)  # raises for a sampler that drafting cannot have
    guess = did_you_mean(keyword_for(setting), _SETTINGS)
    hint = f"{guess}/set lists all settings; others are set when starting the chat."
    raise OptionError(f"there is no setting {name!r}", hint)


def _setting_value(name: str, text: str) -> Any:
    """The value of a setting that a typed text means.

    None for no seed or limit. Raises OptionError for a wrong view of thoughts or a wrong
    switch. If the value has to be a number and the text is not one, the text is returned: the
    check of the changed settings refuses it.
    """
    if name == "think":
        views = get_args(ThoughtView)
        if text not in views:
            raise OptionError(f"think is {text!r}", f"Choose {', '.join(views)}.")
        return text
    kind: Any = type(getattr(_DEFAULTS, name, 0))  # int for the fields of AnswerOptions
    if name == "quiet" or kind is bool:
        if text not in _SWITCHES:
            raise OptionError(f"{name} is {text!r}", "Choose on or off.")
        return _SWITCHES[text]
    if name in _ANSWER_OPTIONS and text in (_NONE, _ANSWER_OPTIONS[name]):
        return None
    try:
        return kind(text)
    except ValueError:
        return text


def _value_in_words(name: str, value: object) -> str:
    """A setting's value as /set shows it; None is shown by its meaning, such as "no limit"."""
    if isinstance(value, bool):
        if value:
            return "on"
        return "off"
    if value is None:
        return _ANSWER_OPTIONS[name]
    return str(value)


def _handle_system(conversation: Conversation, argument: str) -> None:
    """Change the system message if there is an argument ("none" removes it), and show it."""
    if argument == "none":
        conversation.chat.system = None
    elif argument:
        conversation.chat.system = argument
    note(f"System message: {conversation.chat.system or 'none'}")


def _start_editing(conversation: Conversation, _argument: str) -> None:
    """Let the next input line start with the last question. Raises OptionError."""
    if not can_edit():
        raise OptionError("this terminal cannot edit text", "Use /undo, then ask again.")
    conversation.edited_text()  # raises if there is no question
    conversation.is_editing = True


def _quit(_conversation: Conversation, _argument: str) -> None:
    raise Leave


def _handle_undo(conversation: Conversation, _argument: str) -> None:
    """Remove the last turn, and show the beginning of its question."""
    question = conversation.chat.undo()
    note(f"Removed: {excerpt(question, _EXCERPT)}")


def _handle_save(conversation: Conversation, argument: str) -> None:
    """Save as a session of that name; without a name, as the conversation's own session.

    Raises OptionError if there is neither, and what `Conversation.keep_as` raises.
    """
    name = argument or conversation.session
    if name is None:
        raise OptionError("the session has no name yet", "Give one: /save NAME.")
    question = f"There is another session {name}. Replace it?"
    if conversation.keep_as(name, may_replace=lambda: _user_agrees(question)):
        note(f"Saved as {conversation.session}, and saved again after every answer.")
    else:
        note("Nothing was saved. /load NAME continues that session.")


def _handle_load(conversation: Conversation, argument: str) -> None:
    """Continue the session of that name; without a name, list all sessions."""
    if not argument:
        note("\n".join(session_lines()))
        return
    question = "This conversation is not saved and would be lost. Continue?"
    if conversation.load(argument, may_drop=lambda: _user_agrees(question)):
        note_resumed(conversation)
    else:
        note("Nothing was loaded. /save NAME saves this conversation.")


def _user_agrees(question: str) -> bool:
    """Ask a question. Returns whether the user answers yes; Ctrl-C and Ctrl-D mean no."""
    try:
        return click.confirm(question, default=False, err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def _handle_draft(conversation: Conversation, argument: str) -> None:
    """Turn drafting on or off, and show which it is. Raises OptionError."""
    if conversation.engine.drafting.is_off:
        raise OptionError(
            "drafting cannot be turned on in this chat",
            "Start it without --no-draft.",
        )
    if argument not in ("", "on", "off"):
        raise OptionError(f"the draft cannot be {argument!r}", "Choose on or off.")
    if argument == "on":
        conversation.options = replace(conversation.options, draft_tokens=None)
    elif argument == "off":
        conversation.options = replace(conversation.options, draft_tokens=0)
    state = "off"
    if conversation.options.draft_tokens is None:
        state = "on"
    note(f"Draft {state}.")


def _handle_clear(conversation: Conversation, _argument: str) -> None:
    """Remove all turns and attached files, and forget which tool calls were allowed."""
    conversation.chat.clear()
    conversation.attachments.clear()
    conversation.forget_allowed_calls()
    note("The conversation starts over; the system message stays.")


def _copy_answer(conversation: Conversation, _argument: str) -> None:
    """Send the last answer to the clipboard, by an escape sequence of the terminal (OSC 52).

    Raises OptionError if there is no answer, or if it is too long.
    """
    messages = conversation.chat.messages
    if not messages or messages[-1]["role"] != "assistant":
        raise OptionError("there is no answer to copy", "Ask something first.")
    text = messages[-1]["content"]
    data = text.encode(errors="replace")
    if len(data) > _MAX_COPIED:
        raise OptionError(
            f"the answer has {len(data)} bytes; a terminal accepts at most {_MAX_COPIED}",
            "Select it with the mouse.",
        )
    # Base64 has no character that could end the escape sequence.
    encoded = base64.b64encode(data).decode()
    click.echo(f"\x1b]52;c;{encoded}\x07", nl=False, color=True)
    size = counted(len(text), "character")
    note(f"Sent {size} to the clipboard (if the terminal supports OSC 52).")


def _toggle_show_draft(conversation: Conversation, _argument: str) -> None:
    """Mark tokens by where they came from, or stop that."""
    conversation.show_draft = not conversation.show_draft
    if conversation.show_draft:
        show_legend()
    else:
        note("Answers are rendered as Markdown again.")


def attach(conversation: Conversation, attachment: Attachment) -> None:
    """Attach a text or a picture to the next message, and note its size.

    Raises what `Conversation.attach` raises.
    """
    conversation.attach(attachment)
    size = counted(len(attachment.text), "character")
    picture = attachment.picture
    vision = conversation.engine.vision
    if picture is not None and vision is not None:
        num_tokens = len(vision.cells(picture))
        size = f"{picture.width} by {picture.height} pixels, {counted(num_tokens, 'token')}"
    note(f"{attachment.name} ({size}) is attached to the next message.")


def _handle_file(conversation: Conversation, argument: str) -> None:
    """Attach a file; "none" removes all files; without an argument, list the attached ones."""
    if argument == "none":
        conversation.attachments.clear()
    elif argument:
        path = Path(os.path.expanduser(argument))
        attach(conversation, read_attachment(path))
        return
    names = conversation.file_names() or "none"
    note(f"Files for the next message: {names}")


COMMANDS = {
    "/help": ChatCommand(_show_help, "", "list the commands"),
    "/stats": ChatCommand(_show_stats, "", "statistics of the last answer"),
    "/set": ChatCommand(
        _handle_set,
        "[NAME VALUE]",
        "sampling, seed, max_tokens, think, quiet",
        lambda: _SETTINGS,
    ),
    "/system": ChatCommand(_handle_system, "[TEXT|none]", "the system message"),
    "/edit": ChatCommand(_start_editing, "", "change the last question and ask it again"),
    "/continue": ChatCommand(
        lambda conversation, _: conversation.continue_answer(),
        "",
        "continue an answer that was cut off or stopped",
    ),
    "/retry": ChatCommand(
        lambda conversation, _: conversation.retry(),
        "",
        "answer the last question again",
    ),
    "/undo": ChatCommand(_handle_undo, "", "remove the last turn"),
    "/save": ChatCommand(
        _handle_save, "[NAME]", "save the conversation as a session", session_names
    ),
    "/load": ChatCommand(
        _handle_load, "[NAME]", "continue a session, or list all", session_names
    ),
    "/draft": ChatCommand(
        _handle_draft, "[on|off]", "turn drafting on or off", lambda: ("on", "off")
    ),
    "/clear": ChatCommand(_handle_clear, "", "remove all turns; the system message stays"),
    "/copy": ChatCommand(_copy_answer, "", "copy the last answer to the clipboard"),
    "/show": ChatCommand(
        _toggle_show_draft, "", "mark tokens by where they came from, on or off"
    ),
    "/file": ChatCommand(
        _handle_file,
        "[PATH|none]",
        "attach a text or an image to the next message",
        None,
    ),
    "/quit": ChatCommand(_quit, "", "leave the chat; also /exit, /bye, exit and quit"),
}
