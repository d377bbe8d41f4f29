"""How each family of models writes a call of a tool: one table, found by the template.

A call is before + start + arguments + end + after; another call follows after `between`. That
is how a template renders it, and what the grammar lets a model write (`grammar`). A model that
writes without a grammar may use other blank space, which `read` accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from localspec.tools.arguments import (
    ArgumentReader,
    GemmaArguments,
    JsonArguments,
    TagArguments,
)
from localspec.tools.schemas import fits
from localspec.tools.tool import Tool, ToolCall, json_text, json_value

Tools = Mapping[str, Tool]  # by name

# Gets the text between a form's opening and closing, and the tools. Gives the calls in it, with
# the model's own ids or "". Raises ValueError for a text that is not a call of these tools.
Reader = Callable[[str, Tools], list[ToolCall]]


def calls_in(text: str, tools: Tools, read: Reader) -> list[ToolCall] | None:
    """The calls that a text is, by that reader; None if it is anything else."""
    try:
        return read(text, tools) or None
    except ValueError:
        return None


def read_objects(text: str, tools: Tools) -> list[ToolCall]:
    """An object with name and arguments (or parameters), or a list of such."""
    found = json_value(text)
    return [_of_object(each, tools) for each in (found if isinstance(found, list) else [found])]


def _of_object(value: object, tools: Tools) -> ToolCall:
    if not isinstance(value, dict):
        raise ValueError("no object")
    function = value.get("function")
    given = function if isinstance(function, dict) else value
    arguments = given.get("arguments") or given.get("parameters") or {}  # some write null
    return _call(given.get("name"), arguments, tools)


def read_named(text: str, tools: Tools) -> list[ToolCall]:
    """Mistral's name[ARGS]{…}, perhaps with an id; further ones behind [TOOL_CALLS]."""
    calls: list[ToolCall] = []
    rest = text
    while rest.strip() or not calls:
        named, _, arguments = rest.removeprefix("[TOOL_CALLS]").partition("[ARGS]")
        name, _, own_id = named.strip().partition("[CALL_ID]")
        # A mark can also stand inside of a text of the arguments.
        value, rest = _first_value(arguments)
        if rest and not rest.startswith("[TOOL_CALLS]"):
            raise ValueError("more than a call")
        calls.append(replace(_call(name.strip(), value, tools), id=own_id.strip()))
    return calls


def read_fitting(text: str, tools: Tools) -> list[ToolCall]:
    """As `read_objects`, where the arguments fit the tools' schemas."""
    calls = read_objects(text, tools)
    for call in calls:
        schema = tools[call.name].parameters
        if not fits(call.arguments, schema, schema):
            raise ValueError("arguments that do not fit")
    return calls


def read_message(text: str, tools: Tools) -> list[ToolCall]:
    """A recipient, a line's end, and the arguments: as gpt-oss's messages are handed on."""
    name, _, arguments = text.partition("\n")
    return [_call(name, arguments, tools)]


def _read_notation(
    kind: type[ArgumentReader], pattern: re.Pattern[str], text: str, tools: Tools
) -> list[ToolCall]:
    """Read a call in a notation of its own.

    pattern: its groups are the name, and the parts of the text that `kind` reads.
    """
    found = pattern.fullmatch(text)
    name, *texts = ("",) if found is None else found.groups()
    tool = tools.get(name.strip())
    if tool is None:
        raise ValueError("no call of these tools")
    reader = kind(tool, is_kept=False)
    arguments = "".join(map(reader.push, texts))
    if reader.rest.strip():
        raise ValueError("more than arguments")
    return [_call(tool.name, arguments, tools)]


# Gemma 4's call:name{key:value,…}, and Qwen3-Coder's tags.
_GEMMA = re.compile(r"\s*call:([^\s{]+)\s*(\{.*\})\s*", re.DOTALL)
_TAGS = re.compile(r"\s*<function=([^>\n]+)>\n?(.*?)\n?(</function>)\s*", re.DOTALL)


def _call(name: object, arguments: object, tools: Tools) -> ToolCall:
    if isinstance(arguments, str):
        arguments = json_value(arguments)  # some write the object as a text
    if not isinstance(arguments, dict) or not isinstance(name, str) or name not in tools:
        raise ValueError("no such call")
    return ToolCall("", name, json_text(arguments))


def _first_value(text: str) -> tuple[Any, str]:
    """The JSON value at the beginning of a text, or None, and the text behind it."""
    text = text.lstrip()
    try:
        _, end = _DECODER.raw_decode(text)
        return json_value(text[:end]), text[end:].lstrip()
    except (ValueError, RecursionError):
        return None, ""


_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class CallForm:
    """How the models of a family write calls.

    signs: texts that a template of the family has. openings, closing: around a call, or a list
    of calls; without a closing it extends to the end of the answer. before … after: see the
    module; NAME stands for the tool's. marks: texts in these that may be entries of the
    vocabulary. is_bare: an answer may begin with a call without an opening. recipient: matches
    the header of a message that is a call; its groups are the name, and the space in front of
    it. arguments: reads them in the form's notation. forgets: a text before which models leave
    out the opening. is_single: templates take one call per message. has_ids: templates only
    take ids of nine letters and digits.
    """

    signs: tuple[str, ...]
    openings: tuple[str, ...]
    before: str
    start: str
    after: str
    read: Reader
    closing: str = ""
    end: str = ""
    between: str = ""
    arguments: type[ArgumentReader] = JsonArguments
    marks: tuple[str, ...] = ()
    is_bare: bool = False
    recipient: str = ""
    forgets: str = ""
    is_single: bool = False
    has_ids: bool = False

    @property
    def sign(self) -> str:
        """The text of `start` before the name, without blank space."""
        return "".join(self.start.partition("NAME")[0].split())

    def may_begin(self, opening: str, text: str) -> bool:
        """Whether the text behind an opening may be the beginning of a call."""
        before = self.before.removeprefix(opening) if opening else ""
        before += self.start.partition("NAME")[0]
        sign = "".join(before.partition('"')[0].split())
        begun = "".join(text.split())
        return begun.startswith(sign) or sign.startswith(begun)

    def start_pattern(self) -> re.Pattern[str]:
        """Matches `start` with a name, once that has ended."""
        name = "(?P<name>[A-Za-z0-9_.:/-]+)(?=[^A-Za-z0-9_.:/-])"
        return re.compile(re.escape(self.start).replace("NAME", name))


_OBJECT = '{"name": "NAME", "arguments": '


def _list_of_objects(
    sign: str, opening: str, closing: str, *, has_ids: bool = False
) -> CallForm:
    return CallForm(
        signs=(sign,),
        openings=(opening,),
        closing=closing,
        before=f"{opening}[",
        start=_OBJECT,
        end="}",
        between=", ",
        after=f"]{closing}",
        read=read_objects,
        marks=tuple(filter(None, (opening, closing))),
        has_ids=has_ids,
    )


# If a template has the signs of several, the first counts.
FORMS = (
    # Qwen3-Coder, Qwen3.5 and later, Nemotron 3, Step 3.5
    CallForm(
        signs=("<tool_call>", "<function=", "<parameter="),
        openings=("<tool_call>",),
        closing="</tool_call>",
        before="<tool_call>\n",
        start="<function=NAME>\n",
        end="</function>\n",
        between="</tool_call>\n<tool_call>\n",
        after="</tool_call>",
        read=partial(_read_notation, TagArguments, _TAGS),
        arguments=TagArguments,
        forgets="<function=NAME>",
        marks=("<tool_call>", "</tool_call>"),
    ),
    # Gemma 4
    CallForm(
        signs=("<|tool_call>call:",),
        openings=("<|tool_call>",),
        closing="<tool_call|>",
        before="<|tool_call>",
        start="call:NAME",
        between="<tool_call|><|tool_call>",
        after="<tool_call|>",
        read=partial(_read_notation, GemmaArguments, _GEMMA),
        arguments=GemmaArguments,
        marks=("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    # gpt-oss: a message whose header names the recipient
    CallForm(
        signs=("<|channel|>", "<|message|>", '"functions."'),
        openings=(),
        before="",
        start="NAME\n",
        after="",
        read=read_message,
        marks=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
        recipient=r" to=(?P<space>functions\.)?(?P<name>[A-Za-z0-9_.:/-]+)",
        is_single=True,
    ),
    # Mistral from Small 3.2 on: Devstral, Ministral
    CallForm(
        signs=("[TOOL_CALLS]", "[ARGS]"),
        openings=("[TOOL_CALLS]",),
        before="[TOOL_CALLS]",
        start="NAME[ARGS]",
        between="[TOOL_CALLS]",
        after="",
        read=read_named,
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        has_ids=True,
    ),
    # Mistral before: Nemo, 7B v0.3
    _list_of_objects("[TOOL_CALLS]", "[TOOL_CALLS]", "", has_ids=True),
    # Apriel
    _list_of_objects("<tool_calls>[", "<tool_calls>", "</tool_calls>"),
    # Qwen2.5, Qwen3, QwQ, Hermes, Granite 4, MiMo, Reka, Bielik …
    CallForm(
        signs=("<tool_call>", '"arguments": '),
        openings=("<tool_call>",),
        closing="</tool_call>",
        before="<tool_call>\n",
        start=_OBJECT,
        end="}",
        between="\n</tool_call>\n<tool_call>\n",
        after="\n</tool_call>",
        read=read_objects,
        marks=("<tool_call>", "</tool_call>"),
    ),
    # Nemotron Nano 2
    _list_of_objects("<TOOLCALL>", "<TOOLCALL>", "</TOOLCALL>"),
    # Llama 3.1 to 3.3: the answer is the call
    CallForm(
        signs=('"parameters": ', "<|start_header_id|>"),
        openings=("<|python_tag|>",),
        before="",
        start='{"name": "NAME", "parameters": ',
        end="}",
        after="",
        read=read_objects,
        marks=("<|python_tag|>",),
        is_bare=True,
        is_single=True,
    ),
)

# For people.
KNOWN_FAMILIES = (
    "Qwen 2.5 and later, Hermes, Llama 3.1 to 3.3, Mistral, gpt-oss, Gemma 4, Granite 4, "
    "Nemotron, Apriel"
)


def form_of(template: str) -> CallForm | None:
    """The form whose signs are in the template's source; None for an unknown form."""
    unescaped = template.replace('\\"', '"')
    return next((form for form in FORMS if all(sign in unescaped for sign in form.signs)), None)
