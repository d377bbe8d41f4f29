"""Jinja's sandbox with a meter: what chat templates need, within bounds.

The sandbox keeps foreign code from the interpreter; the meter keeps it from using up time and
memory. Three rules do it: only what is named here can be used; whatever makes a value pays for
its size, beforehand where that could exceed its parts; every payment looks at the clock.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from jinja2 import Undefined, nodes, pass_context
from jinja2.ext import Extension
from jinja2.filters import FILTERS, do_indent, do_title, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace

from localspec.errors import Interrupted
from localspec.streaming.cancellation import CancelCheck, never

MAX_SECONDS = 5.0
MAX_TEXT = 4_000_000  # characters of one value
MAX_WORK = 20_000_000  # characters of all values that a rendering makes
_ELEMENT = 8  # characters that a value counts for besides those in it
_MAX_ARGUMENT = 100  # characters, where the work grows with both lengths; columns of an indent
_MAX_BITS = 256  # of a product

# Jinja's own that do no more work than they are given or return.
_FILTERS = (
    "abs", "count", "d", "default", "dictsort", "first", "float", "groupby", "items",
    "last", "length", "list", "map", "max", "min", "reject", "rejectattr", "reverse", "select",
    "selectattr", "sort", "unique",
)  # fmt: skip
_TESTS = TESTS.keys() - {"filter", "lower", "test", "upper"}
_STRIPS = frozenset({"lstrip", "rsplit", "rstrip", "strip"})
_METHODS: dict[type, frozenset[str]] = {
    str: _STRIPS | {
        "capitalize", "count", "endswith", "find", "format", "index", "isalnum", "isalpha",
        "isdigit", "islower", "isspace", "isupper", "join", "lower", "partition",
        "removeprefix", "removesuffix", "replace", "split", "splitlines", "startswith",
        "title", "upper",
    },
    dict: frozenset({"get", "items", "keys", "values"}),
}  # fmt: skip
# Arguments that Jinja's compiler adds to calls, and takes out of them again.
_JINJAS_OWN = frozenset({"_block_vars", "_loop_vars"})
# What can be written: of other objects nobody knows how much they write.
_DATA = (str, int, float, type(None), list, tuple, dict, Undefined)


class Refused(Exception):
    """The template was stopped: by its own words, or at a bound."""


class Exhausted(Refused):
    """It was stopped at a bound on its work, which grows with the messages."""


class _Generation(Extension):
    """`{% generation %}`: Hugging Face marks with it what a model learns from."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one template, rendered once after each `restart`."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while compiling
            finalize=self.write,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        own: dict[str, Callable[..., Any]] = {
            "capitalize": lambda value: self.text(value).capitalize(),
            "indent": self.indent,
            "int": _to_int,
            "join": self.join,
            "lower": lambda value: self.text(value).lower(),
            "replace": self.replace,
            "safe": self.text,
            "string": self.text,
            "title": lambda value: do_title(self.text(value)),
            "tojson": self.to_json,
            "trim": lambda value, chars=None: self.text(value).strip(_short(chars)),
            "upper": lambda value: self.text(value).upper(),
        }
        jinjas: dict[str, Any] = {name: FILTERS[name] for name in _FILTERS}
        self.filters = {name: self._kept(each) for name, each in (jinjas | own).items()}
        tests: dict[str, Any] = {name: TESTS[name] for name in _TESTS}
        self.tests = {name: self._kept(each) for name, each in tests.items()}
        self.globals = {
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": self.raise_exception,
            "range": self.globals["range"],  # the sandbox's, which is bounded
            "strftime_now": _strftime_now,
        }
        self._str_methods: dict[str, Callable[..., str]] = {
            "format": self.format,
            "join": lambda d, values: self.join(values, d),
            "replace": self.replace,
        }
        self.restart()

    def restart(self, is_cancelled: CancelCheck = never) -> None:
        """Give the next rendering its time and its work, until it is cancelled."""
        self._is_cancelled = is_cancelled
        self._deadline = time.monotonic() + MAX_SECONDS
        self._spent = 0

    def pay(self, work: int) -> None:
        """Count work. Raises Exhausted when there is too much of it, or no time left.

        Raises Interrupted when it is cancelled.
        """
        self._spent += work
        if self._is_cancelled():
            raise Interrupted("making a prompt was cancelled")
        if self._spent > MAX_WORK:
            raise Exhausted(f"it makes values of more than {MAX_WORK} characters")
        if time.monotonic() > self._deadline:
            raise Exhausted(f"it takes longer than {MAX_SECONDS:.0f} seconds")

    def keep(self, value: Any) -> Any:
        """The value, paid for with all that is in it, as often as it is in it."""
        self.pay(_weight(value))
        return value

    def _kept(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # which keeps what Jinja has noted on it
        def kept(*args: Any, **kwargs: Any) -> Any:
            return self.keep(function(*args, **kwargs))

        return kept

    def text(self, value: Any) -> str:
        """The value as `str` writes it, if it is data."""
        self.keep(value)
        if not isinstance(value, str):
            for each in _nested(value):
                if not isinstance(each, _DATA):
                    raise Refused(f"it writes a {type(each).__name__} as text")
        return str(value)

    @pass_context  # which also keeps Jinja from writing constants while it compiles
    def write(self, _context: Context, value: Any) -> str:
        """The text that `{{ value }}` writes."""
        return self.text(value)

    def glue(self, *values: Any) -> str:
        """The result of `~`."""
        return self.join(values)

    def join(self, values: Any, d: str = "", attribute: str | int | None = None) -> str:
        """The filter and the method, and `~`."""
        if attribute is not None:
            values = map(make_attrgetter(self, attribute), values)
        texts = [self.text(value) for value in values]
        self.pay(len(d) * len(texts))
        return d.join(texts)

    def replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        """The filter and the method."""
        text = self.text(value)
        self.pay(text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def format(self, form: str, *args: Any, **kwargs: Any) -> str:
        """The method, for fields that only name a value."""
        if re.search(r"{\w*[^\w{}]", form):
            raise Refused("it formats with options, which is not supported")
        texts = [self.text(value) for value in args]
        named = {key: self.text(value) for key, value in kwargs.items()}
        self.pay(form.count("{") * max(map(len, [*texts, *named.values()]), default=0))
        return form.format(*texts, **named)

    def indent(self, value: Any, width: int | str = 4, *args: Any) -> str:
        """The filter."""
        text = self.text(value)
        self.pay(len(text.splitlines()) * _MAX_ARGUMENT)
        return do_indent(text, _short(width), *args)

    def to_json(
        self,
        value: Any,
        indent: int | None = None,
        *,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
        ensure_ascii: bool = False,
    ) -> str:
        """The filter as Hugging Face has it: Jinja's own escapes for HTML."""
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii,
            indent=_short(indent),
            separators=separators,
            sort_keys=sort_keys,
        )
        return "".join(map(self.keep, encoder.iterencode(value)))

    def raise_exception(self, message: Any) -> NoReturn:
        """End the rendering with the template's words."""
        raise Refused(self.text(message))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use it: of Python's own types only what is named above."""
        if type(obj).__module__ == "builtins":
            return attr in _METHODS.get(type(obj), ())
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, _value: Any) -> None:
        """Leave the method `format` to `call`."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`, counted."""
        self.pay(1)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`, counted."""
        self.pay(1)
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Any call in a template."""
        owner = getattr(obj, "__self__", None)
        if owner is self:  # its methods pay by themselves
            return context.call(obj, *args, **kwargs)
        named = {key: kwargs[key] for key in kwargs.keys() - _JINJAS_OWN}
        self.keep([args, named])
        if isinstance(owner, str):
            if (method := self._str_methods.get(obj.__name__)) is not None:
                return self.keep(method(owner, *args, **named))
            if obj.__name__ in _STRIPS:
                args = tuple(map(_short, args))
        return self.keep(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operation whose result could be larger than what it is made of."""
        if operator == "%" and isinstance(left, str):
            raise Refused("it formats with %, which is not supported")
        if operator == "+":
            self.keep([left, right])
        elif isinstance(left, int) and isinstance(right, int):
            times = right if operator == "**" else 1
            if left.bit_length() * times + right.bit_length() > _MAX_BITS:
                raise Refused(f"it computes {operator} with too large numbers")
        elif operator == "*":
            times = max((each for each in (left, right) if isinstance(each, int)), default=1)
            self.pay(_weight([left, right]) * max(times, 1))
        return super().call_binop(context, operator, left, right)


def _nested(value: Any) -> Iterator[Any]:
    """The value and all that is in it, as often as it is in it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, list | tuple):
            waiting.extend(each)
        elif isinstance(each, dict):
            waiting.extend(each.keys())
            waiting.extend(each.values())


def _weight(value: Any) -> int:
    """What the value counts for; more than MAX_WORK if it is that large."""
    weight = 0
    for each in _nested(value):
        size = len(each) if isinstance(each, str) else 0
        if size > MAX_TEXT:
            raise Exhausted(f"it makes a text of {size} characters, more than {MAX_TEXT}")
        weight += _ELEMENT + size
        if weight > MAX_WORK:
            break
    return weight


def _short(argument: Any) -> Any:
    """An argument that multiplies the work: by its length, or as a width."""
    size = len(argument) if isinstance(argument, str) else argument
    if isinstance(size, int) and size > _MAX_ARGUMENT:
        raise Refused(f"it asks for {size} characters where {_MAX_ARGUMENT} are allowed")
    return argument


def _to_int(value: Any, *args: Any) -> Any:
    return FILTERS["int"](_short(value) if isinstance(value, str) else value, *args)


def _strftime_now(form: str) -> str:
    return dt.datetime.now().strftime(_short(form))
