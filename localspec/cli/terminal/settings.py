"""`/set`: shows and changes options of a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import click

from localspec.cli.conversation import Conversation, ThoughtView
from localspec.cli.flags import ours_for
from localspec.cli.options import SAMPLING_KEYWORDS
from localspec.errors import OptionError, perhaps
from localspec.sampling.params import SamplingParams, check_has_distribution
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import rule_name

_SWITCHES = {"on": True, "true": True, "off": False, "false": False}
_NONE = "none"
_DEFAULTS = SamplingParams()
# Fields of SamplingParams that are one number or switch.
_SAMPLING = [
    name
    for name in SamplingParams.__dataclass_fields__
    if isinstance(getattr(_DEFAULTS, name), bool | int | float)
]
_OF_ANSWERS = ("seed", "max_tokens")  # None is their default


def setting_names() -> Iterable[str]:
    """The names of all settings."""
    return (*_SAMPLING, *_OF_ANSWERS, "think", "quiet")


def settings_lines(conversation: Conversation, name: str) -> list[str]:
    """A setting with its value, or all settings if the name is empty.

    Raises OptionError for an unknown name.
    """
    options = conversation.options
    values = {each: getattr(options.sampling, each) for each in _SAMPLING}
    values |= {each: getattr(options, each) for each in _OF_ANSWERS}
    values |= {"think": conversation.think, "quiet": conversation.is_quiet}
    chosen = [_known(name)] if name else list(values)
    return [f"{each} {_written(values[each])}" for each in chosen]


def change_setting(conversation: Conversation, name: str, text: str) -> str:
    """Change a setting, and return a line that says so. Raises OptionError.

    name: one of `setting_names`, or an option of the command line.
    """
    name = _known(name)
    value = _value(name, text)
    options, sampling = conversation.options, conversation.options.sampling
    assert sampling is not None
    if name == "think":
        conversation.think = value
    elif name == "quiet":
        conversation.is_quiet = value
    elif name in _OF_ANSWERS:
        options = replace(options, **{name: value})
    else:
        sampling = sampling.changed({name: value})
    # These raise what the next answer would.
    Randomness(options.seed or 0)
    rule_name(options.rule, is_greedy=sampling.is_greedy, seed=options.seed)
    conversation.options = replace(options, sampling=sampling)
    return f"{name} {_written(value)}"


def _known(name: str) -> str:
    """The setting that a name means. Raises OptionError if there is none."""
    written = name.removeprefix("--").replace("-", "_")
    setting = SAMPLING_KEYWORDS.get(written, written)
    if setting in setting_names():
        return setting
    for option in click.get_current_context().command.params:
        flag = option.opts[0]
        is_meant = setting == option.name or name.removeprefix("--") == flag.removeprefix("--")
        if is_meant and flag.startswith("--") and not getattr(option, "hidden", False):
            raise OptionError(
                f"{flag} cannot be changed during a chat",
                f"Give it at the start: localspec chat {flag} …",
            )
    check_has_distribution(setting)
    ours = next(iter(ours_for("--" + written.replace("_", "-"))), setting)
    meant = perhaps(ours.removeprefix("--").replace("-", "_"), (*setting_names(), "ctx"))
    raise OptionError(f"there is no setting {name!r}", f"{meant}/set lists all.")


def _value(name: str, text: str) -> Any:
    """The value that a text means. A text that is no number is refused later, by the range."""
    if name == "think":
        views = get_args(ThoughtView)
        if text not in views:
            raise OptionError(f"think is {text!r}", f"Choose {', '.join(views)}.")
        return text
    kind: Any = bool if name == "quiet" else type(getattr(_DEFAULTS, name, 0))
    if kind is bool:
        if text not in _SWITCHES:
            raise OptionError(f"{name} is {text!r}", "Choose on or off.")
        return _SWITCHES[text]
    if name in _OF_ANSWERS and text == _NONE:
        return None
    try:
        return kind(text)
    except ValueError:
        return text


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return _NONE if value is None else str(value)
