"""A grammar for an answer that may or must call tools, in llguidance's dialect of Lark.

From the moment a call begins, its name is one of the tools' and its arguments fit the schema.
What is said before is free, unless a call must be made. Arguments are JSON, or in a family's
own notation. There, lengths and patterns of texts are not kept to, and a text, name or choice
that holds the notation's end of a text cannot be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from localspec.errors import ConstraintError
from localspec.tools.arguments import (
    CDATA,
    CDATA_END,
    KEY,
    KIND,
    QUOTE,
    VALUE_KINDS,
    GemmaArguments,
    Tags,
    in_tags,
)
from localspec.tools.call_form import CALL_ID, MARKED_ID, NAME, CallForm
from localspec.tools.schemas import (
    ONE_LINE,
    Schema,
    alternatives,
    branches,
    choices,
    properties_of,
    resolved,
    takes_text,
    types_of,
)
from localspec.tools.tool import Tool, ToolUse, new_call_id


class CallGrammar(NamedTuple):
    """The grammar of an answer."""

    lark: str
    """The grammar of the text after the first of the triggers; without triggers, of all but
    the thoughts."""

    triggers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an answer can have, and how these are written."""

    form: CallForm
    use: ToolUse
    shown: frozenset[int] = frozenset()
    """Ids of control tokens that are among the form's marks, and are rendered to be seen."""

    grammar: CallGrammar | None = None
    """What keeps the answer to the form and the tools' schemas; None if it is free, so that
    only what was read to its end is known to be a call."""

    key: str = field(default_factory=new_call_id)
    """The calls' ids are made of it, so that they are the same each time that the answer is
    read."""

    def id_of(self, number: int) -> str:
        """The id of a call of the answer, by its number, from 0."""
        return hashlib.sha256(f"{self.key} {number}".encode()).hexdigest()[: len(self.key)]

    @property
    def have_frame(self) -> bool:
        """Whether the grammar is of the whole answer, whose thoughts and calls are messages."""
        return self.grammar is not None and bool(self.form.recipient)


def call_grammar(
    form: CallForm,
    use: ToolUse,
    tokens: Mapping[str, int],
    schema_of: Callable[[Tool], Schema],
) -> CallGrammar:
    """The grammar of the calls in an answer, and of the answer itself if it must be a call.

    Args:
        tokens: Ids of the form's marks that are entries of the vocabulary.
        schema_of: The schema for the arguments of a tool.
    """
    spell = GrammarTexts(tokens)
    rules = []
    for number, tool in enumerate(use.callable):
        opened = "" if form.recipient else spell.start(form.start, tool.name)
        rules.append(f"call_{number}: {opened} args_{number} {spell.of(form.end)}".rstrip())
        name = f"args_{number}"
        schema = schema_of(tool)
        if form.notation is GemmaArguments:
            rules += gemma_rules(name, schema, spell)
        elif form.tags is not None:
            named = schema if properties_of(schema) else _kinds(tool.parameters) or schema
            rules += tag_rules(name, named, form.tags, spell)
        else:
            rules.append(json_rule(name, schema))
    if form.recipient:
        start, triggers = _messages(use, spell)
        return CallGrammar("\n".join([*start, *rules]) + "\n", triggers)
    calls = " | ".join(f"call_{number}" for number in range(len(use.callable)))
    rules.insert(0, f"call: {calls}")
    more = f"({spell.of(form.between)} call)*" if use.is_parallel and not form.is_single else ""
    rules.insert(0, f"calls: call {more} {spell.of(form.after)}".rstrip())
    if form.is_bare and use.answer_schema is not None and not use.must:
        return CallGrammar(_objects(use, use.answer_schema, schema_of))
    start, triggers = _start(form, use, spell)
    return CallGrammar("\n".join([*start, *rules]) + "\n", triggers)


def _start(
    form: CallForm, use: ToolUse, spell: GrammarTexts
) -> tuple[list[str], tuple[str, ...]]:
    """The first rules, and the texts behind which they apply."""
    if use.must:
        return [f"start: {spell.of(form.before)} calls"], ()
    if use.answer_schema is not None:
        start = f"start: {spell.of(form.before)} calls | answer"
        return [start, json_rule("answer", use.answer_schema)], ()
    if not form.is_bare:
        opening = form.openings[0]
        rest = spell.of(form.before.removeprefix(opening))
        return [f"start: {rest} calls"], form.openings
    # A text that begins like a call is one. `streaming.calls` takes an opening that is spelled
    # out for the vocabulary's entry.
    begin = r"\s*".join(map(re.escape, form.sign))
    opened = " | ".join(f"TEXT? {spell.of(opening)} calls" for opening in form.openings)
    entries = "|".join(re.escape(each) for each in form.openings if each in spell.tokens)
    spelled = f" & ~/(.|\\n)*({entries})(.|\\n)*/" if entries else ""
    text = f"/(.|\\n)*/ & ~/\\s*{begin}(.|\\n)*/{spelled}"
    return [f"start: calls | TEXT | {opened}", f"TEXT: {text}"], ()


def _objects(use: ToolUse, answer: Schema, schema_of: Callable[[Tool], Schema]) -> str:
    """The grammar if a call is an object, and so is any other answer."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "parameters": schema_of(tool)},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for tool in use.callable
    ]
    wishes = answer.get("x-guidance", {})
    return json_rule("start", {"anyOf": [*calls, answer], "x-guidance": wishes}) + "\n"


def _messages(use: ToolUse, spell: GrammarTexts) -> tuple[list[str], tuple[str, ...]]:
    """The first rules if a call is a message: gpt-oss's channels."""
    channel = spell.of("<|channel|>")
    message = spell.of("<|message|>")
    kind = f'(" json" | " "? {spell.of("<|constrain|>")} "json")?'
    names = " | ".join(
        f"{json.dumps(tool.name)} channel? {kind} {message} call_{number}"
        for number, tool in enumerate(use.callable)
    )
    rules = [f'channel: {channel} ("commentary" | "analysis")', f"named: {names}"]
    trigger = " to=functions."
    if not use.must and use.answer_schema is None:
        return ["start: named", *rules], (trigger,)
    start = spell.of("<|start|>")
    whole = f"channel? {json.dumps(trigger)} named"
    if not use.must and use.answer_schema is not None:
        rules.append(json_rule("answer", use.answer_schema))
        whole = f'({whole} | {channel} "final" {kind} {message} answer)'
    return [
        f'start: (thought {start} "assistant")* {whole}',
        f'thought: {channel} "analysis" {message} rest',
        spell.until("rest", "<|end|>"),
        *rules,
    ], ()


_NO_TEXTS = ["object", "array", "number", "boolean", "null"]


def _kinds(schema: Schema) -> Schema:
    """The properties that a schema names, each kept only to being a text or none."""
    values = {
        key: {"type": _NO_TEXTS} if takes_text(value, schema) is False else {}
        for key, value in properties_of(schema).items()
    }
    if values:
        return {"properties": values}
    return {}


_ANY_ID = "/[A-Za-z0-9]{1,10}/"
_ANY_KIND = f"({' | '.join(map(json.dumps, VALUE_KINDS))})"


class GrammarTexts:
    """How texts stand in a grammar.

    Args:
        tokens: Ids of marks that are entries of the vocabulary.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.tokens = tokens
        marks = sorted(tokens, key=len, reverse=True)
        self._parts = re.compile("(" + "|".join(map(re.escape, marks)) + ")") if marks else None

    def of(self, text: str) -> str:
        """The text, with its marks as entries; "" for none."""
        parts = self._parts.split(text) if self._parts is not None else [text]
        return " ".join(
            f"<[{self.tokens[part]}]>" if part in self.tokens else json.dumps(part)
            for part in parts
            if part
        )

    def start(self, text: str, name: str) -> str:
        """How a call begins, with the tool's name, and any id."""
        optional = MARKED_ID.search(text)
        if optional is None:
            parts = text.split(CALL_ID)
            between = _ANY_ID
        else:
            parts = [text[: optional.start()], text[optional.end() :]]
            between = f"({self.of(optional[1])} {_ANY_ID})?"
        return f" {between} ".join(self.of(part.replace(NAME, name)) for part in parts)

    def until(self, name: str, end: str) -> str:
        """Rules of that name: any text up to and with `end`, but for blank space before it."""
        bare = end.strip()
        if any(mark in bare for mark in self.tokens):
            # `tools.arguments` cannot tell an end that is spelled out from the entry.
            text = f"{name.upper()}_TEXT"
            holding = f"~/(.|\\n)*{_in_regex(bare)}(.|\\n)*/"
            return f"{name}: {text}? {self.of(end.lstrip())}\n{text}: /(.|\\n)+/ & {holding}"
        return f"{name}[lazy]: /(.|\\n)*/ {json.dumps(end)}"


def json_rule(name: str, schema: Schema) -> str:
    """A value of the schema, on one line.

    Of the schema's wishes to llguidance only "lenient" counts.
    """
    wishes = schema.get("x-guidance")
    is_lenient = isinstance(wishes, Mapping) and wishes.get("lenient") is True
    ours = {**ONE_LINE, "lenient": is_lenient}
    return f"{name}: %json {json.dumps({**schema, 'x-guidance': ours})}"


def tag_rules(name: str, schema: Schema, tags: Tags, spell: GrammarTexts) -> list[str]:
    """Each argument between tags of its own: required ones, then any of the others.

    A schema that names none, and does not refuse others, takes any. Raises ConstraintError for
    a required one that cannot be written.
    """
    writer = _TagWriter(name, schema, tags, spell)
    between = spell.of(tags.between)
    if not properties_of(schema) and schema.get("additionalProperties") is not False:
        found = writer.any_one()
        return [f"{name}: ({name}_any ({between} {name}_any)*)?", *found]
    rules: list[str] = []
    required: list[str] = []
    others: list[str] = []
    for number, (key, value) in enumerate(properties_of(schema).items()):
        rule = f"{name}_{number}"
        found = writer.argument(rule, key, resolved(value, schema))
        if found:
            rules += found
            (required if key in schema.get("required", ()) else others).append(rule)
        elif key in schema.get("required", ()):
            raise _unwritable(key)
    first = f" {between} ".join(required)
    written, found = _in_a_row(name, first, others, between)
    return [f"{name}: {written}" if written else f'{name}: ""', *found, *rules]


_MOST_ONCE = 64  # bits of a parameter of llguidance's rules


def _in_a_row(
    name: str, first: str, others: Sequence[str], between: str
) -> tuple[str, list[str]]:
    """The first arguments, then any of the others, each at most once, in any order.

    The second value is the rules that this needs. Each of the others has a bit of a parameter
    that says whether it was there; those for which no bit is left may come again.

    Args:
        name: With which the name of a rule begins.
        first: The first arguments, with what stands between them; "" for none.
        others: The rule of each of the others.
        between: What stands between two arguments.
    """
    if not others:
        return first, []
    more = f"{name}_more"
    following = ['""']
    beginning = []
    for number, other in enumerate(others):
        if number < _MOST_ONCE:
            once = f"{more}::set_bit({number}) %if bit_clear({number})"
            following.append(f"{between} {other} {once}")
            beginning.append(f"{other} {more}::{1 << number:#x}")
        else:
            following.append(f"{between} {other} {more}::_")
            beginning.append(f"{other} {more}::0x0")
    written = f"{first} {more}::0x0" if first else f"({' | '.join(beginning)})?"
    return written, [f"{more}::_: {' | '.join(following)}"]


class _TagWriter:
    """Writes the rules of one tool's arguments between tags."""

    def __init__(self, name: str, root: Schema, tags: Tags, spell: GrammarTexts) -> None:
        self._name = name
        self._root = root
        self._tags = tags
        self._spell = spell

    def any_one(self) -> list[str]:
        """The rules of an argument of any name."""
        tags = self._tags
        value = f"{self._name}_any_value"
        if tags.is_quoted:
            key = r"/[A-Za-z_]\w*/"
            rules = [json_rule(value, {})]
        else:
            key = '/[^<>"\\n]+/'
            rules = self._text(value, tags.closing)
        opened = f"{self._spell.of(tags.opening)} {key} {self._spell.of(tags.naming)}"
        return [f"{self._name}_any: {opened} {value}", *rules]

    def argument(self, rule: str, key: str, schema: object) -> list[str]:
        """The rules of an argument; none if it, or no value of it, can be written."""
        tags = self._tags
        if tags.is_quoted:
            if key.isidentifier():
                return self._literal(rule, key, schema)
            return []
        if tags.naming in key:
            return []
        closing = tags.closing.replace(KEY, key)
        found = branches(schema, self._root)
        free = [each for each in found if choices(each) is None and each is not False]
        options: list[str] = []
        rules: list[str] = []
        if any(takes_text(each, self._root) is not False for each in free):
            options.append(f"{self._opened(key, tags.naming)} {rule}_value")
            rules += self._text(f"{rule}_value", closing)
        if options and tags.naming == tags.naming_other:
            found = free = []  # a text may look like any other value
        for choice in (choice for each in found for choice in choices(each) or ()):
            text = f"{in_tags(choice)}{closing}"
            if closing.strip() not in in_tags(choice):
                opened = self._opened(key, tags.naming_of(choice))
                options.append(f"{opened} {self._spell.of(text)}")
        if any(takes_text(each, self._root) is not True for each in free):
            opened = self._opened(key, tags.naming_other)
            options.append(f"{opened} {rule}_json {self._spell.of(closing)}")
            rules.append(json_rule(f"{rule}_json", self._no_text(free)))
        if options:
            return [f"{rule}: {' | '.join(options)}", *rules]
        return []

    def _literal(self, rule: str, key: str, schema: object) -> list[str]:
        """The rules of an argument whose value is quoted if it is a text."""
        value = f"{rule}_value"
        opened = self._opened(key, self._tags.naming)
        return [f"{rule}: {opened} {value}", json_rule(value, self._with_root(schema))]

    def _no_text(self, free: Sequence[object]) -> Schema:
        """A schema of the values of these that are no texts."""
        kept = [each for each in free if takes_text(each, self._root) is not True]
        found = self._with_root({"anyOf": kept})
        if any(takes_text(each, self._root) is None for each in kept):
            return {"allOf": [found, {"type": _NO_TEXTS}]}
        return found

    def _opened(self, key: str, naming: str) -> str:
        """What stands before a value, with any kind where the naming has one."""
        before, kind, behind = naming.partition(KIND)
        opened = self._spell.of(f"{self._tags.opening}{key}{before}")
        if kind:
            return f"{opened} {_ANY_KIND} {self._spell.of(behind)}"
        return opened

    def _with_root(self, schema: object) -> Schema:
        """A schema by itself, which may refer to what its root defines."""
        definitions = {
            word: self._root[word] for word in ("$defs", "definitions") if word in self._root
        }
        own = schema if isinstance(schema, Mapping) else {"anyOf": [schema]}
        return {**definitions, **own}

    def _text(self, rule: str, closing: str) -> list[str]:
        """The rules of a text with its closing, which it does not hold by itself."""
        if not self._tags.has_cdata:
            return self._bare_text(rule, closing)
        plain = f"(/[^<&\\n]+/)? {self._spell.of(closing)}"
        marked = self._bare_text(f"{rule}_marked", f"{CDATA_END}{closing}")
        return [f"{rule}: {plain} | {json.dumps(CDATA)} {rule}_marked", *marked]

    def _bare_text(self, rule: str, closing: str) -> list[str]:
        """As `_text`, of one without marks around it."""
        bare = closing.strip()
        if any(mark in bare for mark in self._spell.tokens):
            return [self._spell.until(rule, closing)]
        text = rule.upper()
        more = r"(.|\n)" * (len(closing) - closing.index(bare) - len(bare))
        whole = f"/(.|\\n)*{_in_regex(closing)}/"
        return [
            f"{rule}: {text}",
            f"{text}: {whole} & ~/(.|\\n)*{_in_regex(bare)}{more}(.|\\n)+/",
        ]


def _in_regex(text: str) -> str:
    """A text in a regular expression of Lark's."""
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n").replace("\n", "\\n")


def _unwritable(name: str) -> ConstraintError:
    return ConstraintError(
        f"the model's notation of calls cannot say {name!r:.80}, or any value of it",
        "Rename it, or choose its values without the model's marks.",
    )


def gemma_rules(name: str, schema: Schema, spell: GrammarTexts) -> list[str]:
    """Gemma 4's notation, in which only texts are quoted, by <|"|>."""
    quote = spell.of(QUOTE)
    rules = [
        f"{name}_string: {quote} {name}_text",
        spell.until(f"{name}_text", QUOTE),
        f"{name}_any: {name}_string | {name}_plain | {name}_list | {name}_object",
        f'{name}_plain: %json {{"type": ["number", "boolean", "null"]}}',
        f'{name}_list: "[" ({name}_any ("," {name}_any)*)? "]"',
        f'{name}_object: "{{" ({name}_pair ("," {name}_pair)*)? "}}"',
        f'{name}_pair: (/[A-Za-z0-9_.$-]+/ | {name}_string) ":" {name}_any',
    ]
    writer = _GemmaWriter(name, schema, quote)
    try:
        arguments = writer.value(schema)
    except _UnwritableError as error:
        raise _unwritable(name) from error
    return [f"{name}: {arguments}", *writer.rules, *rules]


class _UnwritableError(Exception):
    """A value holds the end of a text, or no value fits."""


class _GemmaWriter:
    """Writes the rules of one tool's arguments.

    Each schema has one rule, however many refer to it, so a schema may refer to itself. Raises
    _UnwritableError for a value that cannot be written.
    """

    def __init__(self, name: str, root: Schema, quote: str) -> None:
        self.rules: list[str] = []
        self._name = name
        self._root = root
        self._quote = quote
        self._names: dict[int, str | None] = {}  # of rules, by the identity of their schema

    def value(self, schema: object) -> str:
        """The name of the rule for a value of the schema."""
        schema = resolved(schema, self._root)
        if isinstance(schema, Mapping) and id(schema) not in self._names:
            name = self._names[id(schema)] = f"{self._name}_{len(self._names)}"
            try:
                self.rules.append(f"{name}: {self._rule_of(schema)}")
            except _UnwritableError:
                self._names[id(schema)] = None
        found = self._names.get(id(schema), f"{self._name}_any")
        if schema is False or found is None:
            raise _UnwritableError
        return found

    def _rule_of(self, schema: Schema) -> str:
        if (values := choices(schema)) is not None:
            options = _writable(self._constant, values)
        elif (schemas := alternatives(schema)) is not None:
            options = _writable(self.value, schemas)
        else:
            kinds = types_of(schema) or ["anything"]
            options = _writable(partial(self._of_type, schema), kinds)
        if not options:
            raise _UnwritableError
        return f"({' | '.join(options)})"

    def _of_type(self, schema: Schema, kind: object) -> str:
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            items = _writable(self.value, [schema.get("items")])
            if items:
                return f'"[" ({items[0]} ("," {items[0]})*)? "]"'
            return '"[]"'
        if kind == "string":
            return f"{self._name}_string"
        if kind in ("integer", "number", "boolean", "null"):
            return f"%json {json.dumps({**schema, 'type': kind})}"
        return f"{self._name}_any"

    def _constant(self, value: object) -> str:
        if isinstance(value, str):
            if QUOTE in value:
                raise _UnwritableError
            text = f"{json.dumps(value)} " if value else ""
            return f"{self._quote} {text}{self._quote}"
        if isinstance(value, list):
            return f'"[" {_COMMA.join(map(self._constant, value))} "]"'
        if isinstance(value, Mapping):
            pairs = [f"{self._key(key)} {self._constant(value[key])}" for key in value]
            return f'"{{" {_COMMA.join(pairs)} "}}"'
        return json.dumps(json.dumps(value))

    def _key(self, key: str) -> str:
        """A name and its colon; quoted if it would end elsewhere."""
        if _BARE_KEY.fullmatch(key):
            return json.dumps(f"{key}:")
        return f'{self._constant(key)} ":"'

    def _object(self, schema: Schema) -> str:
        properties = properties_of(schema)
        if not properties:
            is_empty = schema.get("additionalProperties") is False
            if is_empty:
                return '"{}"'
            return f"{self._name}_object"

        def pair(key: str) -> str:
            return f"{self._key(key)} {self.value(properties[key])}"

        required = [key for key in properties if key in schema.get("required", ())]
        first = _COMMA.join(map(pair, required))
        others = _writable(pair, [key for key in properties if key not in required])
        name = f"{self._name}_row_{len(self.rules)}"
        written, rules = _in_a_row(name, first, others, '","')
        self.rules += rules
        return f'"{{" {written} "}}"'


_COMMA = ' "," '
_BARE_KEY = re.compile(rf"""(?!{re.escape(QUOTE)})[^\s:}}"'][^:]*(?<!\s)""")
_Item = TypeVar("_Item")


def _writable(write: Callable[[_Item], str], items: Iterable[_Item]) -> list[str]:
    """Texts of the items that can be written."""
    found = []
    for each in items:
        with contextlib.suppress(_UnwritableError):
            found.append(write(each))
    return found
