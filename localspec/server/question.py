"""What a client asks, whichever protocol it speaks, and the fields that protocols share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from localspec.chat.template import Message
from localspec.constraints.guidance import not_kept
from localspec.sampling.params import SamplingParams
from localspec.server.fields import Fields
from localspec.speculative.randomness import MAX_SEED
from localspec.streaming.options import AnswerOptions, spec_of


class RawPrompt(NamedTuple):
    """A prompt that no template is put around: text, or token ids."""

    prompt: str | Sequence[int]


Input = Sequence[Message] | RawPrompt  # messages as `checked_messages` returns them

MOST_ANSWERS = 16  # to one request: they come one after the other
MOST_LOGPROBS = 20  # of the best tokens of a place

# Fields of sampling, as OpenAI, llama.cpp and vLLM call them, and what they are here.
_NUMBERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "typ_p": "typical_p",
    "top_n_sigma": "top_n_sigma",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "repeat_penalty": "repetition_penalty",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
}
_WHOLE_NUMBERS = {
    "repeat_last_n": "penalty_last_n",
    "dry_allowed_length": "dry_allowed_length",
    "dry_penalty_last_n": "dry_penalty_last_n",
    "min_tokens": "min_tokens",
}
_RECENT = ("penalty_last_n", "dry_penalty_last_n")
# Samplers that cannot be verified against; clients send them switched off, too.
_IMPOSSIBLE = ("xtc_probability", "mirostat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request for answers.

    model: the name that the client gave. inputs: each gets num_answers answers; without any
    the model is loaded and nothing is asked. not_kept: what of the JSON schema no answer is
    kept to. streams: whether the client reads the answer piece by piece. keep_s: from now on
    the model stays loaded for so many seconds without a question; None changes nothing.
    """

    model: str | None
    inputs: Sequence[Input]
    options: AnswerOptions
    not_kept: tuple[str, ...]
    think: bool = True
    num_answers: int = 1
    streams: bool = False
    keep_s: float | None = None

    @classmethod
    def of(
        cls, fields: Fields, inputs: Sequence[Input], options: Mapping[str, Any], **more: Any
    ) -> Question:
        """The question that the fields ask. options: by keyword. Raises OptionError."""
        checked = AnswerOptions.of(**options)
        return cls(
            model=fields.text("model"),
            inputs=inputs,
            options=checked,
            not_kept=not_kept(spec_of(checked)),
            **more,
        )

    def seed_of(self, number: int) -> int | None:
        """The seed of one of the answers to an input: several are not to be the same."""
        seed = self.options.seed
        if seed is None or number == 0:
            return seed
        return (seed + number) % (MAX_SEED + 1)


def answer_options(fields: Fields) -> dict[str, Any]:
    """What the fields that protocols share say of sampling, seed and drafting."""
    numbers = ((ours, fields.number(name)) for name, ours in _NUMBERS.items())
    found: dict[str, Any] = {ours: value for ours, value in numbers if value is not None}
    found |= {ours: fields.whole(name) for name, ours in _WHOLE_NUMBERS.items()}
    for name in _RECENT:
        if found[name] == -1:  # all of the context, in llama.cpp
            found[name] = 2**31 - 1
    top_k = fields.whole("top_k")
    found["top_k"] = None if top_k is None else max(top_k, 0)  # below 0 it is off elsewhere
    found["ignore_eos"] = fields.flag("ignore_eos")
    breakers = fields.texts("dry_sequence_breakers")
    found["dry_sequence_breakers"] = None if breakers is None else tuple(breakers)
    found["logit_bias"] = _logit_bias(fields)
    for name in _IMPOSSIBLE:
        if fields.number(name):
            SamplingParams().changed({name: fields.number(name)})  # which says why not
    seed = fields.whole("seed")
    found["seed"] = None if seed == -1 else seed  # -1 is a fresh one elsewhere
    found["rule"] = fields.text("rule")
    found["draft_tokens"] = fields.whole("draft_tokens")
    if fields.flag("speculative") is False:
        found["draft_tokens"] = 0
    found["proposer"] = fields.text("proposer")
    fields.flag("cache_prompt")  # caches are always used: the answer is the same
    return {name: value for name, value in found.items() if value is not None}


def max_tokens(fields: Fields, *names: str) -> int | None:
    """The first of the fields that is there; -1 stands for none, as in llama.cpp."""
    given = [value for value in map(fields.whole, names) if value is not None]
    return given[0] if given and given[0] != -1 else None


def num_answers(fields: Fields) -> int:
    """How many answers are asked for. Raises RequestError."""
    value = fields.whole("n")
    if value is not None and not 1 <= value <= MOST_ANSWERS:
        fields.refuse("n", f"Choose 1 to {MOST_ANSWERS}.")
    return value or 1


def num_logprobs(fields: Fields, name: str) -> int | None:
    """How many of the best tokens of each place are asked for. Raises RequestError."""
    value = fields.whole(name)
    if value is not None and not 0 <= value <= MOST_LOGPROBS:
        fields.refuse(name, f"Choose 0 to {MOST_LOGPROBS}.")
    return value


def _logit_bias(fields: Fields) -> dict[Any, Any] | None:
    """A map of token ids to numbers, or llama.cpp's list of pairs, where false is a ban."""
    value = fields.any("logit_bias")
    if isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 for p in value):
        bans = {str(token): float("-inf") for token, bias in value if bias is False}
        value = {str(token): bias for token, bias in value if bias is not False}
    elif isinstance(value, dict):
        bans = {}
    elif value is None:
        return None
    else:
        fields.refuse("logit_bias", "Map token ids to numbers.")
    biases = Fields(value, "logit_bias.")
    return {token: biases.number(token) for token in value} | bans
