"""Makes a JSON schema readable for llguidance, by leaving out parts that it cannot process."""

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
# llguidance makes a state for each remainder of a multipleOf: 30 ms for this number of them.
_MAX_REMAINDERS = 10_000
_MAX_DECIMALS = 9  # with more, llguidance's numbers of 32 bits overflow
_MAX_DIVISOR = 2**32 - 1
# To find out whether n patterns can match one text, llguidance takes 2 ** n steps.
_MAX_PATTERNS = 12
# llguidance counts the repetitions of a group and the length of the text at once. If the
# product of both limits is larger, a mask takes too long.
_MAX_COUNTS = 10_000
# A group with an unbounded repetition in it, repeated a counted number of times: (a+b){2,5}.
_COUNTED_GROUP = re.compile(r"\((?:[^()\\]|\\.)*[+*](?:[^()\\]|\\.)*\)\{(\d*),?(\d*)\}")
# Keywords with a whole number, which JSON may write as 2.0.
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
_MAY_BE_NULL = ("const", "default")
_ANY_NAMES: tuple[Node, ...] = (
    {},
    {"type": "string"},
)  # values of propertyNames that allow any name
# Keywords that apply to a value together with those of another schema for the same value.
_COMBINED = {
    "pattern", "format", "multipleOf", "properties", "patternProperties", "items",
    "prefixItems", "additionalProperties",
}  # fmt: skip
# Keywords whose schemas apply to a value together with the other keywords.
_JOINED = {"anyOf", "oneOf", "$ref"}


def read_schema(text: str, *, is_strict: bool) -> tuple[Node, set[str]]:
    """Make a JSON schema readable for llguidance.

    It is also readable as a `%json` of a Lark grammar. Answers are on one line, unless the
    schema's own options for llguidance ("x-guidance") say otherwise.

    Args:
        text: The schema's JSON.
        is_strict: Whether a part that llguidance cannot process is an error.

    Returns:
        The schema, and the parts of the original that are left out: unknown formats, which only
        describe a text, and, unless `is_strict`, parts that llguidance cannot process.

    Raises:
        ConstraintError: The schema is nested too deeply, combines too many parts, or has a part
            that llguidance cannot process although it is strict.
    """
    reader = _SchemaReader(is_strict=is_strict)
    schema = changed_schema(json.loads(text), reader.change)
    check_schema_depth(schema)
    reader.check_combined()
    options = dict(ONE_LINE)
    own_options = schema.get("x-guidance")
    if isinstance(own_options, Mapping):
        options |= own_options
    schema["x-guidance"] = {**options, "lenient": not is_strict}
    return schema, reader.left_out


class _SchemaReader:
    """Makes the parts of one schema readable, one by one, and then checks what they combine.

    Args:
        is_strict: As for `read_schema`.
    """

    def __init__(self, *, is_strict: bool) -> None:
        self.left_out: set[str] = set()
        """The parts that are left out: keywords, some with their value."""

        self._is_strict = is_strict
        self._patterns: set[tuple[str, str]] = set()  # all patterns and formats
        self._num_remainders = {1}  # of all multipleOf
        self._has_combined_parts = False  # whether several parts may apply to one value

    def change(self, node: Node) -> None:
        """Change one part of the schema in place, so that llguidance can read it."""
        _remove_empty_keywords(node)
        for keyword in _COUNTS:
            count = node.get(keyword)
            if isinstance(count, float) and count.is_integer():
                node[keyword] = int(count)
        text_format = node.get("format")
        if isinstance(text_format, str) and text_format not in FORMATS:
            del node["format"]
            self.left_out.add(f"format {text_format}")
        self._bound_divisor(node)
        self._bound_lengths(node)
        for keyword in ("pattern", "format"):
            if keyword in node:
                self._patterns.add((keyword, str(node[keyword])))
        if "allOf" in node:
            self._has_combined_parts = True
        joined = node.keys() & _JOINED
        if len(joined) > 1 or (joined and node.keys() & _COMBINED):
            self._has_combined_parts = True

    def _bound_divisor(self, node: Node) -> None:
        """Leave out a multipleOf below 0, which llguidance would take for its opposite.

        Also one with too many remainders. If strict, raise ConstraintError instead.
        """
        divisor = node.get("multipleOf")
        if isinstance(divisor, int | float) and divisor < 0:
            if self._is_strict:
                raise ConstraintError(
                    f"the JSON schema is refused: multipleOf is {divisor}",
                    "Give a number above 0.",
                )
            del node["multipleOf"]
            self.left_out.add(f"multipleOf {divisor}")
            return
        num_remainders = _num_remainders(divisor)
        if num_remainders <= _MAX_REMAINDERS:
            self._num_remainders.add(num_remainders)
            return
        if self._is_strict:
            raise ConstraintError(
                f"the JSON schema has parts that cannot be enforced: multipleOf {divisor}",
                f"Give a number of at most {_MAX_REMAINDERS} and {_MAX_DECIMALS} decimals "
                "(trailing zeros do not count), or leave out strict.",
            )
        del node["multipleOf"]
        self.left_out.add(f"multipleOf {divisor}")

    def _bound_lengths(self, node: Node) -> None:
        """Leave out lengths if counting them and a pattern's repetitions is too much work.

        If strict, raise ConstraintError instead.
        """
        pattern = node.get("pattern")
        length = node.get("maxLength", node.get("minLength"))
        if not isinstance(pattern, str) or not isinstance(length, int):
            return
        if _largest_repetition(pattern) * length <= _MAX_COUNTS:
            return
        keywords = [keyword for keyword in ("minLength", "maxLength") if keyword in node]
        if self._is_strict:
            raise ConstraintError(
                f"the JSON schema has parts that cannot be enforced: {' and '.join(keywords)} "
                f"together with the pattern {pattern:.80}",
                "Leave out one of them, or strict: both are counted at once, which takes too "
                "much work.",
            )
        for keyword in keywords:
            del node[keyword]
            self.left_out.add(keyword)

    def check_combined(self) -> None:
        """Raise ConstraintError if too many parts may apply to one value together.

        It is not computed which parts these are: if there are any, all patterns and all
        multipleOf of the schema count.
        """
        if not self._has_combined_parts:
            return
        if len(self._patterns) > _MAX_PATTERNS:
            raise ConstraintError(
                "the JSON schema combines parts (allOf, anyOf, oneOf, $ref) and has "
                f"{len(self._patterns)} patterns and formats; the limit is {_MAX_PATTERNS} "
                "where several may apply to one text",
                "Write one pattern that says it all, or do not combine parts.",
            )
        if math.prod(self._num_remainders) > _MAX_REMAINDERS:
            num_divisors = len(self._num_remainders) - 1  # without the 1
            raise ConstraintError(
                "the JSON schema combines parts (allOf, anyOf, oneOf, $ref) and has "
                f"{num_divisors} different multipleOf, which together have too "
                "many remainders",
                "Write one multipleOf that says it all, or do not combine parts.",
            )


def _remove_empty_keywords(node: Node) -> None:
    """Remove keywords that say nothing, but with which llguidance refuses a schema.

    Programs in Go write null for what is missing; Zod writes that all names are texts.
    """
    for keyword in list(node):
        if node[keyword] is None and keyword not in _MAY_BE_NULL:
            del node[keyword]
    if node.get("propertyNames") in _ANY_NAMES:
        del node["propertyNames"]


def _num_remainders(divisor: object) -> int:
    """The number of remainders that llguidance distinguishes for a multipleOf.

    It is the divisor's digits without zeros at the end, as a number: 25 for 2.5 and 2500.
    Returns a number above _MAX_REMAINDERS for a divisor that is too large or has too many
    decimals; 1 for one that is invalid, which llguidance refuses with a better message.
    """
    if not isinstance(divisor, int | float) or not divisor:
        return 1
    if isinstance(divisor, float) and not math.isfinite(divisor):
        return 1
    decimal = Decimal(str(divisor)).normalize().as_tuple()
    num_decimals = -int(decimal.exponent)
    if num_decimals > _MAX_DECIMALS or divisor > _MAX_DIVISOR:
        return _MAX_REMAINDERS + 1
    digits = "".join(map(str, decimal.digits))
    return int(digits)


def _largest_repetition(pattern: str) -> int:
    """The largest number of repetitions in a match of _COUNTED_GROUP; 0 without a match."""
    largest = 0
    for group in _COUNTED_GROUP.finditer(pattern):
        for number in (group[1], group[2]):
            largest = max(largest, int(number or 0))
    return largest


def check_lark(lark: str, *, is_ours: bool) -> None:
    """Raise ConstraintError for a grammar that could take llguidance all stack or memory.

    Args:
        lark: The grammar.
        is_ours: Whether localspec wrote it. Then it may use the operators `&` and `~`.

    Raises:
        ConstraintError: The grammar is nested too deeply, intersects or negates expressions, or
            has a JSON schema that cannot be used.
    """
    contents = read_lark(lark)
    if not is_ours:
        check_operators(contents.operators)
    check_lark_depth(contents.mentions)
    for schema in contents.schemas:
        if isinstance(schema, Mapping):
            read_schema(json.dumps(schema), is_strict=True)
