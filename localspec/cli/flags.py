"""Options of commands that stand for keywords of the library: one name, type and default."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from localspec.chat.text_file import read_text_file
from localspec.errors import OptionError

# Keywords whose option is better known by another name, which is that of llama.cpp or shorter.
_USUAL_FLAGS = {
    "context_length": "--ctx",
    "num_threads": "--threads",
    "num_batch_threads": "--threads-batch",
    "num_gpu_layers": "--gpu-layers",
    "flash_attention": "--flash-attn",
    "use_mlock": "--mlock",
    "repetition_penalty": "--repeat-penalty",
    "penalty_last_n": "--repeat-last-n",
    "template": "--chat-template",
}

_MODEL = ("-m", "--model", "--preset", "--target", "-hf", "--hf-repo")
# Options of llama.cpp and Ollama by what stands for them here: an option, the name of an
# argument, or a text, which has a blank.
THEIRS = {
    **dict.fromkeys(("model", "models", "presets", "-m"), _MODEL),
    **dict.fromkeys(("prompt", "localspec generate -m MODEL PROMPT"), ("-p", "--prompt")),
    "--ctx": ("-c", "--ctx-size", "--num-ctx", "--n-ctx"),
    "--max-tokens": ("-n", "--predict", "--n-predict", "--num-predict"),
    "--threads": ("-t", "--num-thread", "--n-threads"),
    "--gpu-layers": ("-ngl", "--n-gpu-layers", "--num-gpu"),
    "--draft": ("-md", "--model-draft"),
    "--draft-tokens": ("--draft-max", "--draft-n", "--spec-draft-n-max"),
    "--temperature": ("--temp",),
    "--system": ("-sys", "--system-prompt"),
    "--flash-attn": ("-fa",),
    "--parallel": ("-np", "--n-parallel"),
    "--no-think": ("--think", "--hidethinking", "--reasoning-budget"),
    "--stats": ("-v", "--verbose"),
    "localspec chat": ("-i", "--interactive", "-cnv", "--conversation"),
    "no option, since answers are shown as they are written": ("--stream", "--no-stream"),
}

Decorator = Callable[[Any], Any]


def with_all(options: Sequence[Decorator], command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with these options, listed in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def json_option(what: str) -> Decorator:
    """Decorate a command with --json. what: the rest of its help."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print one JSON {what}.")


def read_option_file(flag: str, path: Path, hint: str = "Give a text file.") -> str:
    """The text in a file that an option names. Raises OptionError if it cannot be read."""
    try:
        return read_text_file(path)
    except (OSError, ValueError) as error:
        raise OptionError(f"{flag} {path}: {error}", hint) from error


def flags_of(keyword: str) -> list[str]:
    """The flags that stand for a keyword: the usual one, and the keyword with dashes."""
    flag = "--" + keyword.replace("_", "-")
    return list(dict.fromkeys((_USUAL_FLAGS.get(keyword, flag), flag)))


def usual_flag(keyword: str) -> str:
    """The flag that help and errors name."""
    return flags_of(keyword)[0]


def ours_for(theirs: str) -> list[str]:
    """What may stand here for an option of another program; see `THEIRS`."""
    return [ours for ours, flags in THEIRS.items() if theirs in flags]


def keyword_option(keyword: str, help: str, *, prefix: str = "", **more: Any) -> Decorator:
    """Decorate a command with the option of a keyword; the command receives it by that name.

    prefix: put before the name, as "draft" for the draft model's own threads.
    """
    if not prefix:
        return click.option(*flags_of(keyword), keyword, help=help, **more)
    flag = usual_flag(keyword).replace("--", f"--{prefix}-")
    return click.option(flag, f"{prefix}_{keyword}", help=help, **more)


def field_option(owner: type, field: str, help: str, *, prefix: str = "") -> Decorator:
    """`keyword_option` for a field of a dataclass, whose type the option takes.

    An option that is not given is None, or False for a switch.
    """
    kind = get_type_hints(owner)[field]
    if get_origin(kind) in (Union, types.UnionType):
        [kind] = set(get_args(kind)) - {type(None)}
    if kind is bool:
        return keyword_option(field, help, prefix=prefix, is_flag=True)
    if get_origin(kind) is Literal:
        return keyword_option(field, help, prefix=prefix, type=click.Choice(get_args(kind)))
    return keyword_option(field, help, prefix=prefix, type=kind)
