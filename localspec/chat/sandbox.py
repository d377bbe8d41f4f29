"""Jinja's sandbox for chat templates, with bounds on the time and memory of each operation.

A template comes with a model file, so it is foreign code. No signal and no thread can interrupt
a single operation of Python or its C code. So every operation that could take unlimited time or
memory is measured before it is done: powers, products, formats, paddings, joined texts, written
values. The number of operations is not bounded here. But before each call, and in each turn of
a loop, the sandbox checks whether the text is still wanted.

Hugging Face's sandbox refuses every change of a list. Kimi K2's template, which llama.cpp runs,
keeps a queue in a list. So a template may append to its lists and take from them; its arguments
have to be copies of its own.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn

from jinja2 import filters, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context, pass_eval_context

from localspec.errors import Interrupted
from localspec.streaming.cancellation import CancelCheck, never

MAX_TEXT = 8_000_000  # characters of a value
_MAX_ITEMS = 1_000_000  # of a list
_MAX_BITS = 10_000  # of a whole number: about 3,000 digits
_MAX_WIDTH = 10_000  # of a field in a format
_MAX_DIGITS = 100  # to which a number is rounded
_MAX_FORM = 1000  # characters of the format of a date
_MAX_SEARCH = 1_000_000_000  # characters that are compared, at worst
_JINJAS_OWN = ("_loop_vars", "_block_vars")  # keywords of a call that Jinja adds and removes
_ITEM = 4  # characters that an item of a list takes in a text, about

cancel_check: ContextVar[CancelCheck] = ContextVar("cancel_check", default=never)
"""Whether the text that a template writes in this thread or task is not wanted any more."""

_CONTAINERS = (Mapping, Sequence, Set, ValuesView)  # values that are written with their items

# `%` in a format: the key, the width and the precision.
_FIELD = re.compile(
    r"%(?:%|(?:\((?P<key>[^)]*)\))?[#0\- +]*(?P<width>\d+|\*)?(?:\.(?P<more>\d+|\*))?)"
)


class TemplateRefused(Exception):
    """The template was stopped: by its own words, or at a bound."""


class TextTooLong(TemplateRefused):
    """The template writes more characters than a prompt may have."""

    def __init__(self) -> None:
        super().__init__(f"it writes more than {MAX_TEXT} characters")


# Measures


def require_short(size: int) -> None:
    """Raise TextTooLong if a text would have more characters than a prompt may have."""
    if size > MAX_TEXT:
        raise TextTooLong


def written_size(value: object, indent: int = 0) -> int:
    """Approximate number of characters of a value as text, or as JSON with that indentation.

    Lists may hold the same list many times, so that a few bytes become a long text. Raises
    TextTooLong as soon as the limit is passed.
    """
    if isinstance(value, str):
        require_short(len(value))
        return len(value)
    total = 0
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, int):
            total += item.bit_length() // 3
        elif isinstance(item, Namespace):
            raise TemplateRefused("it writes a namespace")
        elif isinstance(item, _CONTAINERS) and not isinstance(item, range):
            total += (_ITEM + indent * (depth + 1)) * len(item)
            require_short(total)  # before the parts are looked at: there may be many
            waiting.extend((part, depth + 1) for part in _parts_of(item))
        total += _ITEM
        require_short(total)
    return total


def _parts_of(container: Iterable[object]) -> Iterable[object]:
    """The items of a container; of a mapping the keys and values."""
    if isinstance(container, Mapping):
        return itertools.chain(*container.items())
    return container


def _require_small(number: int) -> None:
    """Refuse a number with too many digits."""
    if number.bit_length() > _MAX_BITS:
        raise _too_large()


def _too_large() -> TemplateRefused:
    return TemplateRefused(f"it computes a number of more than {_MAX_BITS} bits")


def _require_few(count: int) -> None:
    """Refuse a list with too many items."""
    if count > _MAX_ITEMS:
        raise TemplateRefused(f"it makes a list of more than {_MAX_ITEMS} items")


def _listed(values: Iterable[Any]) -> list[Any]:
    """The values as a list. Raises TemplateRefused for too many."""
    found = list(itertools.islice(values, _MAX_ITEMS + 1))
    _require_few(len(found))
    return found


def _require_bounded_width(width: str | None) -> None:
    """Refuse a width in a format that is too large, or is taken from the values."""
    if width is None:
        return
    # A long number is not converted: that takes time, too.
    if width == "*" or len(width) > len(str(_MAX_WIDTH)) or int(width) > _MAX_WIDTH:
        raise TemplateRefused(f"it formats a field of {width[:20]} characters")


# Operators


def _check_power(base: object, exponent: object) -> None:
    """Check `base ** exponent`."""
    if not isinstance(base, int) or not isinstance(exponent, int) or exponent <= 0:
        return
    if base.bit_length() * exponent > _MAX_BITS:
        raise _too_large()


def _check_product(left: object, right: object) -> None:
    """Check `left * right`, of numbers, or of a text or a list and a number."""
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_BITS:
            raise _too_large()
    elif isinstance(left, int):
        _check_repeating(right, left)
    elif isinstance(right, int):
        _check_repeating(left, right)


def _check_repeating(repeated: object, times: int) -> None:
    """Check a text or a list that is repeated."""
    if times <= 0:
        return
    if isinstance(repeated, list | tuple):
        _require_few(len(repeated) * times)
    if isinstance(repeated, str | bytes | list | tuple):
        require_short(written_size(repeated) * times)


def _check_sum(left: object, right: object) -> None:
    """Check `left + right`."""
    if isinstance(left, str | bytes) and isinstance(right, str | bytes):
        require_short(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        _require_few(len(left) + len(right))


def _check_percent(text: object, values: object) -> None:
    """Check `text % values`, if the text is a format."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    if not isinstance(text, str):
        return
    num_fields = 0
    has_keys = False
    total_width = 0
    for field in _FIELD.finditer(text):
        _require_bounded_width(field["width"])
        _require_bounded_width(field["more"])
        num_fields += 1
        has_keys = has_keys or field["key"] is not None
        total_width += int(field["width"] or 0) + int(field["more"] or 0)
    # All values are written once, or each as often as its key occurs.
    num_times = 1
    if has_keys:
        num_times = num_fields
    require_short(len(text) + written_size(values) * num_times)
    require_short(total_width)


_OPERATORS: dict[str, Callable[[object, object], None]] = {
    "**": _check_power,
    "*": _check_product,
    "+": _check_sum,
    "%": _check_percent,
}


# Methods of texts and numbers


def _check_padding(_: object, width: int = 0, *__: object) -> None:
    require_short(width)


def _check_tabs(text: str, tabsize: int = 8) -> None:
    tab: Any = b"\t"
    if isinstance(text, str):
        tab = "\t"
    require_short(len(text) + text.count(tab) * max(tabsize, 0))


def _check_replacing(
    text: str,
    old: str,
    new: str,
    count: int | None = -1,
) -> None:
    found = text.count(old)
    if count is not None and count >= 0:
        found = min(found, count)
    require_short(len(text) + found * max(len(new) - len(old), 0))


def _check_joining(text: str, parts: Sequence[Any]) -> None:
    require_short(written_size(parts) + len(text) * len(parts))


def _check_translating(text: str, table: object, *_: object) -> None:
    longest = 1
    if isinstance(table, Mapping):
        texts = [value for value in table.values() if isinstance(value, str)]
        longest = max(map(len, texts), default=1)
    require_short(len(text) * longest)


def _check_format(text: str, *values: object, **named: object) -> None:
    """Check `str.format`."""
    num_fields = 0
    for _, name, form, _ in string.Formatter().parse(text):
        if name is None:
            continue
        num_fields += 1
        if form and "{" in form:
            raise TemplateRefused("it formats a field whose width is another field")
        for digits in re.findall(r"\d+", form or ""):
            _require_bounded_width(digits)
    each = written_size([*values, named]) + _MAX_WIDTH
    require_short(len(text) + num_fields * each)


def _check_searching(text: str, sought: object = None, *_: object, **__: object) -> None:
    """Check a method that compares each place of a text with each text or character sought."""
    if isinstance(sought, str | bytes | tuple) and len(text) * len(sought) > _MAX_SEARCH:
        raise TemplateRefused("it looks for too long a text")


def _check_bytes(number: int, length: int = 1, *_: object, **__: object) -> None:
    require_short(length)


def _check_appending(values: list[Any], *_: object) -> None:
    _require_few(len(values) + 1)


_CHANGES_OF_LISTS = ("append", "pop")  # methods that a template may call
_METHODS: dict[str, Callable[..., None]] = {
    "append": _check_appending,
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _check_padding),
    **dict.fromkeys(("format", "format_map"), _check_format),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _check_searching),
    **dict.fromkeys(("rfind", "rindex", "rsplit", "rpartition"), _check_searching),
    **dict.fromkeys(("startswith", "endswith"), _check_searching),
    "expandtabs": _check_tabs,
    "replace": _check_replacing,
    "join": _check_joining,
    "translate": _check_translating,
    "to_bytes": _check_bytes,
}


# Filters


def _check_indent(text: str, width: object = 4, *_: object, **__: object) -> None:
    size = width
    if isinstance(width, str):
        size = len(width)
    if isinstance(size, int):
        num_lines = len(text.splitlines()) + 1
        require_short(len(text) + max(size, 0) * num_lines)


def _check_wrapping(text: str, *given: object, **named: object) -> None:
    # One of these texts may be the one between the lines.
    texts = [value for value in (*given, *named.values()) if isinstance(value, str)]
    longest = max(map(len, texts), default=1)
    require_short(len(text) * (1 + longest))


def _check_trimming(text: object, chars: str | None = None) -> None:
    _check_searching(str(text), chars)


def _check_replace_filter(
    text: object,
    old: object,
    new: object,
    *rest: Any,
    **named: Any,
) -> None:
    _check_replacing(
        str(text),
        str(old),
        str(new),
        *rest,
        **named,
    )


def _check_format_filter(text: object, *values: object, **named: object) -> None:
    _check_percent(str(text), named or values)


def _check_batch(_: object, *given: object, **named: object) -> None:
    for value in (*given, *named.values()):
        if isinstance(value, int):
            _require_few(value)


def _check_rounding(_: object, precision: int = 0, *__: object, **___: object) -> None:
    if abs(precision) > _MAX_DIGITS:
        raise TemplateRefused(f"it rounds to more than {_MAX_DIGITS} digits")


def _check_sum_filter(_: object, attribute: object = None, start: object = 0) -> None:
    if not isinstance(start, int | float):
        raise TemplateRefused("it adds up other things than numbers")


def _check_nothing(*_: object, **__: object) -> None:
    """Check nothing: `_bounded` measures the value."""


# Filters that make a text of any value.
_WRITERS = (
    *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "striptags"),
    *("title", "truncate", "upper", "urlencode", "wordcount"),
)
_FILTERS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(_WRITERS, _check_nothing),
    "batch": _check_batch,
    "center": _check_padding,
    "format": _check_format_filter,
    "indent": _check_indent,
    "int": _check_nothing,
    "replace": _check_replace_filter,
    "round": _check_rounding,
    "slice": _check_batch,
    "sum": _check_sum_filter,
    "trim": _check_trimming,
    "wordwrap": _check_wrapping,
}
# For web pages and programmers: the size of their results is hard to foresee.
_MISSING_FILTERS = ("pprint", "urlize", "xmlattr")


def _bounded(original: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """A filter whose arguments are checked before it runs, and whose result after it."""
    num_before = 0
    if hasattr(original, "jinja_pass_arg"):  # it gets the environment, for example, first
        num_before = 1

    @functools.wraps(original)
    def bounded(*given: Any, **named: Any) -> Any:
        arguments = given[num_before:]
        for value in (*arguments, *named.values()):
            written_size(value)
        check(*arguments, **named)
        return _required_bounded(original(*given, **named))

    return bounded


def _required_bounded(value: Any) -> Any:
    """The result of an operation, if it is not too large. Raises TemplateRefused."""
    if isinstance(value, str | bytes):
        require_short(len(value))
    elif isinstance(value, int):
        _require_small(value)
    return value


@pass_eval_context
def _joined(
    context: EvalContext,
    value: Iterable[Any],
    d: str = "",
    attribute: str | int | None = None,
) -> Any:
    """Jinja's join, with a limit on the length of the result."""
    parts = _listed(value)
    require_short(written_size(parts) + len(parts) * written_size(d))
    return filters.do_join(context, parts, d, attribute)


def _to_json(
    value: Any,
    indent: int | str | None = None,
    *,
    ensure_ascii: bool = False,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the escapes for HTML of Jinja's own filter, with Hugging Face's options.

    The items that a filter such as `map` yields are written as a list, as by llama.cpp.
    """
    if isinstance(value, Iterator):
        value = _listed(value)
    if isinstance(indent, str):
        width = len(indent)
    elif indent is None:
        width = 0
    else:
        width = max(indent, 0)
    require_short(width)
    pair = None
    between = 0
    if separators is not None:
        pair = (separators[0], separators[1])
        between = sum(map(len, separators))
    written_size(value, width + between)
    return json.dumps(
        value,
        indent=indent,
        ensure_ascii=ensure_ascii,
        separators=pair,
        sort_keys=sort_keys,
    )


# The environment


class Reads(NamedTuple):
    """Names that a template reads."""

    variables: frozenset[str]
    """The names of variables."""

    keys: frozenset[str]
    """Attributes, and constants that may be keys."""


class _Generation(Extension):
    """`{% generation %}`: Hugging Face's mark around text that a model is trained on."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Code(CodeGenerator):
    """Python code of a template, in which the operator `~` calls the environment, too."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined_texts((")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")


@pass_context  # so that no constant is written while the template is compiled
def _check_size_of(_: Context, value: Any) -> Any:
    """A value that is about to become part of the prompt."""
    written_size(value)
    return value


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of templates, with the filters and functions of Hugging Face's own.

    Operations beyond a bound raise TemplateRefused.
    """

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    code_generator_class = _Code

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=_check_size_of,
            optimized=False,  # constants are not computed while the template is compiled
        )
        for name, check in _FILTERS.items():
            self.filters[name] = _bounded(self.filters[name], check)
        for name in _MISSING_FILTERS:
            del self.filters[name]
        self.filters["join"] = _joined
        self.filters["tojson"] = _to_json
        del self.globals["lipsum"]  # paragraphs without sense, as many as are asked for
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            look = nodes.Call(nodes.EnvironmentAttribute("look"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(look))
        return tree

    @staticmethod
    def look() -> None:
        """Raise Interrupted if the text is not wanted any more."""
        is_cancelled = cancel_check.get()
        if is_cancelled():
            raise Interrupted("making a prompt was cancelled")

    def reads(self, source: str) -> Reads:
        """Names that a source reads. Raises what Jinja raises for one that is broken."""
        tree = self.parse(source)
        variables = set()
        for variable in tree.find_all(nodes.Name):
            if variable.ctx == "load":
                variables.add(variable.name)
        keys = {attribute.attr for attribute in tree.find_all(nodes.Getattr)}
        for constant in tree.find_all(nodes.Const):
            if isinstance(constant.value, str):
                keys.add(constant.value)
        return Reads(frozenset(variables), frozenset(keys))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read that attribute."""
        if isinstance(obj, list) and attr in _CHANGES_OF_LISTS:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(
        self,
        context: Context,
        operator: str,
        left: Any,
        right: Any,
    ) -> Any:
        """The result of an operator."""
        for operand in (left, right):
            if isinstance(operand, int):
                _require_small(operand)
        check = _OPERATORS.get(operator)
        if check is not None:
            check(left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, /, *given: Any, **named: Any) -> Any:
        """The result of a function or a method."""
        self.look()
        method = getattr(called, "__wrapped__", called)  # Jinja wraps str.format
        owner = getattr(method, "__self__", None)
        name = getattr(method, "__name__", "")
        if isinstance(owner, str | bytes | int | list) and name in _METHODS:
            if name == "join":
                given = tuple(map(_listed, given))
            keywords = dict(named)
            for keyword in _JINJAS_OWN:
                keywords.pop(keyword, None)
            check = _METHODS[name]
            check(owner, *given, **keywords)
        result = super().call(context, called, *given, **named)
        return _required_bounded(result)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """The text that a macro or a block has written."""
        whole = list(pieces)
        require_short(sum(map(len, whole)))
        return "".join(whole)

    @staticmethod
    def joined_texts(values: Sequence[Any]) -> str:
        """Values as texts in a row: the operator `~`."""
        require_short(sum(map(written_size, values)))
        return "".join(map(str, values))


def _raise_exception(message: object) -> NoReturn:
    written_size(message)
    raise TemplateRefused(str(message))


def _strftime_now(form: str) -> str:
    # The system's own function reads widths in it, and fills up to 256 times its length.
    if len(form) > _MAX_FORM:
        raise TemplateRefused(f"it writes a date in a form of {len(form)} characters")
    return dt.datetime.now().strftime(form)
