"""Jinja's sandbox for chat templates, with bounds on the time and memory of each operation.

A template comes with a model file, so it is foreign code. No signal and no thread can interrupt
a single operation of Python or its C code. So the sandbox computes the size of a result before
each operation that could take unlimited time or memory: powers, products, formats, paddings,
joined texts, written values. It raises TemplateRefused if the result would be too large. The
number of operations is not bounded here. But before each call, and in each iteration of a loop,
the sandbox raises Interrupted if the prompt was cancelled.

Hugging Face's sandbox refuses every change of a list. Kimi K2's template, which llama.cpp runs,
keeps a queue in a list. So a template may append to lists and remove their items, and the
caller has to pass copies of its own lists.
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
_MAX_ITEMS = 1_000_000  # items of a list
_MAX_BITS = 10_000  # bits of a whole number: about 3,000 digits
_MAX_WIDTH = 10_000  # characters of a field in a format
_MAX_DIGITS = 100  # digits to which a number is rounded
_MAX_DATE_FORMAT = 1000  # characters of the format of a date
_MAX_SEARCH = 1_000_000_000  # characters that a search compares, at worst
_JINJAS_OWN = ("_loop_vars", "_block_vars")  # keywords of a call that Jinja adds and removes
_ITEM = 4  # characters around an item of a list in a text, roughly

cancel_check: ContextVar[CancelCheck] = ContextVar("cancel_check", default=never)
"""Whether the rendering in this thread or task was cancelled."""

_CONTAINERS = (Mapping, Sequence, Set, ValuesView)  # their items are written with them

# A field of a %-format: its key, width and precision.
_FIELD = re.compile(
    r"%(?:%|(?:\((?P<key>[^)]*)\))?[#0\- +]*(?P<width>\d+|\*)?(?:\.(?P<precision>\d+|\*))?)"
)


class TemplateRefused(Exception):
    """The template was stopped: it called raise_exception, or passed a limit."""


class TextTooLong(TemplateRefused):
    """The template writes more characters than a prompt may have."""

    def __init__(self) -> None:
        super().__init__(f"it writes more than {MAX_TEXT} characters")


# Sizes


def require_short(length: int) -> None:
    """Raise TextTooLong for a length of a text, in characters, above MAX_TEXT."""
    if length > MAX_TEXT:
        raise TextTooLong


def written_size(value: object, indent: int = 0) -> int:
    """Approximate number of characters of a value as text or JSON.

    A list may contain another list many times, so that a few bytes become a long text. So this
    raises TextTooLong as soon as the sum is above MAX_TEXT. Raises TemplateRefused for a
    namespace, whose size is unknown.

    Args:
        value: Any value.
        indent: The spaces by which JSON is indented at each level.
    """
    if isinstance(value, str):
        require_short(len(value))
        return len(value)
    total = 0
    uncounted: list[tuple[object, int]] = [(value, 0)]  # values with their depth
    while uncounted:
        item, depth = uncounted.pop()
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, int):
            total += item.bit_length() // 3  # a digit has a little more than 3 bits
        elif isinstance(item, Namespace):
            raise TemplateRefused("it writes a namespace")
        elif isinstance(item, _CONTAINERS) and not isinstance(item, range):
            size_around_item = _ITEM + indent * (depth + 1)
            total += size_around_item * len(item)
            require_short(total)  # before the parts are listed: there may be too many
            uncounted.extend((part, depth + 1) for part in _parts_of(item))
        total += _ITEM
        require_short(total)
    return total


def _parts_of(container: Iterable[object]) -> Iterable[object]:
    """The items of a container; the keys and values of a mapping."""
    if isinstance(container, Mapping):
        return itertools.chain(*container.items())
    return container


def _require_small(num_bits: int) -> None:
    """Raise TemplateRefused for a number of bits that a whole number may not have."""
    if num_bits > _MAX_BITS:
        raise TemplateRefused(f"it computes a number of more than {_MAX_BITS} bits")


def _require_few(count: int) -> None:
    """Raise TemplateRefused for a number of items that a list may not have."""
    if count > _MAX_ITEMS:
        raise TemplateRefused(f"it makes a list of more than {_MAX_ITEMS} items")


def _listed(values: Iterable[Any]) -> list[Any]:
    """The values as a list. Raises TemplateRefused for more than _MAX_ITEMS."""
    items = list(itertools.islice(values, _MAX_ITEMS + 1))
    _require_few(len(items))
    return items


def _require_bounded_width(width: str | None) -> None:
    """Raise TemplateRefused for a width in a format that is too large or unknown.

    Args:
        width: The digits of the width; "*" if it is one of the values; None without a width.
    """
    if width is None:
        return
    # Checked first, because converting a long number takes time, too.
    has_many_digits = len(width) > len(str(_MAX_WIDTH))
    if width == "*" or has_many_digits or int(width) > _MAX_WIDTH:
        raise TemplateRefused(f"it formats a field of {width[:20]} characters")


# Checks of operators: each raises TemplateRefused if the result would be too large.


def _check_power(base: object, exponent: object) -> None:
    """Check `base ** exponent`."""
    if not isinstance(base, int) or not isinstance(exponent, int):
        return
    if exponent > 0:
        _require_small(base.bit_length() * exponent)


def _check_product(left: object, right: object) -> None:
    """Check `left * right`, also where one of them is a text or a list to repeat."""
    if isinstance(left, int) and isinstance(right, int):
        _require_small(left.bit_length() + right.bit_length())
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
    """Check `left + right`, of two texts or two lists."""
    if isinstance(left, str | bytes) and isinstance(right, str | bytes):
        require_short(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        _require_few(len(left) + len(right))


def _check_percent(text: object, values: object) -> None:
    """Check `text % values`, where a text formats values."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    if not isinstance(text, str):
        return
    num_fields = 0
    has_keys = False
    total_width = 0
    for field in _FIELD.finditer(text):
        num_fields += 1
        if field["key"] is not None:
            has_keys = True
        for width in (field["width"], field["precision"]):
            _require_bounded_width(width)
            total_width += int(width or 0)
    # Without keys all values are written once. By keys a value can be written in each field.
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


# Checks of methods of texts, numbers and lists. The arguments are those of the methods. The
# value itself is positional-only where keywords may have any name, as in `str.format`.


def _check_padding(_: object, width: int = 0, *__: object) -> None:
    """Check `str.center` and other methods that fill a text up to a width."""
    require_short(width)


def _check_tabs(text: str, tabsize: int = 8) -> None:
    """Check `str.expandtabs`, also of bytes."""
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
    """Check `str.replace`; for None, as for a negative count, all occurrences are replaced."""
    num_replaced = text.count(old)
    if count is not None and count >= 0:
        num_replaced = min(num_replaced, count)
    growth = max(len(new) - len(old), 0)
    require_short(len(text) + num_replaced * growth)


def _check_joining(separator: str, parts: Sequence[Any]) -> None:
    """Check `str.join`."""
    require_short(written_size(parts) + len(separator) * len(parts))


def _check_translating(text: str, table: object, *_: object) -> None:
    """Check `str.translate`, by the longest text in the table."""
    longest = 1
    if isinstance(table, Mapping):
        texts = [value for value in table.values() if isinstance(value, str)]
        longest = max(map(len, texts), default=1)
    require_short(len(text) * longest)


def _check_format(text: str, /, *values: object, **named_values: object) -> None:
    """Check `str.format` and `str.format_map`."""
    num_fields = 0
    for _, name, specification, _ in string.Formatter().parse(text):
        if name is None:  # plain text after the last field
            continue
        num_fields += 1
        if specification and "{" in specification:
            raise TemplateRefused("it formats a field whose width is another field")
        for digits in re.findall(r"\d+", specification or ""):
            _require_bounded_width(digits)
    # Each field may show all values, padded to the largest width.
    field_size = written_size([*values, named_values]) + _MAX_WIDTH
    require_short(len(text) + num_fields * field_size)


def _check_searching(text: str, /, sep: object = None, *_: object, **__: object) -> None:
    """Check a method that compares the pattern with the text at each index of the text.

    Args:
        text: The text.
        sep: The pattern, by its name in `str.rsplit`: a text, a set of characters, or a tuple
            of texts.
    """
    if not isinstance(sep, str | bytes | tuple):
        return
    if len(text) * len(sep) > _MAX_SEARCH:
        raise TemplateRefused("it looks for too long a text")


def _check_bytes(number: int, /, length: int = 1, *_: object, **__: object) -> None:
    """Check `int.to_bytes`."""
    require_short(length)


def _check_appending(values: list[Any], *_: object) -> None:
    """Check `list.append`."""
    _require_few(len(values) + 1)


_CHANGES_OF_LISTS = ("append", "pop")  # methods that change a list, which a template may call
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


# Checks of Jinja's filters. The arguments are those of the filters.


def _check_indent(text: str, /, width: object = 4, *_: object, **__: object) -> None:
    """Check `indent`, by a number of spaces or by a text."""
    size = width
    if isinstance(width, str):
        size = len(width)
    if isinstance(size, int):
        num_lines = len(text.splitlines()) + 1
        require_short(len(text) + max(size, 0) * num_lines)


def _check_wrapping(text: str, /, *arguments: object, **keywords: object) -> None:
    """Check `wordwrap`. One of the texts may be `wrapstring`, which separates the lines."""
    texts = [value for value in (*arguments, *keywords.values()) if isinstance(value, str)]
    longest = max(map(len, texts), default=1)
    require_short(len(text) * (1 + longest))


def _check_trimming(text: object, chars: str | None = None) -> None:
    """Check `trim`."""
    _check_searching(str(text), chars)


def _check_replace_filter(
    text: object,
    /,
    old: object,
    new: object,
    *arguments: Any,
    **keywords: Any,
) -> None:
    """Check `replace`, which converts its values to texts."""
    _check_replacing(
        str(text),
        str(old),
        str(new),
        *arguments,
        **keywords,
    )


def _check_format_filter(text: object, /, *values: object, **named_values: object) -> None:
    """Check `format`, which is `text % values`."""
    _check_percent(str(text), named_values or values)


def _check_batch(_: object, /, *arguments: object, **keywords: object) -> None:
    """Check `batch` and `slice`, which fill up lists to a number of items."""
    for value in (*arguments, *keywords.values()):
        if isinstance(value, int):
            _require_few(value)


def _check_rounding(_: object, /, precision: int = 0, *__: object, **___: object) -> None:
    """Check `round`."""
    if abs(precision) > _MAX_DIGITS:
        raise TemplateRefused(f"it rounds to more than {_MAX_DIGITS} digits")


def _check_sum_filter(_: object, attribute: object = None, start: object = 0) -> None:
    """Check `sum`: with a text or a list as its start it would join many of them."""
    if not isinstance(start, int | float):
        raise TemplateRefused("it adds up other things than numbers")


def _check_nothing(*_: object, **__: object) -> None:
    """Accept any arguments: `_bounded` checks their sizes."""


# Filters that convert any value to a text.
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
# For web pages and programmers: the size of their results is hard to compute before.
_REMOVED_FILTERS = ("pprint", "urlize", "xmlattr")


def _bounded(original: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """A filter that raises TemplateRefused if an argument or the result is too large.

    Args:
        original: Jinja's filter.
        check: Called with the filter's arguments before the filter runs.
    """
    num_passed_by_jinja = 0
    if hasattr(original, "jinja_pass_arg"):  # the first argument is the environment or such
        num_passed_by_jinja = 1

    @functools.wraps(original)
    def bounded(*all_arguments: Any, **keywords: Any) -> Any:
        arguments = all_arguments[num_passed_by_jinja:]
        for value in (*arguments, *keywords.values()):
            written_size(value)  # raises for a value that is too large
        check(*arguments, **keywords)
        result = original(*all_arguments, **keywords)
        return _checked_result(result)

    return bounded


def _checked_result(value: Any) -> Any:
    """The result of an operation. Raises TemplateRefused if it is too large."""
    if isinstance(value, str | bytes):
        require_short(len(value))
    elif isinstance(value, int):
        _require_small(value.bit_length())
    return value


@pass_eval_context
def _joined(
    context: EvalContext,
    value: Iterable[Any],
    d: str = "",
    attribute: str | int | None = None,
) -> Any:
    """Jinja's filter `join`, with a limit on the length of the result.

    Args:
        context: Jinja's context.
        value: The values to join.
        d: The separator, by Jinja's name.
        attribute: The attribute of each value that is joined; None for the value.
    """
    parts = _listed(value)
    separators_size = len(parts) * written_size(d)
    require_short(written_size(parts) + separators_size)
    return filters.do_join(context, parts, d, attribute)


def _to_json(
    value: Any,
    indent: int | str | None = None,
    *,
    ensure_ascii: bool = False,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson`: a value as JSON, with the options of Hugging Face's filter.

    Unlike Jinja's own filter, it does not escape characters for HTML. An iterator, such as the
    filter `map` gives, is written as a list, as llama.cpp does. The options are those of
    `json.dumps`.
    """
    if isinstance(value, Iterator):
        value = _listed(value)
    if isinstance(indent, str):
        indent_width = len(indent)
    elif indent is None:
        indent_width = 0
    else:
        indent_width = max(indent, 0)
    require_short(indent_width)
    separator_pair = None
    separators_size = 0
    if separators is not None:
        separator_pair = (separators[0], separators[1])
        separators_size = sum(map(len, separators))
    # Raises if it is too large. Separators count as if they made each indent wider.
    written_size(value, indent_width + separators_size)
    return json.dumps(
        value,
        indent=indent,
        ensure_ascii=ensure_ascii,
        separators=separator_pair,
        sort_keys=sort_keys,
    )


# The environment


class Reads(NamedTuple):
    """Names that a template reads."""

    variables: frozenset[str]
    """The names of variables."""

    keys: frozenset[str]
    """The names of attributes, and all texts, which may be keys."""


class _Generation(Extension):
    """Jinja's tag `{% generation %}`, by which Hugging Face marks the text for training.

    Here the tag has no effect on the text in it.
    """

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """The statements up to `{% endgeneration %}`. Called at the tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Code(CodeGenerator):
    """Writes the Python code of a template; the operator `~` calls `joined_texts` there."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Write `environment.joined_texts((a, b, ))` for the expression `a ~ b`."""
        self.write("environment.joined_texts((")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")


@pass_context  # so that Jinja does not call it while it compiles the template
def _checked_size(_: Context, value: Any) -> Any:
    """A value that becomes part of the prompt. Raises TextTooLong if it is too long."""
    written_size(value)
    return value


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's environment for templates, with the filters and functions of Hugging Face's.

    An operation whose result would be too large raises TemplateRefused.
    """

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    code_generator_class = _Code

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=_checked_size,
            optimized=False,  # constants are not computed while the template is compiled
        )
        for name, check in _FILTERS.items():
            self.filters[name] = _bounded(self.filters[name], check)
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        self.filters["join"] = _joined
        self.filters["tojson"] = _to_json
        del self.globals["lipsum"]  # writes any number of paragraphs
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Jinja's syntax tree of a source, with a call of `check_cancelled` in each loop."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            method = nodes.EnvironmentAttribute("check_cancelled")
            check = nodes.Call(method, [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(check))
        return tree

    @staticmethod
    def check_cancelled() -> None:
        """Raise Interrupted if the rendering was cancelled: see `cancel_check`."""
        is_cancelled = cancel_check.get()
        if is_cancelled():
            raise Interrupted("making a prompt was cancelled")

    def reads(self, source: str) -> Reads:
        """The names that a template with this source reads. Raises Jinja's errors."""
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
        """Whether a template may read an attribute: as in Jinja, and two methods of lists."""
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
        """The result of an operator. Raises TemplateRefused if it would be too large."""
        for operand in (left, right):
            if isinstance(operand, int):
                _require_small(operand.bit_length())
        check = _OPERATORS.get(operator)
        if check is not None:
            check(left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        """The result of a function or a method that the template calls.

        Raises TemplateRefused if the result would be too large, Interrupted once the rendering
        is cancelled.
        """
        self.check_cancelled()
        method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
        owner = getattr(method, "__self__", None)
        name = getattr(method, "__name__", "")
        if isinstance(owner, str | bytes | int | list) and name in _METHODS:
            if name == "join":
                arguments = tuple(map(_listed, arguments))
            method_keywords = dict(keywords)
            for keyword in _JINJAS_OWN:
                method_keywords.pop(keyword, None)
            check = _METHODS[name]
            check(owner, *arguments, **method_keywords)
        result = super().call(context, function, *arguments, **keywords)
        return _checked_result(result)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join the pieces that a macro or a block has written. Raises TextTooLong."""
        texts = list(pieces)
        require_short(sum(map(len, texts)))
        return "".join(texts)

    @staticmethod
    def joined_texts(values: Sequence[Any]) -> str:
        """The result of the operator `~`: the values as texts, joined. Raises TextTooLong."""
        require_short(sum(map(written_size, values)))
        return "".join(map(str, values))


def _raise_exception(message: object) -> NoReturn:
    """The function `raise_exception`, by which a template refuses messages."""
    written_size(message)
    raise TemplateRefused(str(message))


def _strftime_now(date_format: str) -> str:
    """The function `strftime_now`: the local date and time in a format of `strftime`.

    Raises TemplateRefused for a long format.
    """
    # A format may contain widths, by which the result is up to 256 times as long as the format.
    if len(date_format) > _MAX_DATE_FORMAT:
        raise TemplateRefused(f"it writes a date in a form of {len(date_format)} characters")
    return dt.datetime.now().strftime(date_format)
