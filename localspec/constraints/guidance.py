"""llguidance, which knows JSON schemas, regular expressions and Lark grammars.

Its errors are states that it never leaves; here they are exceptions.
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

_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*?)\]")
# Keywords that llguidance enforces only in part, by the first word of its message.
_LOOSER = {"oneOf": ("oneOf",), "min/maxProperties": ("minProperties", "maxProperties")}
_NAMES: dict[Kind, str] = {
    "json_schema": "JSON schema", "regex": "regex", "lark": "Lark grammar",
    "gbnf": "GBNF grammar",
}  # fmt: skip
_GBNF_HINT = (
    "Correct it, or write it in Lark. GBNF that is not supported: tokens (<…>), a repeated "
    "repetition and {0}, and rules named start, with a digit in front, or that differ only in "
    "capitals and hyphens."
)
_MOST_SHOWN = 400  # characters of a message of llguidance
_NO_TOKEN = "NoExtensionBias"  # the beginning of llguidance's message if no token is allowed
# llguidance calls itself for each level of a schema or grammar: half a kilobyte of stack for
# each byte of a text that does nothing else, measured.
_STACK_PER_BYTE = 2048
_BASE_STACK = 1 << 20
_MAX_STACK = 1 << 28
_STACK_UNIT = 1 << 16  # the largest page of any system


def is_installed() -> bool:
    """Whether llguidance is installed."""
    return importlib.util.find_spec("llguidance") is not None


class _Judgement(NamedTuple):
    """A constraint in llguidance's form, and what llguidance says of it."""

    grammar: str
    is_refused: bool
    """Whether llguidance cannot enforce it."""

    messages: list[str]
    """The reasons for that, or else warnings."""

    schema: Node
    """The part of the JSON schema that is enforced."""

    passed_over: frozenset[str] = frozenset()
    """The parts of the caller's schema that are not enforced."""


@functools.lru_cache(maxsize=64)  # texts of up to spec.MAX_BYTES
def _judged(spec: ConstraintSpec) -> _Judgement:
    """Raises ConstraintError for a constraint that is refused before llguidance sees it."""
    if spec.kind != "json_schema":
        grammar = _compiled(spec)
        is_refused, messages = _validated(grammar)
        return _Judgement(grammar, is_refused, messages, {})
    schema, passed_over = readable_schema(spec)
    is_refused, messages = _validated(_of_schema(schema))
    if is_refused and not spec.is_strict:
        schema, more = relaxed(schema, _message_on)
        passed_over |= more
        is_refused, messages = _validated(_of_schema(schema))
    grammar = _of_schema(schema)
    return _Judgement(grammar, is_refused, messages, schema, frozenset(passed_over))


def _of_schema(schema: Node) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema))


def _message_on(schema: Node) -> str:
    """Why llguidance refuses a schema; "" if it does not."""
    lenient = {**schema, "x-guidance": schema.get("x-guidance", {"lenient": True})}
    is_refused, messages = _validated(_of_schema(lenient))
    if is_refused:
        return "\n".join(messages)
    return ""


def _validated(grammar: str) -> tuple[bool, list[str]]:
    """Whether llguidance refuses a grammar in its form; the reasons, or else warnings."""
    from llguidance import LLMatcher

    return _with_room(grammar, lambda: LLMatcher.validate_grammar_with_warnings(grammar))


def _with_room(grammar: str, call: Callable[[], Result]) -> Result:
    """The result of a call in which llguidance reads a grammar, with enough stack for it."""
    stack = _BASE_STACK + len(grammar) * _STACK_PER_BYTE // _STACK_UNIT * _STACK_UNIT
    try:
        return on_deep_stack(call, min(stack, _MAX_STACK))
    except MemoryError as error:
        raise ConstraintError(
            f"a schema or grammar of {len(grammar)} characters cannot be read: {error}",
            "Shorten it, or close other programs.",
        ) from error


def problem_with(spec: ConstraintSpec) -> ConstraintError | None:
    """The error of a constraint that cannot be enforced; None if it seems possible.

    Raises ImportError without llguidance.
    """
    try:
        judged = _judged(spec)
    except ConstraintError as error:
        return error
    if judged.is_refused:
        return _refused(spec, "\n".join(judged.messages))
    return None


def kept_schema(spec: ConstraintSpec) -> Node:
    """The part of a JSON schema that is enforced, as llguidance reads it.

    Raises:
        ConstraintError: The schema cannot be enforced.
    """
    if is_installed():
        return _judged(spec).schema
    return readable_schema(spec)[0]


@functools.lru_cache(maxsize=16)
def not_kept(spec: ConstraintSpec | None) -> tuple[str, ...]:
    """The parts of a JSON schema that are not enforced: keywords, and formats by name.

    Empty for anything else, and for a schema that is refused.
    """
    if spec is None or spec.kind != "json_schema" or not is_installed():
        return ()
    try:
        judged = _judged(spec)
    except ConstraintError:
        return ()
    if judged.is_refused:
        return ()
    found = set(judged.passed_over)
    for message in judged.messages:
        found |= _named_in(message, spec.text)
    return tuple(sorted(found))


def _named_in(warning: str, schema: str) -> set[str]:
    """The keywords of a schema that a warning of llguidance is about, or else the warning."""
    listed = _KEYWORDS.search(warning)
    if listed:
        return set(json.loads(f"[{listed[1]}]"))
    keywords = _LOOSER.get(warning.split()[0])
    if not keywords:
        return {warning[:_MOST_SHOWN]}
    return {keyword for keyword in keywords if f'"{keyword}"' in schema}


class Guide:
    """llguidance with a model's vocabulary. Making it takes up to a second.

    Raises ConstraintError without llguidance, and for a model without a token that ends an
    answer.
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
        """The constraint of an answer that has not begun. The length of numbers is limited.

        Raises ConstraintError for a text that llguidance does not understand, a keyword of JSON
        schema that it cannot enforce, and a grammar that takes too much work.
        """
        from llguidance import LLMatcher, LLParserLimits

        is_json = spec.kind == "json_schema"
        grammar = _grammar_of(spec)
        # llguidance's own limits bound the work for a mask to some milliseconds.
        limits = LLParserLimits(verbose_errors=False)
        matcher = _with_room(
            grammar,
            lambda: LLMatcher(
                self.tokenizer,
                grammar,
                log_level=0,
                limits=limits,
            ),
        )
        if matcher.is_error():
            raise _refused(spec, matcher.get_error())
        guidance = Guidance(matcher, self)
        if is_json:
            return NumberBound(guidance, self.spelling)
        return guidance


class _Tokens:
    """A vocabulary with the attributes that llguidance reads.

    llguidance's reader of llama.cpp's vocabularies would overflow small stacks by long texts.
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
    """Any constraint in llguidance's form. Raises ConstraintError."""
    if spec.kind == "json_schema":
        return _judged(spec).grammar
    return _compiled(spec)


def _compiled(spec: ConstraintSpec) -> str:
    """A regular expression or grammar in llguidance's form.

    Raises:
        ConstraintError: It is unknown GBNF, or more than llguidance can process.
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
            raise _refused(spec, str(error)) from error
    check_lark(lark, is_ours=spec.is_ours)
    return LLMatcher.grammar_from_lark(lark)


def _refused(spec: ConstraintSpec, message: str) -> ConstraintError:
    """The error for a constraint that llguidance refuses with a message."""
    keywords = _KEYWORDS.search(message)
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
    """A `Constraint` that llguidance decides."""

    def __init__(self, matcher: LLMatcher, guide: Guide) -> None:
        self._matcher = matcher
        self._guide = guide
        self._has_ended = False
        self._forced: list[int] | None = None  # None until they are computed again

    def copy(self) -> Guidance:
        other = Guidance(self._matcher.deep_copy(), self._guide)
        other._has_ended = self._has_ended
        return other

    @property
    def is_done(self) -> bool:
        return self._has_ended or self._matcher.is_stopped()

    def mask(self) -> Mask | None:
        if self._has_ended:
            return None
        size = self._guide.tokenizer.vocab_size
        words = np.empty((size + 31) // 32, dtype=np.uint32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        bits = np.unpackbits(words.view(np.uint8), count=size, bitorder="little")
        return bits.view(np.bool_)

    def validate(self, tokens: Sequence[int]) -> int:
        if self._has_ended:
            return len(tokens)
        ends = self._guide.spelling.ends
        before = 0
        while before < len(tokens) and tokens[before] not in ends:
            before += 1
        num_valid = self._matcher.validate_tokens(list(tokens[:before]))
        self._check()
        if num_valid < before or before == len(tokens):
            return num_valid
        # `validate_tokens` judges an end by how its state was reached.
        at_end = self._matcher
        if before:
            at_end = at_end.deep_copy()
            at_end.consume_tokens(list(tokens[:before]))
        if at_end.is_accepting():
            return len(tokens)
        return before

    def commit(self, tokens: Sequence[int]) -> None:
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
            # The forced tokens after this one are the remaining ones of those before.
            known = self._forced
            if known and known[0] == token and len(known) > 1:
                self._forced = known[1:]
            else:
                self._forced = None

    def forced(self) -> list[int]:
        if self._has_ended:
            return []
        if self._forced is None:
            self._forced = self._matcher.compute_ff_tokens()
            self._check()
            after = self._matcher
            if self._forced:
                after = after.deep_copy()
                after.consume_tokens(self._forced)
            if after.is_stopped() and not after.is_error():
                self._forced.append(self._guide.spelling.usual_end)
        return self._forced

    def _check(self) -> None:
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


MOST_DIGITS = 32  # in a row; a double has 17 that count, a whole number of 64 bits 20


class _Digits(JsonReader):
    """Counts the digits at the end of a JSON text, but for those in strings."""

    count = 0

    def push(self, text: str) -> None:
        for character in text:
            if not self.is_quoted(character) and character in DIGITS:
                self.count += 1
            else:
                self.count = 0


class NumberBound:
    """A `Constraint` for a JSON text: `inner` with at most MOST_DIGITS digits in a row.

    More may come where `inner` allows nothing else, as in a constant.
    """

    def __init__(self, inner: Constraint, spelling: Spelling) -> None:
        self._inner = inner
        self._spelling = spelling
        self._digits = _Digits()

    @property
    def is_done(self) -> bool:
        return self._inner.is_done

    def copy(self) -> NumberBound:
        other = copy.copy(self)
        other._inner = self._inner.copy()
        other._digits = copy.copy(self._digits)
        return other

    def mask(self) -> Mask | None:
        mask = self._inner.mask()
        if mask is None or not self._digits.count:
            return mask
        digits_in_a_row = self._digits.count + self._spelling.leading_digits  # by token
        kept: Mask = mask & (digits_in_a_row <= MOST_DIGITS)
        if kept.any():
            return kept
        return mask  # nothing else is allowed

    def validate(self, tokens: Sequence[int]) -> int:
        num_valid = self._inner.validate(tokens)
        digits = copy.copy(self._digits)
        for index, token in enumerate(tokens[:num_valid]):
            if token in self._spelling.ends:
                break
            if self._is_long(token, digits):
                here = self.copy()
                here.commit(tokens[:index])
                if not here._may_come(token):
                    return index
            digits.push(self._spelling.texts[token])
        return num_valid

    def _is_long(self, token: int, digits: _Digits) -> bool:
        return bool(
            digits.count and self._spelling.leading_digits[token] + digits.count > MOST_DIGITS
        )

    def _may_come(self, token: int) -> bool:
        mask = self.mask()
        return mask is None or bool(mask[token])

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._is_long(token, self._digits) and not self._may_come(token):
                raise commit_error(f"token {token} makes a number too long")
            self._inner.commit([token])
            self._digits.push(self._spelling.texts[token])

    def forced(self) -> list[int]:
        return self._inner.forced()
