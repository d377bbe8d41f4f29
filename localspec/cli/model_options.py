"""The options that name models, and how much context to open them with."""

from __future__ import annotations

import functools
from typing import Any

import click

from localspec.cli.completion import complete_model
from localspec.cli.flags import Decorator, keyword_option, with_all
from localspec.presets.choice import VARIABLE
from localspec.presets.presets import DEFAULT_PRESET

_KINDS = "a GGUF file, hf:owner/repo/file.gguf or owner/repo:QUANT"

model_argument = click.argument("model", required=False, shell_complete=complete_model)
model_option = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=complete_model,
    help=f"A preset, an alias, {_KINDS}. "
    f"[default: {VARIABLE}, 'localspec models default', or {DEFAULT_PRESET}]",
)


def target_draft_head(*, needs_target: bool = False) -> Decorator:
    """Decorate a command with --target, --draft, --head and --mmproj."""
    options = (
        _model_option(
            "target",
            f"The model whose answers you get: {_KINDS}, or a preset, for its target.",
            required=needs_target,
        ),
        _model_option("draft", "A small model of the same family, named like the target."),
        _model_option(
            "head",
            "A trained head (MTP, EAGLE-3, DFlash, Medusa) for the target, in a file of its "
            "own. [default: the one in the target's file, if there is one]",
        ),
        _model_option(
            "mmproj",
            "The projector with which the target sees images, named like the target. [default: "
            "the preset's, or a file mmproj*.gguf beside the target's]",
        ),
    )
    return functools.partial(with_all, options)


def _model_option(role: str, text: str, **more: Any) -> Decorator:
    return keyword_option(role, text, metavar="MODEL", shell_complete=complete_model, **more)


def context_option(default: str) -> Decorator:
    """Decorate a command with --ctx. default: as help shows it."""
    return keyword_option(
        "context_length",
        f"Context in tokens. [default: {default}]",
        type=click.IntRange(min=1),
    )
