"""The settings of all samplers, checked.

Nothing here needs NumPy: presets have such settings, and are listed without it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, TypedDict

from localspec.errors import OptionError, did_you_mean, require_unicode
from localspec.keywords import keyword_for, known_fields

_LARGEST_BIAS = 1e9  # far beyond any logit, and far from overflowing a float32
_INT32_MAX = 2**31 - 1
_MOST_BREAKER_BYTES = 40

# Lowest and highest value, and the hint for a value outside. If the lowest is written as an
# int, only whole numbers are valid.
_RANGES: dict[str, tuple[float, float, str]] = {
    "repetition_penalty": (0.01, 100.0, "Choose 0.01 to 100; 1 or 0 is off."),
    "presence_penalty": (-100.0, 100.0, "Choose -100 to 100; 0 is off."),
    "frequency_penalty": (-100.0, 100.0, "Choose -100 to 100; 0 is off."),
    "penalty_last_n": (0, _INT32_MAX, "Choose a number of tokens; 0 is off."),
    "dry_multiplier": (0.0, 100.0, "Choose 0 (off) to 100."),
    "dry_base": (1.0, 100.0, "Choose 1 to 100."),
    "dry_allowed_length": (1, _INT32_MAX, "Choose 1 token or more."),
    "dry_penalty_last_n": (0, _INT32_MAX, "Choose a number of tokens; 0 is off."),
    "top_n_sigma": (-1.0, 1000.0, "Choose up to 1000; 0 or below is off."),
    "top_k": (0, _INT32_MAX, "Choose 0 (off) or more."),
    "typical_p": (0.0, 1.0, "Choose 0 to 1; 1 or 0 is off."),
    "top_p": (0.0, 1.0, "Choose 0 (only the likeliest token) to 1 (off)."),
    "min_p": (0.0, 1.0, "Choose 0 (off) to 1."),
    "temperature": (0.0, 100.0, "Choose 0 to 100; 0 is greedy."),
    "min_tokens": (0, _INT32_MAX, "Choose 0 or more."),
}

# Many clients send 0 to turn these off. As a value it would leave one odd token or none, so it
# is replaced by the value that does nothing.
_OFF_AT_0 = {"repetition_penalty": 1.0, "typical_p": 1.0}

# Samplers of llama.cpp against which no draft can be verified: the beginning of their options'
# names, and why.
_NO_DISTRIBUTIONS = {
    "xtc": "XTC drops tokens by a random number of its own",
    "mirostat": "mirostat steers by what was drawn before",
    "adaptive": "adaptive-p steers by what was drawn before",
}


class SamplingKeywords(TypedDict, total=False):
    """The fields of `SamplingParams`, each as a keyword of its own."""

    logit_bias: Mapping[int, float]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    top_n_sigma: float
    top_k: int
    typical_p: float
    top_p: float
    min_p: float
    temperature: float
    min_tokens: int
    ignore_eos: bool


@known_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The samplers between logits and distribution. Names and defaults are llama.cpp's.

    They are applied in the order of the fields, temperature last. Only top_k, top_p, min_p and
    temperature do something by default. temperature 0 is greedy: the best token left by the
    others gets probability 1. top_p 0 leaves only the likeliest token. repetition_penalty and
    typical_p are off at 1, and become 1 if they are 0.

    The three penalties look at the last penalty_last_n tokens of prompt and answer, DRY ("don't
    repeat yourself") at the last dry_penalty_last_n: a token that would continue a repeat of n
    tokens loses dry_multiplier * dry_base ** (n - dry_allowed_length), where no repeat reaches
    across one of dry_sequence_breakers (texts of up to 40 bytes).

    Raises OptionError for a value outside its range, NaN included.
    """

    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """What to add to the logit of a token id; -inf bans it."""

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    top_n_sigma: float = -1.0
    top_k: int = 40
    typical_p: float = 1.0
    top_p: float = 0.95
    min_p: float = 0.05
    temperature: float = 0.8
    min_tokens: int = 0
    """The end of the answer is banned until it has this number of tokens."""

    ignore_eos: bool = False
    """The end of the answer is banned for good."""

    def __post_init__(self) -> None:
        for name, off in _OFF_AT_0.items():
            value = getattr(self, name)
            if _is_number(value) and value == 0:
                object.__setattr__(self, name, off)
        for name, (lowest, highest, hint) in _RANGES.items():
            value = getattr(self, name)
            is_right_kind = _is_number(value)
            if isinstance(lowest, int):
                is_right_kind = is_right_kind and isinstance(value, Integral)
            # Written as "not inside" so that NaN, which compares false, is refused too.
            if not (is_right_kind and lowest <= value <= highest):
                raise OptionError(f"{name} is {value!r}", hint)
        if not isinstance(self.ignore_eos, bool):
            raise OptionError(f"ignore_eos is {self.ignore_eos!r:.80}", "Choose True or False.")
        # Copies, so that a caller cannot change the distribution of a frozen dataclass.
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        breakers = _checked_breakers(self.dry_sequence_breakers)
        object.__setattr__(self, "dry_sequence_breakers", breakers)

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is always taken."""
        return self.temperature == 0.0

    def changed(self, changes: Mapping[str, Any]) -> SamplingParams:
        """These params with other values for some fields.

        Raises OptionError for a value outside its range, and for a name that is not a field. If
        the name is that of a sampler without a fixed distribution, the error says so.

        Args:
            changes: Values by field, as a person wrote them.
        """
        fields = self.__dataclass_fields__
        for name in changes:
            if name in fields:
                continue
            check_has_distribution(name)
            hint = did_you_mean(keyword_for(name), fields).strip()
            if not hint:
                hint = f"Choose from: {', '.join(fields)}."
            raise OptionError(f"{name} is not a sampling option", hint)
        return dataclasses.replace(self, **changes)


def check_has_distribution(name: str) -> None:
    """Raise OptionError for an option of a sampler that no draft can be verified against."""
    for prefix, reason in _NO_DISTRIBUTIONS.items():
        if name.startswith(prefix):
            raise OptionError(
                f"{name} cannot be set: {reason}, so no draft can be verified exactly",
                "Leave it out; min_p, top_n_sigma or the temperature may do instead.",
            )


def _is_number(value: object) -> bool:
    """Whether a value is a number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _checked_bias(bias: Mapping[int, float]) -> dict[int, float]:
    """A copy of a logit_bias with ids as int and numbers as float. Raises OptionError."""
    if not isinstance(bias, Mapping):
        raise OptionError(f"logit_bias is {bias!r}", "Map token ids to numbers.")
    checked: dict[int, float] = {}
    for token, value in bias.items():
        token_id = token
        try:
            if isinstance(token, str):  # as the keys of JSON and TOML
                token_id = int(token)
            added = float(value)
        except (TypeError, ValueError, OverflowError):
            added = math.nan
        is_id = isinstance(token_id, Integral) and token_id >= 0
        is_bias = abs(added) <= _LARGEST_BIAS or added == -math.inf  # not NaN
        if not (is_id and is_bias):
            raise OptionError(
                f"logit_bias of token {token!r} is {value!r}",
                "Map token ids to numbers up to 1e9 in size, or to -inf for a ban.",
            )
        checked[int(token_id)] = added
    return checked


def _checked_breakers(breakers: tuple[str, ...]) -> tuple[str, ...]:
    """The dry_sequence_breakers as a tuple. Raises OptionError."""
    if isinstance(breakers, str):
        raise OptionError(
            f"dry_sequence_breakers is the text {breakers!r}",
            "Give a tuple of texts.",
        )
    if not isinstance(breakers, Sequence):
        raise OptionError(
            f"dry_sequence_breakers is {breakers!r}",
            "Give a tuple of texts.",
        )
    for text in breakers:
        if isinstance(text, str):
            require_unicode("a dry_sequence_breaker", text)
        if not isinstance(text, str) or not 0 < len(text.encode()) <= _MOST_BREAKER_BYTES:
            raise OptionError(
                f"a dry_sequence_breaker is {text!r}",
                "Choose a text of 1 to 40 bytes.",
            )
    return tuple(breakers)
