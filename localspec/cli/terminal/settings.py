"""`/set`: shows and changes options of a conversation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, get_args

import click

from localspec.cli.conversation import Conversation, ThoughtView
from localspec.cli.flags import ours_for
from localspec.cli.options import SAMPLING_KEYWORDS
from localspec.errors import OptionError, perhaps
from localspec.sampling.params import SamplingParams, check_has_distribution
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from localspec.streaming.options import AnswerOptions

_SWITCHES = {"on": True, "true": True, "off": False, "false": False}
_NONE = "none"
_OTHERS = ("seed", "max_tokens", "think", "quiet")


def setting_names() -> Iterable[str]:
    """The names of all settings."""
    return (*_sampling_names(), *_OTHERS)


def settings_lines(conversation: Conversation, name: str) -> list[str]:
    """One setting with its value, or all settings if the name is empty.

    Raises OptionError for an unknown name.
    """
    options = conversation.options
    values = {each: getattr(options.sampling, each) for each in _sampling_names()}
    values |= {"seed": options.seed, "max_tokens": options.max_tokens}
    values |= {"think": conversation.think, "quiet": conversation.is_quiet}
    chosen = [_known(name)] if name else list(values)
    return [f"{each} {_written(values[each])}" for each in chosen]


def change_setting(conversation: Conversation, name: str, text: str) -> str:
    """Change a setting, and return a line that says so. Raises OptionError.

    name: one of `setting_names`, or an option of the command line.
    """
    name = _known(name)
    options = conversation.options
    value: Any = text
    if name == "think":
        views = get_args(ThoughtView)
        if text not in views:
            raise OptionError(f"think is {text!r}", f"Choose {', '.join(views)}.")
        conversation.think = value
        return f"{name} {text}"
    if name == "quiet":
        conversation.is_quiet = _switch(name, text)
        return f"{name} {_written(conversation.is_quiet)}"
    if name in _OTHERS:
        value = None if text == _NONE else _number(text, int)
        options = dataclasses.replace(options, **{name: value})
    else:
        assert options.sampling is not None
        value = _value(name, text, getattr(options.sampling, name))
        sampling = options.sampling.changed({name: value})
        options = dataclasses.replace(options, sampling=sampling)
    _check_answerable(options)
    conversation.options = options
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


def _check_answerable(options: AnswerOptions) -> None:
    """Raise OptionError for options that the next answer would refuse."""
    assert options.sampling is not None
    make_rule(
        options.rule,
        is_greedy=options.sampling.is_greedy,
        seed=options.seed,
        randomness=Randomness(options.seed or 0),
    )


def _sampling_names() -> list[str]:
    """Fields of SamplingParams that are one number or switch."""
    defaults = SamplingParams()
    return [
        name
        for name in SamplingParams.__dataclass_fields__
        if isinstance(getattr(defaults, name), bool | int | float)
    ]


def _value(name: str, text: str, old: object) -> bool | float | str:
    if isinstance(old, bool):
        return _switch(name, text)
    return _number(text, int if isinstance(old, int) else float)


def _switch(name: str, text: str) -> bool:
    if text not in _SWITCHES:
        raise OptionError(f"{name} is {text!r}", "Choose on or off.")
    return _SWITCHES[text]


def _number(text: str, kind: type[int | float]) -> int | float | str:
    """The number. Other text is returned as it is, and refused with the range later."""
    try:
        return kind(text)
    except ValueError:
        return text


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return _NONE if value is None else str(value)
