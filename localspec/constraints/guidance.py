"""Constraints by llguidance, which knows JSON schemas, regular expressions and Lark grammars.

Only this module imports llguidance. An error of llguidance is a state that its object keeps;
here each error is raised as an exception.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from localspec.constraints.readable import check_lark
from localspec.constraints.relaxing import relaxed
from localspec.constraints.spec import ConstraintSpec, Kind, for_converter, readable_schema
from localspec.constraints.spelling import DIGITS, Spelling
from localspec.errors import ConstraintError
from localspec.sampling.constraint import Constraint, Mask, commit_error
from localspec.system.call_thread import Result, on_deep_stack
from localspec.tools.partial_text import JsonReader
from localspec.tools.schemas import Node

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# A message of llguidance on keywords of a schema that it cannot enforce.
_UNENFORCED_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*?)\]")
# Keywords that llguidance enforces only in part, by the first word of its warning.
_PARTLY_ENFORCED = {
    "oneOf": ("oneOf",), "min/maxProperties": ("minProperties", "maxProperties")
}  # fmt: skip
_NAMES: dict[Kind, str] = {
    "json_schema": "JSON schema", "regex": "regex", "lark": "Lark grammar",
    "gbnf": "GBNF grammar",
}  # fmt: skip
_GBNF_HINT = (
    "Correct it, or write it in Lark. GBNF that is not supported: tokens (<…>), a repeated "
    "repetition and {0}, and rules named start, with a digit in front, or that differ only in "
    "capitals and hyphens."
)
_MOST_SHOWN = 400  # characters of a message of llguidance that an error shows
_NO_TOKEN = "NoExtensionBias"  # the beginning of llguidance's message if no token is allowed
# Bytes of stack for each character of a grammar. llguidance recurses for each level of it: half
# a kilobyte for each character was measured in a text that consists of levels only.
_STACK_PER_CHARACTER = 2048
_BASE_STACK = 1 << 20
_MAX_STACK = 1 << 28
_STACK_UNIT = 1 << 16  # the largest page of any system


def is_installed() -> bool:
    """Whether llguidance is installed."""
    return importlib.util.find_spec("llguidance") is not None


class _Judgement(NamedTuple):
    """A constraint as llguidance takes it, and llguidance's judgement of it."""

    grammar: str
    """The constraint in llguidance's own notation."""

    is_refused: bool
    """Whether llguidance cannot enforce it."""

    messages: list[str]
    """llguidance's reasons if it is refused, otherwise its warnings."""

    schema: Node
    """The part of the JSON schema that is enforced; {} for another constraint."""

    left_out: frozenset[str] = frozenset()
    """The parts of the caller's schema that are not enforced."""


@functools.lru_cache(maxsize=64)  # texts of up to spec.MAX_BYTES
def _judgement(spec: ConstraintSpec) -> _Judgement:
    """llguidance's judgement of a constraint. A schema is relaxed first, unless it is strict.

    Raises ConstraintError for a constraint that llguidance must not even read.
    """
    if spec.kind != "json_schema":
        grammar = _grammar_of_text(spec)
        is_refused, messages = _validated(grammar)
        return _Judgement(grammar, is_refused, messages, {})
    schema, left_out = readable_schema(spec)
    grammar = _grammar_of_schema(schema)
    is_refused, messages = _validated(grammar)
    if is_refused and not spec.is_strict:
        schema, refused_parts = relaxed(schema, _message_on)
        left_out |= refused_parts
        grammar = _grammar_of_schema(schema)
        is_refused, messages = _validated(grammar)
    return _Judgement(grammar, is_refused, messages, schema, frozenset(left_out))


def _grammar_of_schema(schema: Node) -> str:
    """A JSON schema in llguidance's own notation."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema))


def _message_on(schema: Node) -> str:
    """Why llguidance refuses a schema or a part of one; "" if it accepts it."""
    # A part has no options. It is judged as leniently as the schema that it is from.
    options = schema.get("x-guidance", {"lenient": True})
    grammar = _grammar_of_schema({**schema, "x-guidance": options})
    is_refused, messages = _validated(grammar)
    if is_refused:
        return "\n".join(messages)
    return ""


def _validated(grammar: str) -> tuple[bool, list[str]]:
    """Whether llguidance refuses a grammar in its notation, and its reasons or warnings."""
    from llguidance import LLMatcher

    return _with_stack_for(grammar, lambda: LLMatcher.validate_grammar_with_warnings(grammar))


def _with_stack_for(grammar: str, call: Callable[[], Result]) -> Result:
    """Make a call in which llguidance reads a grammar, on a stack that is large enough.

    Returns the result of the call. Raises ConstraintError if there is no memory for the stack.
    """
    num_units = len(grammar) * _STACK_PER_CHARACTER // _STACK_UNIT
    stack_bytes = min(_BASE_STACK + num_units * _STACK_UNIT, _MAX_STACK)
    try:
        return on_deep_stack(call, stack_bytes)
    except MemoryError as error:
        raise ConstraintError(
            f"a schema or grammar of {len(grammar)} characters cannot be read: {error}",
            "Shorten it, or close other programs.",
        ) from error


def problem_with(spec: ConstraintSpec) -> ConstraintError | None:
    """The error to raise for a constraint that cannot be enforced; None for any other.

    Raises ImportError without llguidance.
    """
    try:
        judgement = _judgement(spec)
    except ConstraintError as error:
        return error
    if judgement.is_refused:
        return _refusal(spec, "\n".join(judgement.messages))
    return None


def kept_schema(spec: ConstraintSpec) -> Node:
    """The part of a JSON schema that is enforced, in the form that llguidance reads.

    Without llguidance, it is the part that llguidance could read.

    Raises:
        ConstraintError: As `read_schema`. What llguidance itself refuses is no error here: see
            `problem_with`.
    """
    if is_installed():
        return _judgement(spec).schema
    schema, _ = readable_schema(spec)
    return schema


@functools.lru_cache(maxsize=16)
def not_kept(spec: ConstraintSpec | None) -> tuple[str, ...]:
    """The parts of a JSON schema that are not enforced: keywords, some with their value.

    Sorted. Empty for another constraint or None, for a schema that is refused, and without
    llguidance.
    """
    if spec is None or spec.kind != "json_schema" or not is_installed():
        return ()
    try:
        judgement = _judgement(spec)
    except ConstraintError:
        return ()
    if judgement.is_refused:
        return ()
    unenforced = set(judgement.left_out)
    for warning in judgement.messages:
        unenforced |= _keywords_in(warning, spec.text)
    return tuple(sorted(unenforced))


def _keywords_in(warning: str, schema: str) -> set[str]:
    """The keywords of a schema that a warning of llguidance is about.

    For an unknown warning, its own text.
    """
    unenforced = _UNENFORCED_KEYWORDS.search(warning)
    if unenforced:
        return set(json.loads(f"[{unenforced[1]}]"))
    first_word = warning.split()[0]
    keywords = _PARTLY_ENFORCED.get(first_word)
    if not keywords:
        return {warning[:_MOST_SHOWN]}
    return {keyword for keyword in keywords if f'"{keyword}"' in schema}


class Guide:
    """Makes constraints by llguidance for one model. Making a `Guide` takes up to a second.

    Args:
        spelling: The model's tokens.

    Raises:
        ConstraintError: llguidance is missing, or the model has no token that ends an answer.
    """

    def __init__(self, spelling: Spelling) -> None:
        if not is_installed():
            raise ConstraintError(
                "this needs llguidance, which is not installed",
                "Install it: pip install 'localspec[grammar]'.",
            )
        from llguidance import LLTokenizer, TokenizerWrapper

        if not spelling.ends:
            raise ConstraintError(
                "the model's vocabulary has no token that ends an answer",
                "Ask it for free text.",
            )
        self.spelling = spelling
        self.tokenizer: LLTokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(spelling)),
            n_vocab=spelling.num_logits,
            eos_token=sorted(spelling.ends),
        )

    def constraint(self, spec: ConstraintSpec) -> Constraint:
        """The constraint of an answer at its beginning. In JSON, numbers are bounded, too.

        Raises ConstraintError for a text that llguidance does not understand, a keyword of JSON
        schema that it cannot enforce, and a grammar that takes too much work.
        """
        from llguidance import LLMatcher, LLParserLimits

        grammar = _grammar_of(spec)
        # llguidance's own limits bound the work for a mask to some milliseconds.
        limits = LLParserLimits(verbose_errors=False)
        matcher = _with_stack_for(
            grammar,
            lambda: LLMatcher(
                self.tokenizer,
                grammar,
                log_level=0,
                limits=limits,
            ),
        )
        if matcher.is_error():
            raise _refusal(spec, matcher.get_error())
        guidance = Guidance(matcher, self)
        if spec.kind == "json_schema":
            return NumberBound(guidance, self.spelling)
        return guidance


class _Tokens:
    """A model's vocabulary in the form that llguidance's `TokenizerWrapper` takes.

    llguidance can also read llama.cpp's vocabularies, but long texts overflow small stacks
    there.
    """

    def __init__(self, spelling: Spelling) -> None:
        self.eos_token_id = spelling.usual_end
        self.bos_token_id = None
        self.tokens = spelling.pieces
        self.special_token_ids = sorted(spelling.controls)
        self._tokenize = spelling.tokenize

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenize(text)


def _grammar_of(spec: ConstraintSpec) -> str:
    """Any constraint in llguidance's own notation. Raises ConstraintError."""
    if spec.kind == "json_schema":
        return _judgement(spec).grammar
    return _grammar_of_text(spec)


def _grammar_of_text(spec: ConstraintSpec) -> str:
    """A regular expression or a grammar in llguidance's own notation.

    Raises:
        ConstraintError: It is GBNF that cannot be converted, or could take llguidance all
            memory.
    """
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if spec.kind == "regex":
        return LLMatcher.grammar_from_regex(spec.text)
    lark = spec.text
    if spec.kind == "gbnf":
        try:
            lark = gbnf_to_lark(for_converter(spec.text))
        except Exception as error:
            raise _refusal(spec, str(error)) from error
    check_lark(lark, is_ours=spec.is_ours)
    return LLMatcher.grammar_from_lark(lark)


def _refusal(spec: ConstraintSpec, message: str) -> ConstraintError:
    """The error to raise for a constraint that llguidance refuses with a message."""
    keywords = _UNENFORCED_KEYWORDS.search(message)
    if keywords:
        return ConstraintError(
            f"the JSON schema has parts that cannot be enforced: {keywords[1]}",
            "Leave out those keywords, or leave out strict and check the answer for them.",
        )
    hint = "Correct it, or make it simpler."
    if spec.kind == "gbnf":
        hint = _GBNF_HINT
    shown = message.strip()[:_MOST_SHOWN]
    return ConstraintError(f"the {_NAMES[spec.kind]} is refused: {shown}", hint)


class Guidance:
    """A `Constraint` by a matcher of llguidance.

    Args:
        matcher: Has read the answer so far, but for a token that ends it.
        guide: The guide that made the matcher.
    """

    def __init__(self, matcher: LLMatcher, guide: Guide) -> None:
        self._matcher = matcher
        self._guide = guide
        self._has_ended = False  # whether a token that ends the answer was committed
        # The tokens of `forced`; None if they have to be computed.
        self._forced: list[int] | None = None

    def copy(self) -> Guidance:
        other = Guidance(self._matcher.deep_copy(), self._guide)
        other._has_ended = self._has_ended
        return other

    @property
    def is_done(self) -> bool:
        """Whether only a token that ends the answer may come next."""
        return self._has_ended or self._matcher.is_stopped()

    def mask(self) -> Mask | None:
        """(num_logits,) True for tokens that may come next; None if all may."""
        if self._has_ended:
            return None
        # llguidance writes a bit for each token, in words of 32 bits.
        num_tokens = self._guide.tokenizer.vocab_size
        num_words = (num_tokens + 31) // 32
        words = np.empty(num_words, dtype=np.uint32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        bits = np.unpackbits(words.view(np.uint8), count=num_tokens, bitorder="little")
        return bits.view(np.bool_)

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of the tokens may come, counted from the first. The state stays."""
        if self._has_ended:
            return len(tokens)
        ends = self._guide.spelling.ends
        num_text_tokens = 0  # the tokens before the first one that ends the answer
        while num_text_tokens < len(tokens) and tokens[num_text_tokens] not in ends:
            num_text_tokens += 1
        text_tokens = list(tokens[:num_text_tokens])
        num_valid = self._matcher.validate_tokens(text_tokens)
        self._check()
        if num_valid < num_text_tokens or num_text_tokens == len(tokens):
            return num_valid
        # Not `validate_tokens`: its verdict on an end depends on how its state was reached.
        matcher_at_end = self._matcher
        if text_tokens:
            matcher_at_end = matcher_at_end.deep_copy()
            matcher_at_end.consume_tokens(text_tokens)
        if matcher_at_end.is_accepting():
            return len(tokens)  # all tokens after the end may come, too
        return num_text_tokens

    def commit(self, tokens: Sequence[int]) -> None:
        """Continue after these tokens. Raises ConstraintError if one may not come."""
        for token in tokens:
            if self._has_ended:
                return
            if token in self._guide.spelling.ends:
                if not self._matcher.is_accepting():
                    raise commit_error("the answer ends before the constraint is complete")
                self._has_ended = True
                return
            self._matcher.consume_token(token)
            self._check()
            # If the token was forced, the other forced tokens still are.
            forced = self._forced
            if forced and forced[0] == token and len(forced) > 1:
                self._forced = forced[1:]
            else:
                self._forced = None

    def forced(self) -> list[int]:
        """Tokens that spell the only text that may come next; [] if several texts may.

        The last one ends the answer if nothing may follow the text.
        """
        if self._has_ended:
            return []
        if self._forced is None:
            self._forced = self._matcher.compute_ff_tokens()
            self._check()
            matcher_after = self._matcher
            if self._forced:
                matcher_after = matcher_after.deep_copy()
                matcher_after.consume_tokens(self._forced)
            if matcher_after.is_stopped() and not matcher_after.is_error():
                self._forced.append(self._guide.spelling.usual_end)
        return self._forced

    def _check(self) -> None:
        """Raise ConstraintError if the matcher is in a state of error."""
        if self._matcher.is_error():
            message = self._matcher.get_error().strip()[:_MOST_SHOWN]
            if message.startswith(_NO_TOKEN):
                raise ConstraintError(
                    "no token fits the constraint here",
                    "Look for a part that contradicts another, or refers only to itself.",
                )
            raise ConstraintError(
                f"the answer can no longer be held to the constraint: {message}",
                "Make the schema or grammar simpler.",
            )


# Digits in a row. A double needs 17 of them, a whole number of 64 bits 20.
MOST_DIGITS = 32


class _DigitCounter(JsonReader):
    """Counts the digits in a row at the end of a JSON text, outside of strings."""

    count = 0

    def push(self, text: str) -> None:
        """Read more of the JSON text."""
        for character in text:
            is_quoted = self.read_character(character)
            if character in DIGITS and not is_quoted:
                self.count += 1
            else:
                self.count = 0


class NumberBound:
    """A `Constraint` for JSON: what `inner` allows, with at most MOST_DIGITS digits in a row.

    More digits may come where `inner` allows nothing else, for example in a constant.

    Args:
        inner: The constraint without this limit.
        spelling: The model's tokens.
    """

    def __init__(self, inner: Constraint, spelling: Spelling) -> None:
        self._inner = inner
        self._spelling = spelling
        self._digits = _DigitCounter()

    @property
    def is_done(self) -> bool:
        """Whether only a token that ends the answer may come next."""
        return self._inner.is_done

    def copy(self) -> NumberBound:
        other = copy.copy(self)
        other._inner = self._inner.copy()
        other._digits = copy.copy(self._digits)
        return other

    def mask(self) -> Mask | None:
        """(num_logits,) True for tokens that may come next; None if all may."""
        mask = self._inner.mask()
        if mask is None or not self._digits.count:
            return mask
        digits_in_a_row = self._digits.count + self._spelling.leading_digits  # for each token
        bounded_mask: Mask = mask & (digits_in_a_row <= MOST_DIGITS)
        if bounded_mask.any():
            return bounded_mask
        return mask  # `inner` allows nothing else

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of the tokens may come, counted from the first. The state stays."""
        num_valid = self._inner.validate(tokens)
        digits = copy.copy(self._digits)
        for index, token in enumerate(tokens[:num_valid]):
            if token in self._spelling.ends:
                break
            if self._makes_too_long(token, digits):
                state_before = self.copy()
                state_before.commit(tokens[:index])
                if not state_before._is_in_mask(token):
                    return index
            digits.push(self._spelling.texts[token])
        return num_valid

    def _makes_too_long(self, token: int, digits: _DigitCounter) -> bool:
        """Whether a token makes the counted digits more than MOST_DIGITS; False without any."""
        if not digits.count:
            return False
        num_digits = digits.count + self._spelling.leading_digits[token]
        return bool(num_digits > MOST_DIGITS)

    def _is_in_mask(self, token: int) -> bool:
        """Whether the mask allows a token next."""
        mask = self.mask()
        return mask is None or bool(mask[token])

    def commit(self, tokens: Sequence[int]) -> None:
        """Continue after these tokens. Raises ConstraintError if one may not come."""
        for token in tokens:
            if self._makes_too_long(token, self._digits) and not self._is_in_mask(token):
                raise commit_error(f"token {token} makes a number too long")
            self._inner.commit([token])
            self._digits.push(self._spelling.texts[token])

    def forced(self) -> list[int]:
        """As `Constraint.forced`."""
        return self._inner.forced()
