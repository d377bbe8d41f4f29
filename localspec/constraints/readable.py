"""A JSON schema with the keywords that llguidance knows, and the parts that it lacks then."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal

from localspec.constraints.bounds import (
    check_lark_depth,
    check_operators,
    check_schema_depth,
    read_lark,
)
from localspec.errors import ConstraintError
from localspec.tools.schemas import ONE_LINE, Node, changed_schema

# The formats that llguidance knows.
FORMATS = {
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
}  # fmt: skip
# llguidance makes a state of each remainder of a multipleOf: 30 ms for this number of them.
_MAX_REMAINDERS = 10_000
_MAX_DECIMALS = 9  # beyond these, its numbers of 32 bits overflow
_MAX_DIVISOR = 2**32 - 1
# To find out whether n patterns can match one text, llguidance takes 2 ** n steps.
_MAX_PATTERNS = 12
# A repetition and a maxLength are counted side by side. Above this product of the two, a mask
# takes too long.
_MAX_COUNTS = 10_000
# A group with a repetition without a bound, that comes a counted number of times.
_COUNTED_GROUP = re.compile(r"\((?:[^()\\]|\\.)*[+*](?:[^()\\]|\\.)*\)\{(\d*),?(\d*)\}")
# Keywords with a whole number, which JSON may write as 2.0.
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
# Keywords that hold together with those of other schemas for the same value.
_HOLDING = {
    "allOf", "$ref", "pattern", "format", "properties", "patternProperties", "items",
    "prefixItems", "additionalProperties",
}  # fmt: skip


def read_schema(text: str, *, is_strict: bool) -> tuple[Node, set[str]]:
    """A schema as llguidance reads it, also in a Lark grammar's `%json`: values on one line.

    Args:
        text: The schema's JSON.
        is_strict: Whether a part that llguidance could not process is an error.

    Returns:
        The schema, and the parts of the original that it lacks: unknown formats, which only
        describe a text, and, unless it is strict, parts that llguidance could not process. The
        schema's own options for llguidance ("x-guidance") count, but for "lenient".

    Raises:
        ConstraintError: It is nested too deeply, joins too much, or is strict about a part that
            llguidance could not process.
    """
    reader = _Reader(is_strict=is_strict)
    schema = changed_schema(json.loads(text), reader.change)
    check_schema_depth(schema)
    reader.check_joined()
    options = dict(ONE_LINE)
    own = schema.get("x-guidance")
    if isinstance(own, Mapping):
        options |= own
    schema["x-guidance"] = {**options, "lenient": not is_strict}
    return schema, reader.passed_over


class _Reader:
    """Changes the parts of one schema, and notes parts that may apply to one value together."""

    def __init__(self, *, is_strict: bool) -> None:
        self.passed_over: set[str] = set()
        self._is_strict = is_strict
        self._patterns: set[tuple[str, str]] = set()
        self._divisors = {1}
        self._joins = False

    def change(self, node: Node) -> None:
        """Make a part readable."""
        for word in _COUNTS:
            count = node.get(word)
            if isinstance(count, float) and count.is_integer():
                node[word] = int(count)
        form = node.get("format")
        if isinstance(form, str) and form not in FORMATS:
            del node["format"]
            self.passed_over.add(f"format {form}")
        self._bound_divisor(node)
        self._bound_lengths(node)
        for word in ("pattern", "format"):
            if word in node:
                self._patterns.add((word, str(node[word])))
        options = node.keys() & {"anyOf", "oneOf", "$ref"}
        self._joins |= "allOf" in node or bool(options and node.keys() & (_HOLDING - options))

    def _bound_divisor(self, node: Node) -> None:
        divisor = node.get("multipleOf")
        remainders = _remainders(divisor)
        if remainders <= _MAX_REMAINDERS:
            self._divisors.add(remainders)
            return
        if self._is_strict:
            raise ConstraintError(
                f"the JSON schema has parts that cannot be enforced: multipleOf {divisor}",
                f"Give a number of at most {_MAX_REMAINDERS} and {_MAX_DECIMALS} decimals "
                "(trailing zeros do not count), or leave out strict.",
            )
        del node["multipleOf"]
        self.passed_over.add(f"multipleOf {divisor}")

    def _bound_lengths(self, node: Node) -> None:
        pattern = node.get("pattern")
        length = node.get("maxLength", node.get("minLength"))
        if not isinstance(pattern, str) or not isinstance(length, int):
            return
        if _most_groups(pattern) * length <= _MAX_COUNTS:
            return
        words = [word for word in ("minLength", "maxLength") if word in node]
        if self._is_strict:
            raise ConstraintError(
                f"the JSON schema has parts that cannot be enforced: {' and '.join(words)} "
                f"together with the pattern {pattern:.80}",
                "Leave out one of them, or strict: both are counted at once, which takes too "
                "much work.",
            )
        for word in words:
            del node[word]
            self.passed_over.add(word)

    def check_joined(self) -> None:
        """Refuse a schema with too many parts that may apply to one value together.

        Raises:
            ConstraintError: There are too many.
        """
        if not self._joins:
            return
        if len(self._patterns) > _MAX_PATTERNS:
            raise ConstraintError(
                f"the JSON schema combines parts (allOf, $ref) and has {len(self._patterns)} "
                f"patterns and formats; the limit is {_MAX_PATTERNS} where several may apply "
                "to one text",
                "Write one pattern that says it all, or do not combine parts.",
            )
        if math.prod(self._divisors) > _MAX_REMAINDERS:
            raise ConstraintError(
                "the JSON schema combines parts (allOf, $ref) and has "
                f"{len(self._divisors) - 1} different multipleOf, which together have too "
                "many remainders",
                "Write one multipleOf that says it all, or do not combine parts.",
            )


def _remainders(divisor: object) -> int:
    """The number of remainders of a division by it, without its last zeros; 1 if invalid."""
    if not isinstance(divisor, int | float) or not divisor or divisor in (math.inf, -math.inf):
        return 1  # llguidance says what is wrong
    digits = Decimal(str(abs(divisor))).normalize().as_tuple()
    if -int(digits.exponent) > _MAX_DECIMALS or abs(divisor) > _MAX_DIVISOR:
        return _MAX_REMAINDERS + 1
    return int("".join(map(str, digits.digits)))


def _most_groups(pattern: str) -> int:
    """The largest count of a group that has an unbounded repetition in it; 0 without one."""
    largest = 0
    for group in _COUNTED_GROUP.finditer(pattern):
        largest = max(largest, int(group[1] or 0), int(group[2] or 0))
    return largest


def check_lark(lark: str, *, is_ours: bool) -> None:
    """Refuse a grammar that llguidance could not read with a bounded stack and memory.

    Args:
        lark: The grammar.
        is_ours: Whether localspec wrote it: then it may join and negate expressions.

    Raises:
        ConstraintError: It is nested too deeply, joins or negates expressions, or has a JSON
            schema that cannot be used.
    """
    found = read_lark(lark)
    if not is_ours:
        check_operators(found.operators)
    check_lark_depth(found.mentions)
    for schema in found.schemas:
        if isinstance(schema, Mapping):
            read_schema(json.dumps(schema), is_strict=True)
