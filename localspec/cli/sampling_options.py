"""The sampling options of a command, and the `SamplingParams` they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from localspec.cli.flags import field_option, flags_of
from localspec.errors import OptionError
from localspec.sampling.params import SamplingParams

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine

_DEFAULTS = SamplingParams()

# Fields of SamplingParams that are one number.
_NUMBER_FIELDS = {
    "temperature": "0 is greedy.",
    "top_k": "0 is off.",
    "top_p": "1 is off.",
    "min_p": "0 is off.",
    "typical_p": "Locally typical sampling; 1 is off.",
    "top_n_sigma": "Standard deviations below the best logit; below 0 is off.",
    "repetition_penalty": "Divides the logits of recent tokens; 1 is off.",
    "presence_penalty": "Subtracted from the logits of recent tokens; 0 is off.",
    "frequency_penalty": "Subtracted once for each occurrence; 0 is off.",
    "penalty_last_n": "How many tokens count as recent.",
    "dry_multiplier": "DRY, against repeated sequences; 0 is off.",
    "dry_base": "Growth of DRY's penalty per repeated token.",
    "dry_allowed_length": "Tokens that may repeat without DRY's penalty.",
    "dry_penalty_last_n": "How many tokens DRY searches for repeats.",
    "min_tokens": "The answer has at least so many tokens.",
}
# By each flag's name as Python would write it.
FIELD_OF = {
    flag.removeprefix("--").replace("-", "_"): field
    for field in _NUMBER_FIELDS
    for flag in flags_of(field)
}

# Options of llama.cpp that are refused with the reason.
_REFUSED = [
    "--xtc-probability", "--xtc-threshold", "--mirostat", "--mirostat-lr", "--mirostat-ent",
    "--adaptive-target", "--adaptive-decay",
]  # fmt: skip


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


SAMPLING_OPTIONS = [
    *(
        field_option(SamplingParams, name, f"{text} [default: {getattr(_DEFAULTS, name)}]")
        for name, text in _NUMBER_FIELDS.items()
    ),
    field_option(SamplingParams, "ignore_eos", "Go on where the model would end."),
    click.option(
        "--logit-bias",
        callback=_parse_biases,
        multiple=True,
        metavar="ID=NUMBER",
        help="Added to a token's logit; -inf bans the token. Repeatable.",
    ),
    click.option(
        "--ban",
        multiple=True,
        metavar="TEXT|ID",
        help="A token never to say, by its text or id. Repeatable.",
    ),
    click.option(
        "--dry-sequence-breaker",
        "dry_sequence_breakers",
        multiple=True,
        metavar="TEXT",
        help='A text that ends a repeated sequence; "none" for none. Repeatable. '
        f"[default: {' '.join(map(ascii, _DEFAULTS.dry_sequence_breakers))}]",
    ),
    *(click.option(flag, hidden=True) for flag in _REFUSED),
]
SAMPLING_NAMES = (
    *_NUMBER_FIELDS,
    *("ignore_eos", "logit_bias", "ban", "dry_sequence_breakers"),
    *(flag.removeprefix("--").replace("-", "_") for flag in _REFUSED),
)


def take_changes(values: dict[str, Any]) -> dict[str, Any]:
    """Remove the sampling options from a command's `values`, and return those given."""
    taken = {name: values.pop(name) for name in SAMPLING_NAMES}
    # Not given is None, False or empty; 0 is a value.
    return {
        name: value
        for name, value in taken.items()
        if value is not None and value is not False and value not in ((), {})
    }


def changed_sampling(engine: BaseEngine, changes: dict[str, Any]) -> SamplingParams:
    """The engine's sampling with the user's changes; biases add to the preset's.

    Raises OptionError for a value outside its range, a sampler without a fixed distribution,
    or a ban of text that is not one token.
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
            f"--ban {text!r} is {len(tokens)} tokens for this model: {tokens}",
            "Ban one token by its id or its exact text, perhaps with a leading space.",
        )
    return tokens[0]
