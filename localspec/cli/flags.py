"""Flags and types of options, most of which stand for keywords of the library."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from localspec.chat.attachment import read_text_file
from localspec.errors import OptionError

# Keywords whose option has another name, which is llama.cpp's or shorter.
_USUAL_FLAGS = {
    "context_length": "--ctx",
    "num_threads": "--threads",
    "num_batch_threads": "--threads-batch",
    "num_gpu_layers": "--gpu-layers",
    "flash_attention": "--flash-attn",
    "use_mmap": "--mmap",
    "use_mlock": "--mlock",
    "repetition_penalty": "--repeat-penalty",
    "penalty_last_n": "--repeat-last-n",
    "template": "--chat-template",
}

Decorator = Callable[[Any], Any]


def with_all(options: Sequence[Decorator], command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with options, which --help lists in this order."""
    for decorate in reversed(options):
        command = decorate(command)
    return command


def read_option_file(flag: str, path: Path, hint: str = "Give a text file.") -> str:
    """The text in a file that an option names. Raises OptionError if it cannot be read."""
    try:
        return read_text_file(path)
    except (OSError, ValueError) as error:
        raise OptionError(f"{flag} {path}: {error}", hint) from error


def flags_of(keyword: str) -> list[str]:
    """The flags that stand for a keyword: the usual one first, then the keyword with dashes."""
    flag = "--" + keyword.replace("_", "-")
    usual = _USUAL_FLAGS.get(keyword, flag)
    if usual == flag:
        return [flag]
    return [usual, flag]


def usual_flag(keyword: str) -> str:
    """The flag of a keyword that help and errors name."""
    return flags_of(keyword)[0]


class Option(click.Option):
    """An option that --help shows below a heading."""

    def __init__(self, *arguments: Any, heading: str, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.heading = heading


def option(name: str, *, flags: Sequence[str] = (), **more: Any) -> Decorator:
    """A decorator that gives a command an `Option`.

    Args:
        name: the command's parameter that gets the option's value.
        flags: the flags to type. [default: `flags_of(name)`]
        more: keywords for `Option`.
    """
    flags = flags or flags_of(name)
    return click.option(*flags, name, cls=Option, **more)


def field_type(owner: type, field: str) -> dict[str, Any]:
    """Keywords for `option` that follow from the type of a dataclass's field.

    The option's value is None if the user does not give it, or False for a `bool` without None.
    """
    kind = get_type_hints(owner)[field]
    is_optional = False
    if get_origin(kind) in (Union, types.UnionType):
        [kind] = set(get_args(kind)) - {type(None)}
        is_optional = True
    if kind is bool and is_optional:
        flag = usual_flag(field)
        return {"flags": [f"{flag}/--no-{flag.removeprefix('--')}"], "default": None}
    if kind is bool:
        return {"is_flag": True}
    if kind is float:
        return {"type": Number()}
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind))}
    return {"type": kind}


class Number(click.types.FloatParamType):
    """A finite number: click's own types accept NaN and infinity."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Read the number of an option. Raises click.BadParameter."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class NumberRange(Number, click.FloatRange):
    """A finite number in a range."""


class Parsed(click.ParamType[Any]):
    """The type of an option whose text is converted by a function.

    Args:
        read: converts the text; raises ValueError for a wrong text.
        complaint: what follows the wrong text in the error message, such as "is not a size".
    """

    name = "text"

    def __init__(self, read: Callable[[str], Any], complaint: str) -> None:
        self._read = read
        self._complaint = complaint

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Read the text of an option. Raises click.BadParameter."""
        if not isinstance(value, str):
            return value  # the default
        try:
            return self._read(value)
        except ValueError:
            self.fail(f"{value!r} {self._complaint}", param, ctx)
