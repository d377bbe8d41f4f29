"""`/set`: options of a conversation, by name and as a person writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import get_args

from localspec.cli.conversation import Conversation, ThoughtView
from localspec.errors import OptionError
from localspec.sampling.params import SamplingParams

_SWITCHES = {"on": True, "true": True, "off": False, "false": False}
_NONE = "none"
_OTHERS = ("seed", "max_tokens", "think")


def setting_names() -> Iterable[str]:
    """Everything that can be set."""
    return (*_sampling_names(), *_OTHERS)


def settings_lines(conversation: Conversation) -> list[str]:
    """Every setting with its value."""
    options = conversation.options
    values = {name: getattr(options.sampling, name) for name in _sampling_names()}
    values |= {"seed": options.seed, "max_tokens": options.max_tokens}
    values["think"] = conversation.think
    return [f"{name} {_written(value)}" for name, value in values.items()]


def change_setting(conversation: Conversation, name: str, text: str) -> str:
    """Set one; the line that says so. Raises OptionError for what is no setting or value."""
    options = conversation.options
    value: bool | float | str | None = text
    if name == "think":
        conversation.think = _thought_view(text)
    elif name == "seed":
        value = _optional_number(name, text)
        conversation.options = dataclasses.replace(options, seed=value)
    elif name == "max_tokens":
        value = _optional_number(name, text)
        conversation.options = dataclasses.replace(options, max_tokens=value)
    else:
        assert options.sampling is not None
        if name in _sampling_names():
            value = _value(name, text, getattr(options.sampling, name))
        elif name in SamplingParams.__dataclass_fields__:
            flag = name.replace("_", "-")
            raise OptionError(
                f"{name} is no single value", f"Give it when the chat begins: --{flag}."
            )
        sampling = options.sampling.changed({name: value})
        conversation.options = dataclasses.replace(options, sampling=sampling)
    return f"{name} {_written(value)}"


def _sampling_names() -> list[str]:
    """Fields of SamplingParams that are one number or switch."""
    defaults = SamplingParams()
    return [
        name
        for name in SamplingParams.__dataclass_fields__
        if isinstance(getattr(defaults, name), bool | int | float)
    ]


def _thought_view(text: str) -> ThoughtView:
    for view in get_args(ThoughtView):
        if text == view:
            chosen: ThoughtView = view
            return chosen
    raise OptionError(f"think is {text!r}", f"Choose {', '.join(get_args(ThoughtView))}.")


def _optional_number(name: str, text: str) -> int | None:
    return None if text == _NONE else int(_number(name, text, int))


def _value(name: str, text: str, old: object) -> bool | float:
    if isinstance(old, bool):
        if text not in _SWITCHES:
            raise OptionError(f"{name} is {text!r}", "Choose on or off.")
        return _SWITCHES[text]
    return _number(name, text, int if isinstance(old, int) else float)


def _number(name: str, text: str, kind: type[int | float]) -> int | float:
    try:
        return kind(text)
    except ValueError:
        word = "a whole number" if kind is int else "a number"
        raise OptionError(f"{name} is {text!r}", f"Give {word}.") from None


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return _NONE if value is None else str(value)
