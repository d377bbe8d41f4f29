"""A grammar for an answer that may or must call tools, in llguidance's dialect of Lark.

Once a call begins, its name is one of the tools' names and its arguments fit the schema. The
text before it is free, unless a call must be made. Arguments are JSON, or in a family's own
notation. In such a notation lengths and patterns of texts are not enforced, and a text, name or
choice that contains the notation's end of a text cannot be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

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
    moved,
    properties_of,
    resolved,
    takes_text,
    types_of,
)
from localspec.tools.tool import Tool, ToolUse, new_call_id


class CallGrammar(NamedTuple):
    """The grammar of an answer."""

    lark: str
    """The grammar of the text after the first of the triggers; without triggers, of the whole
    answer without its thoughts."""

    triggers: tuple[str, ...] = ()
    """Texts after which the grammar applies."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an answer can have, and how these are written."""

    form: CallForm
    """How calls are written."""

    use: ToolUse
    """The tools that may be called."""

    mark_tokens: frozenset[int] = frozenset()
    """Ids of control tokens in the form's marks, whose text is needed to read the calls."""

    grammar: CallGrammar | None = None
    """The grammar that enforces the form and the tools' schemas. None without one: then a text
    is known to be a call only once it was read to its end."""

    key: str = field(default_factory=new_call_id)
    """A random text from which the calls' ids are derived, so that they are the same each time
    the answer is read."""

    def id_of(self, number: int) -> str:
        """The id of a call of the answer, by its number, from 0."""
        digest = hashlib.sha256(f"{self.key} {number}".encode()).hexdigest()
        return digest[: len(self.key)]

    @property
    def have_frame(self) -> bool:
        """Whether the grammar covers the whole answer: thoughts and calls are messages."""
        return self.grammar is not None and bool(self.form.recipient)


def call_grammar(
    form: CallForm,
    use: ToolUse,
    tokens: Mapping[str, int],
    schema_of: Callable[[Tool], Schema],
) -> CallGrammar:
    """The grammar of an answer that may or must call tools: see `CallGrammar`.

    Raises ConstraintError for a tool whose required arguments cannot be written in the form.

    Args:
        form: The form of calls.
        use: The tools that may be called.
        tokens: Ids of the form's marks that are entries of the vocabulary.
        schema_of: The schema for the arguments of a tool.
    """
    spell = GrammarTexts(tokens)
    rules = []
    call_names = []
    end = spell.of(form.end)
    for number, tool in enumerate(use.callable):
        name = f"args_{number}"
        start = ""
        if not form.recipient:
            start = spell.start(form.start, tool.name)
        call_names.append(f"call_{number}")
        rule = f"call_{number}: {start} {name} {end}"
        rules.append(rule.rstrip())
        schema = schema_of(tool)
        if form.notation is GemmaArguments:
            rules += gemma_rules(name, schema, spell)
        elif form.tags is not None:
            if not properties_of(schema):  # any object, if the tool's schema is not enforced
                schema = _text_kinds(tool.parameters) or schema
            rules += tag_rules(name, schema, form.tags, spell)
        else:
            rules.append(json_rule(name, schema))
    if form.recipient:
        start_rules, triggers = _message_rules(use, spell)
        return CallGrammar("\n".join([*start_rules, *rules]) + "\n", triggers)
    any_call = " | ".join(call_names)
    further_calls = ""
    if use.is_parallel and not form.is_single:
        further_calls = f"({spell.of(form.between)} call)*"
    calls_rule = f"calls: call {further_calls} {spell.of(form.after)}"
    rules = [calls_rule.rstrip(), f"call: {any_call}", *rules]
    if form.is_bare and use.answer_schema is not None and not use.must:
        return CallGrammar(_object_grammar(use, use.answer_schema, schema_of))
    start_rules, triggers = _start_rules(form, use, spell)
    return CallGrammar("\n".join([*start_rules, *rules]) + "\n", triggers)


def _start_rules(
    form: CallForm,
    use: ToolUse,
    spell: GrammarTexts,
) -> tuple[list[str], tuple[str, ...]]:
    """The first rules, and the texts after which they apply."""
    if use.must:
        return [f"start: {spell.of(form.before)} calls"], ()
    if use.answer_schema is not None:
        start = f"start: {spell.of(form.before)} calls | answer"
        return [start, json_rule("answer", use.answer_schema)], ()
    if not form.is_bare:
        opening = form.openings[0]
        before = spell.of(form.before.removeprefix(opening))
        return [f"start: {before} calls"], form.openings
    starts = ["calls", "TEXT"]
    token_openings = []
    for opening in form.openings:
        starts.append(f"TEXT? {spell.of(opening)} calls")
        if opening in spell.tokens:
            token_openings.append(re.escape(opening))
    # A text that begins like a call is one, so TEXT must not begin like that.
    begin = r"\s*".join(map(re.escape, form.sign))
    text = f"/(.|\\n)*/ & ~/\\s*{begin}(.|\\n)*/"
    if token_openings:
        # `streaming.calls` cannot tell an opening's letters from its token, so TEXT has none.
        text += f" & ~/(.|\\n)*({'|'.join(token_openings)})(.|\\n)*/"
    return [f"start: {' | '.join(starts)}", f"TEXT: {text}"], ()


def _object_grammar(use: ToolUse, answer: Schema, schema_of: Callable[[Tool], Schema]) -> str:
    """The grammar of an answer that is a call, as an object, or fits the answer's schema."""
    options: list[Schema] = []
    definitions: dict[str, Any] = {}  # of all options
    for number, tool in enumerate(use.callable):
        schema = schema_of(tool)
        parameters, own_definitions = moved(schema, schema, f"{number}_")
        definitions |= own_definitions
        properties = {"name": {"const": tool.name}, "parameters": parameters}
        options.append(
            {
                "type": "object",
                "properties": properties,
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    moved_answer, own_definitions = moved(answer, answer, "answer_")
    definitions |= own_definitions
    whole: Schema = {
        "anyOf": [*options, moved_answer],
        "$defs": definitions,
        "x-guidance": answer.get("x-guidance", {}),
    }
    return json_rule("start", whole) + "\n"


def _message_rules(use: ToolUse, spell: GrammarTexts) -> tuple[list[str], tuple[str, ...]]:
    """The first rules, and the texts after which they apply, if a call is a message.

    They are for gpt-oss's channels.
    """
    channel = spell.of("<|channel|>")
    message = spell.of("<|message|>")
    content_type = f'(" json" | " "? {spell.of("<|constrain|>")} "json")?'
    named = []
    for number, tool in enumerate(use.callable):
        name = json.dumps(tool.name)
        named.append(f"{name} channel? {content_type} {message} call_{number}")
    rules = [f'channel: {channel} ("commentary" | "analysis")', f"named: {' | '.join(named)}"]
    trigger = " to=functions."
    if not use.must and use.answer_schema is None:
        return ["start: named", *rules], (trigger,)
    start = spell.of("<|start|>")
    last_message = f"channel? {json.dumps(trigger)} named"
    if not use.must and use.answer_schema is not None:
        rules.append(json_rule("answer", use.answer_schema))
        last_message = f'({last_message} | {channel} "final" {content_type} {message} answer)'
    return [
        f'start: (thought {start} "assistant")* {last_message}',
        f'thought: {channel} "analysis" {message} rest',
        spell.until("rest", "<|end|>"),
        *rules,
    ], ()


_NO_TEXTS = ["object", "array", "number", "boolean", "null"]


def _text_kinds(schema: Schema) -> Schema:
    """A schema of the same properties that forbids texts where `schema` does, and no more."""
    properties: dict[str, Schema] = {}
    for key, value in properties_of(schema).items():
        properties[key] = {}
        if takes_text(value, schema) is False:
            properties[key] = {"type": _NO_TEXTS}
    if properties:
        return {"properties": properties}
    return {}


_ANY_ID = "/[A-Za-z0-9]{1,10}/"
_ANY_KIND = f"({' | '.join(map(json.dumps, VALUE_KINDS))})"


class GrammarTexts:
    """Writes texts in a grammar.

    Args:
        tokens: Ids of marks that are entries of the vocabulary.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.tokens = tokens
        self._marks: re.Pattern[str] | None = None
        if tokens:
            marks = sorted(tokens, key=len, reverse=True)
            any_mark = "|".join(map(re.escape, marks))
            self._marks = re.compile(f"({any_mark})")

    def of(self, text: str) -> str:
        """A text in the grammar's notation, with its marks as tokens; "" for an empty text."""
        parts = [text]
        if self._marks is not None:
            parts = self._marks.split(text)
        symbols = []
        for part in parts:
            if part in self.tokens:
                symbols.append(f"<[{self.tokens[part]}]>")
            elif part:
                symbols.append(json.dumps(part))
        return " ".join(symbols)

    def start(self, text: str, name: str) -> str:
        """The beginning of a call, with the tool's name, and any id."""
        optional = MARKED_ID.search(text)
        if optional is None:
            parts = text.split(CALL_ID)
            any_id = _ANY_ID
        else:
            parts = [text[: optional.start()], text[optional.end() :]]
            any_id = f"({self.of(optional[1])} {_ANY_ID})?"
        symbols = [self.of(part.replace(NAME, name)) for part in parts]
        return f" {any_id} ".join(symbols)

    def until(self, name: str, end: str) -> str:
        """The rules of any text up to and with `end`.

        If `end` has a token in it, the blank space before that may be missing.

        Args:
            name: The name of the first rule.
            end: The text's end.
        """
        bare = end.strip()
        if any(mark in bare for mark in self.tokens):
            # `tools.arguments` takes the letters of an end for the vocabulary's entry.
            text = f"{name.upper()}_TEXT"
            without_end = f"~/(.|\\n)*{_in_regex(bare)}(.|\\n)*/"
            end_symbols = self.of(end.lstrip())
            return f"{name}: {text}? {end_symbols}\n{text}: /(.|\\n)+/ & {without_end}"
        return f"{name}[lazy]: /(.|\\n)*/ {json.dumps(end)}"


def json_rule(name: str, schema: Schema) -> str:
    """The rule of a value of the schema, with the value's JSON on one line.

    Of the schema's options for llguidance only "lenient" counts.
    """
    schema_options = schema.get("x-guidance")
    is_lenient = isinstance(schema_options, Mapping) and schema_options.get("lenient") is True
    options = {**ONE_LINE, "lenient": is_lenient}
    return f"{name}: %json {json.dumps({**schema, 'x-guidance': options})}"


def tag_rules(
    name: str,
    schema: Schema,
    tags: Tags,
    spell: GrammarTexts,
) -> list[str]:
    """Rules of arguments between tags: the required ones, then any of the others.

    A schema without properties takes any arguments, unless it forbids them. Raises
    ConstraintError for a required argument that cannot be written.

    Args:
        name: The name of the first rule, and the beginning of the names of all.
        schema: The schema of the arguments.
        tags: The notation.
        spell: Writes texts.
    """
    writer = _TagWriter(name, schema, tags, spell)
    between = spell.of(tags.between)
    if not properties_of(schema) and schema.get("additionalProperties") is not False:
        any_rules = writer.any_argument()
        return [f"{name}: ({name}_any ({between} {name}_any)*)?", *any_rules]
    rules: list[str] = []
    required: list[str] = []
    others: list[str] = []
    for number, (key, value) in enumerate(properties_of(schema).items()):
        rule = f"{name}_{number}"
        is_required = key in schema.get("required", ())
        argument_rules = writer.argument(rule, key, resolved(value, schema))
        rules += argument_rules
        if is_required and not argument_rules:
            raise _unwritable(key)
        if is_required:
            required.append(rule)
        elif argument_rules:
            others.append(rule)
    first = f" {between} ".join(required)
    sequence, sequence_rules = _sequence(name, first, others, between)
    return [f"{name}: {sequence or _EMPTY}", *sequence_rules, *rules]


_EMPTY = '""'
_MOST_ONCE = 64  # bits of a parameter of llguidance's rules


def _sequence(
    name: str,
    first: str,
    others: Sequence[str],
    between: str,
) -> tuple[str, list[str]]:
    """The first arguments, then any of the others, each at most once, in any order.

    Returns the text of a rule, and the further rules that it needs. Each of the others has a
    bit of a parameter that says whether it has occurred. If there are more arguments than bits,
    the last of them may occur again.

    Args:
        name: The beginning of the names of rules.
        first: The first arguments, with the text between them; "" for none.
        others: The rule of each of the others.
        between: The text between two arguments.
    """
    if not others:
        return first, []
    more = f"{name}_more"
    more_options = [_EMPTY]
    first_options = []
    for number, other in enumerate(others):
        if number < _MOST_ONCE:
            once = f"{more}::set_bit({number}) %if bit_clear({number})"
            more_options.append(f"{between} {other} {once}")
            first_options.append(f"{other} {more}::{1 << number:#x}")
        else:
            more_options.append(f"{between} {other} {more}::_")
            first_options.append(f"{other} {more}::0x0")
    sequence = f"({' | '.join(first_options)})?"
    if first:
        sequence = f"{first} {more}::0x0"
    return sequence, [f"{more}::_: {' | '.join(more_options)}"]


class _TagWriter:
    """Writes the rules of one tool's arguments between tags."""

    def __init__(
        self,
        name: str,
        root: Schema,
        tags: Tags,
        spell: GrammarTexts,
    ) -> None:
        self._name = name
        self._root = root
        self._tags = tags
        self._spell = spell

    def any_argument(self) -> list[str]:
        """The rules of an argument of any name."""
        tags = self._tags
        value = f"{self._name}_any_value"
        if tags.is_quoted:
            key = r"/[A-Za-z_]\w*/"
            rules = [json_rule(value, {})]
        else:
            key = '/[^<>"\\n]+/'
            rules = self._text(value, tags.closing)
        opening = self._spell.of(tags.opening)
        opened = f"{opening} {key} {self._spell.of(tags.naming)}"
        return [f"{self._name}_any: {opened} {value}", *rules]

    def argument(self, rule: str, key: str, schema: object) -> list[str]:
        """The rules of an argument; none if its name, or every value of it, is unwritable."""
        tags = self._tags
        if tags.is_quoted:
            if key.isidentifier():
                return self._literal(rule, key, schema)
            return []
        if tags.naming in key:
            return []
        closing = tags.closing.replace(KEY, key)
        values, free = self._values_and_free(schema)
        kinds = {takes_text(branch, self._root) for branch in free}
        may_be_text = True in kinds or None in kinds
        may_be_other = False in kinds or None in kinds
        options: list[str] = []
        rules: list[str] = []
        if may_be_text:
            options.append(f"{self._opened(key, tags.naming)} {rule}_value")
            rules += self._text(f"{rule}_value", closing)
        is_any_text = may_be_text and tags.naming == tags.naming_other
        if not is_any_text:  # else a text may look like any other value
            options += self._choices(key, values, closing)
            if may_be_other:
                opened = self._opened(key, tags.naming_other)
                options.append(f"{opened} {rule}_json {self._spell.of(closing)}")
                rules.append(json_rule(f"{rule}_json", self._no_text(free)))
        if options:
            return [f"{rule}: {' | '.join(options)}", *rules]
        return []

    def _values_and_free(self, schema: object) -> tuple[list[object], list[object]]:
        """The values that a schema lists in its branches, and the branches that list none."""
        values: list[object] = []
        free: list[object] = []
        for branch in branches(schema, self._root):
            branch_values = choices(branch)
            if branch_values is not None:
                values += branch_values
            elif branch is not False:
                free.append(branch)
        return values, free

    def _choices(self, key: str, values: Sequence[object], closing: str) -> list[str]:
        """The alternatives of an argument: one for each of these values that can be written."""
        options = []
        for value in values:
            text = in_tags(value)
            if closing.strip() not in text:
                opened = self._opened(key, self._tags.naming_of(value))
                options.append(f"{opened} {self._spell.of(text + closing)}")
        return options

    def _literal(self, rule: str, key: str, schema: object) -> list[str]:
        """The rules of an argument whose value is quoted if it is a text."""
        value = f"{rule}_value"
        opened = self._opened(key, self._tags.naming)
        return [f"{rule}: {opened} {value}", json_rule(value, self._apart(schema))]

    def _no_text(self, free: Sequence[object]) -> Schema:
        """A schema of all values of these schemas except texts."""
        kept = []
        may_be_text = False
        for schema in free:
            is_text = takes_text(schema, self._root)
            if is_text is not True:
                kept.append(schema)
            if is_text is None:
                may_be_text = True
        whole: Schema = {"anyOf": kept}
        if may_be_text:
            whole = {"allOf": [whole, {"type": _NO_TEXTS}]}
        return self._apart(whole)

    def _opened(self, key: str, naming: str) -> str:
        """The text before a value, with any kind where the naming has one."""
        before, kind, after = naming.partition(KIND)
        opened = self._spell.of(f"{self._tags.opening}{key}{before}")
        if kind:
            return f"{opened} {_ANY_KIND} {self._spell.of(after)}"
        return opened

    def _apart(self, schema: object) -> Schema:
        """A part of the arguments' schema as one of its own, with what it refers to."""
        if not isinstance(schema, Mapping):
            schema = {"anyOf": [schema]}
        whole, definitions = moved(schema, self._root)
        if definitions:
            whole["$defs"] = definitions
        return whole

    def _text(self, rule: str, closing: str) -> list[str]:
        """The rules of a text with its closing, which the text itself does not contain."""
        if not self._tags.has_cdata:
            return self._bare_text(rule, closing)
        plain = f"(/[^<&\\n]+/)? {self._spell.of(closing)}"
        marked = self._bare_text(f"{rule}_marked", f"{CDATA_END}{closing}")
        return [f"{rule}: {plain} | {json.dumps(CDATA)} {rule}_marked", *marked]

    def _bare_text(self, rule: str, closing: str) -> list[str]:
        """As `_text`, for a text without marks around it."""
        bare = closing.strip()
        if any(mark in bare for mark in self._spell.tokens):
            return [self._spell.until(rule, closing)]
        text = rule.upper()
        num_after = len(closing) - closing.index(bare) - len(bare)
        more = r"(.|\n)" * num_after
        # The text ends with `closing`, and has `bare` nowhere before that.
        whole = f"/(.|\\n)*{_in_regex(closing)}/"
        return [
            f"{rule}: {text}",
            f"{text}: {whole} & ~/(.|\\n)*{_in_regex(bare)}{more}(.|\\n)+/",
        ]


def _in_regex(text: str) -> str:
    """A text in a regular expression of Lark."""
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n").replace("\n", "\\n")


def _unwritable(name: str) -> ConstraintError:
    return ConstraintError(
        f"the model's notation of calls cannot say {name!r:.80}, or any value of it",
        "Rename it, or choose its values without the model's marks.",
    )


def gemma_rules(name: str, schema: Schema, spell: GrammarTexts) -> list[str]:
    """Rules of arguments in Gemma 4's notation, in which only texts are quoted, by <|"|>.

    Raises ConstraintError for a required argument that cannot be written. Arguments as for
    `tag_rules`.
    """
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
    """A value contains the end of a text, or no value fits."""


class _GemmaWriter:
    """Writes the rules of one tool's arguments.

    Each schema has one rule, so a schema may refer to itself. Raises _UnwritableError for a
    value that cannot be written.
    """

    def __init__(self, name: str, root: Schema, quote: str) -> None:
        self.rules: list[str] = []
        self._name = name
        self._root = root
        self._quote = quote
        self._names: dict[int, str | None] = {}  # of rules, by the identity of their schema

    def value(self, schema: object) -> str:
        """The name of the rule for a value of the schema. Adds the rule if it is new."""
        schema = resolved(schema, self._root)
        if isinstance(schema, Mapping) and id(schema) not in self._names:
            name = f"{self._name}_{len(self._names)}"
            self._names[id(schema)] = name
            try:
                self.rules.append(f"{name}: {self._rule_of(schema)}")
            except _UnwritableError:
                self._names[id(schema)] = None
        rule_name = self._names.get(id(schema), f"{self._name}_any")
        if schema is False or rule_name is None:
            raise _UnwritableError
        return rule_name

    def _rule_of(self, schema: Schema) -> str:
        """The alternatives of a schema's rule."""
        values = choices(schema)
        schemas = alternatives(schema)
        if values is not None:
            options = _writable(self._constant, values)
        elif schemas is not None:
            options = _writable(self.value, schemas)
        else:
            kinds = types_of(schema) or ["anything"]
            options = _writable(partial(self._of_type, schema), kinds)
        if not options:
            raise _UnwritableError
        return f"({' | '.join(options)})"

    def _of_type(self, schema: Schema, kind: object) -> str:
        """A value of one of the schema's types."""
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
        """The grammar's text for one value alone."""
        if value == "":
            return f"{self._quote} {self._quote}"
        if isinstance(value, str):
            if QUOTE in value:
                raise _UnwritableError
            return f"{self._quote} {json.dumps(value)} {self._quote}"
        if isinstance(value, list):
            return f'"[" {_COMMA.join(map(self._constant, value))} "]"'
        if isinstance(value, Mapping):
            pairs = [f"{self._key(key)} {self._constant(value[key])}" for key in value]
            return f'"{{" {_COMMA.join(pairs)} "}}"'
        text = json.dumps(value)
        return json.dumps(text)

    def _key(self, key: str) -> str:
        """A name and its colon; quoted if a reader would end it elsewhere."""
        if _BARE_KEY.fullmatch(key):
            return json.dumps(f"{key}:")
        return f'{self._constant(key)} ":"'

    def _object(self, schema: Schema) -> str:
        """An object with the schema's properties."""
        properties = properties_of(schema)
        if not properties:
            is_empty = schema.get("additionalProperties") is False
            if is_empty:
                return '"{}"'
            return f"{self._name}_object"

        def pair(key: str) -> str:
            return f"{self._key(key)} {self.value(properties[key])}"

        required = [key for key in properties if key in schema.get("required", ())]
        optional = [key for key in properties if key not in required]
        first = _COMMA.join(map(pair, required))
        others = _writable(pair, optional)
        name = f"{self._name}_row_{len(self.rules)}"
        sequence, rules = _sequence(name, first, others, '","')
        self.rules += rules
        return f'"{{" {sequence} "}}"'


_COMMA = ' "," '
_BARE_KEY = re.compile(rf"""(?!{re.escape(QUOTE)})[^\s:}}"'][^:]*(?<!\s)""")
_Item = TypeVar("_Item")


def _writable(write: Callable[[_Item], str], items: Iterable[_Item]) -> list[str]:
    """The results of `write` for those items that can be written."""
    texts = []
    for item in items:
        with contextlib.suppress(_UnwritableError):
            texts.append(write(item))
    return texts
