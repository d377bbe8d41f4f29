"""A grammar for an answer that may or must call tools, in llguidance's dialect of Lark.

From the moment a call begins, its name is one of the tools' and its arguments fit the schema.
What is said before is free, unless a call must be made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from localspec.tools.forms import CallForm
from localspec.tools.schemas import Schema, properties_of, takes_text
from localspec.tools.tool import Tool, ToolUse
from localspec.tools.values import GrammarTexts, gemma_rules, json_rule, tag_rules


class CallGrammar(NamedTuple):
    """The grammar of an answer.

    lark: for the text behind the first of the triggers; without triggers for all but the
    thoughts. has_frame: it is for the whole answer, in which thoughts and calls are messages.
    """

    lark: str
    triggers: tuple[str, ...] = ()
    has_frame: bool = False


def call_grammar(
    form: CallForm,
    use: ToolUse,
    tokens: Mapping[str, int],
    schema_of: Callable[[Tool], Schema],
) -> CallGrammar:
    """The grammar of the calls in an answer, and of the answer itself if it must be a call.

    tokens: ids of the form's marks that are entries of the vocabulary. schema_of: the
    schema for the arguments of a tool.
    """
    spell = GrammarTexts(tokens)
    heads = range(len(use.callable))
    rules = []
    for number, tool in enumerate(use.callable):
        head = "" if form.recipient else spell.of(form.head.replace("NAME", tool.name))
        rules.append(f"call_{number}: {head} args_{number} {spell.of(form.tail)}".rstrip())
        name, schema = f"args_{number}", schema_of(tool)
        if form.notation == "gemma":
            rules += gemma_rules(name, schema, spell)
        elif form.notation == "tags":
            kinds = _kinds(tool.parameters)
            rules += tag_rules(
                name, schema if properties_of(schema) else kinds or schema, spell
            )
        else:
            rules.append(json_rule(name, schema))
    if form.recipient:
        start, triggers = _messages(use, spell)
        return CallGrammar("\n".join([*start, *rules]) + "\n", triggers, has_frame=True)
    rules.insert(0, f"call: {' | '.join(f'call_{number}' for number in heads)}")
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
    # Whatever begins as a call does is one. What reads it back takes an opening that is spelled
    # out for the entry.
    begin = r"\s*".join(map(re.escape, form.sign))
    opened = " | ".join(f"TEXT? {spell.of(opening)} calls" for opening in form.openings)
    entries = "|".join(re.escape(each) for each in form.openings if spell.has(each))
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
    channel, message = spell.of("<|channel|>"), spell.of("<|message|>")
    kind = f'(" json" | " "? {spell.of("<|constrain|>")} "json")?'
    names = " | ".join(
        f"{json.dumps(tool.name)} channel? {kind} {message} call_{number}"
        for number, tool in enumerate(use.callable)
    )
    rules = [f'channel: {channel} ("commentary" | "analysis")', f"named: {names}"]
    trigger = " to=functions."
    if not use.must and use.answer_schema is None:
        return ["start: named", *rules], (trigger,)
    start, whole = spell.of("<|start|>"), f"channel? {json.dumps(trigger)} named"
    if not use.must and use.answer_schema is not None:
        rules.append(json_rule("answer", use.answer_schema))
        whole = f'({whole} | {channel} "final" {kind} {message} answer)'
    return [
        f'start: (thought {start} "assistant")* {whole}',
        f'thought: {channel} "analysis" {message} rest',
        spell.until("rest", "<|end|>"),
        *rules,
    ], ()


def _kinds(schema: Schema) -> Schema:
    """The properties that a schema names, kept to nothing but what is read as a text."""
    values = {
        key: {"type": _NO_TEXTS} if takes_text(value, schema) is False else {}
        for key, value in properties_of(schema).items()
    }
    return {"properties": values} if values else {}


_NO_TEXTS = ["object", "array", "number", "boolean", "null"]
