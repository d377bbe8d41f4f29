"""The sampling options of a command, and the params they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from localspec.errors import OptionError
from localspec.sampling.params import SamplingParams

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine

_DEFAULTS = SamplingParams()

# Flag, field of SamplingParams, help. The field's default gives type and default.
_VALUES = [
    ("--temperature", "temperature", "0 is greedy."),
    ("--top-k", "top_k", "0 is off."),
    ("--top-p", "top_p", "1 is off."),
    ("--min-p", "min_p", "0 is off."),
    ("--typical-p", "typical_p", "Locally typical sampling; 1 is off."),
    ("--top-n-sigma", "top_n_sigma", "Deviations below the best logit; below 0 is off."),
    ("--repeat-penalty", "repetition_penalty", "Divides logits of recent tokens; 1 is off."),
    ("--presence-penalty", "presence_penalty", "Taken from recent tokens; 0 is off."),
    ("--frequency-penalty", "frequency_penalty", "Taken once per occurrence; 0 is off."),
    ("--repeat-last-n", "penalty_last_n", "Tokens that count as recent."),
    ("--dry-multiplier", "dry_multiplier", "DRY, against repeated sequences; 0 is off."),
    ("--dry-base", "dry_base", "Growth of DRY's penalty per repeated token."),
    ("--dry-allowed-length", "dry_allowed_length", "Repeats DRY lets pass, in tokens."),
    ("--dry-penalty-last-n", "dry_penalty_last_n", "Tokens in which DRY looks for repeats."),
    ("--min-tokens", "min_tokens", "The answer does not end before."),
]

# The field of each flag, by the flag's name as Python would write it.
FIELDS = {flag.removeprefix("--").replace("-", "_"): field for flag, field, _ in _VALUES}

# What llama.cpp's users may ask for, and get an answer why not.
_REFUSED = [
    "--xtc-probability", "--xtc-threshold", "--mirostat", "--mirostat-lr", "--mirostat-ent",
    "--adaptive-target", "--adaptive-decay",
]  # fmt: skip


def _value_option(flag: str, field: str, text: str) -> Any:
    default = getattr(_DEFAULTS, field)
    return click.option(flag, field, type=type(default), help=f"{text} [default: {default}]")


def _parse_biases(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> dict[int, float]:
    biases = {}
    for text in texts:
        token, _, number = text.partition("=")
        try:
            biases[int(token)] = float(number)
        except ValueError:
            raise click.BadParameter(
                f"{text!r} is not ID=NUMBER, such as 42=-1.5 or 42=-inf."
            ) from None
    return biases


OPTIONS = [
    *(_value_option(*row) for row in _VALUES),
    click.option("--ignore-eos", is_flag=True, help="Go on when the model would end."),
    click.option(
        "--logit-bias",
        callback=_parse_biases,
        multiple=True,
        metavar="ID=NUMBER",
        help="Added to a token's logit; -inf bans it. Repeatable.",
    ),
    click.option(
        "--ban",
        multiple=True,
        metavar="TEXT|ID",
        help="Never say this token, given by its text or id. Repeatable.",
    ),
    click.option(
        "--dry-sequence-breaker",
        "dry_sequence_breakers",
        multiple=True,
        metavar="TEXT",
        help='A text no repeat reaches across; "none" for none. Repeatable. '
        f"[default: {' '.join(map(ascii, _DEFAULTS.dry_sequence_breakers))}]",
    ),
    *(click.option(flag, hidden=True) for flag in _REFUSED),
]
NAMES = (
    *(field for _, field, _ in _VALUES),
    *("ignore_eos", "logit_bias", "ban", "dry_sequence_breakers"),
    *(flag.removeprefix("--").replace("-", "_") for flag in _REFUSED),
)


def take_changes(values: dict[str, Any]) -> dict[str, Any]:
    """Move the sampling options out of a command's `values`: those that were given."""
    taken = {name: values.pop(name) for name in NAMES}
    # Not given is None, False or empty; 0 is a value.
    return {
        name: value
        for name, value in taken.items()
        if value is not None and value is not False and value not in ((), {})
    }


def changed_sampling(engine: BaseEngine, changes: dict[str, Any]) -> SamplingParams:
    """The engine's sampling with what the user changed; biases add to the preset's.

    Raises OptionError for a value outside its range, a sampler that gives no fixed distribution
    of a row, or a ban of what is not one token.
    """
    changes = dict(changes)
    bans = {_token_of(text, engine): float("-inf") for text in changes.pop("ban", ())}
    biases = changes.pop("logit_bias", {}) | bans
    if biases:
        changes["logit_bias"] = {**engine.sampling.logit_bias, **biases}
    if "dry_sequence_breakers" in changes:
        breakers = [text.replace(r"\n", "\n") for text in changes["dry_sequence_breakers"]]
        changes["dry_sequence_breakers"] = tuple(text for text in breakers if text != "none")
    return engine.sampling.changed(changes)


def _token_of(text: str, engine: BaseEngine) -> int:
    if text.isdecimal():
        return int(text)
    tokens = engine.vocabulary.tokenize(text, parse_special=True)
    if len(tokens) != 1:
        raise OptionError(
            f"--ban {text!r}: the model spells this with {len(tokens)} tokens, {tokens}",
            "Ban one token, by its exact text (with a leading space, perhaps) or its id.",
        )
    return tokens[0]
