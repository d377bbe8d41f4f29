"""How each family of models writes a call of a tool: one table, found by the template.

A call is before + head + arguments + tail + after; a further one comes behind between. That
is how a template renders it, and what the grammar lets a model write (`grammar`). What a model
writes by itself may differ in its blank space, which `read` does not mind.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from localspec.tools.written import (
    Reader,
    read_gemma,
    read_message,
    read_named,
    read_objects,
    read_tags,
)

Notation = Literal["json", "gemma", "tags"]  # of arguments


@dataclass(frozen=True, slots=True)
class CallForm:
    """How the models of a family write calls.

    signs: texts that a template of the family has. openings, closing: around a call, or a list
    of calls; without a closing it extends to the answer's end. before … after: see the module;
    NAME stands for the tool's. marks: texts in these that may be entries of the vocabulary.
    is_bare: an answer may begin with a call without an opening. recipient: matches the head of
    a message that is a call. is_single: templates take one call a message. has_ids: whether
    templates take ids of nine letters and digits alone.
    """

    signs: tuple[str, ...]
    openings: tuple[str, ...]
    before: str
    head: str
    after: str
    read: Reader
    closing: str = ""
    tail: str = ""
    between: str = ""
    notation: Notation = "json"
    marks: tuple[str, ...] = ()
    is_bare: bool = False
    recipient: str = ""
    is_single: bool = False
    has_ids: bool = False

    @property
    def sign(self) -> str:
        """What a head has before the name, without blank space."""
        return "".join(self.head.partition("NAME")[0].split())

    def head_pattern(self) -> re.Pattern[str]:
        """Matches the head of a call, with its name."""
        return re.compile(re.escape(self.head).replace("NAME", "(?P<name>[A-Za-z0-9_.:/-]+)"))


_OBJECT = '{"name": "NAME", "arguments": '

# If a template has the signs of several, the first counts.
FORMS = (
    # Qwen3-Coder, Qwen3.5 and later, Nemotron 3, Step 3.5
    CallForm(
        signs=("<tool_call>", "<function=", "<parameter="),
        openings=("<tool_call>",),
        closing="</tool_call>",
        before="<tool_call>\n",
        head="<function=NAME>\n",
        tail="</function>\n",
        between="</tool_call>\n<tool_call>\n",
        after="</tool_call>",
        read=read_tags,
        notation="tags",
        marks=("<tool_call>", "</tool_call>"),
    ),
    # Gemma 4
    CallForm(
        signs=("<|tool_call>call:",),
        openings=("<|tool_call>",),
        closing="<tool_call|>",
        before="<|tool_call>",
        head="call:NAME",
        between="<tool_call|><|tool_call>",
        after="<tool_call|>",
        read=read_gemma,
        notation="gemma",
        marks=("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    # gpt-oss: a message whose head names the recipient
    CallForm(
        signs=("<|channel|>", "<|message|>", '"functions."'),
        openings=(),
        before="",
        head="NAME\n",
        after="",
        read=read_message,
        marks=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
        recipient=r" to=functions\.(?P<name>[A-Za-z0-9_.:/-]+)",
        is_single=True,
    ),
    # Mistral from Small 3.2 on: Devstral, Ministral
    CallForm(
        signs=("[TOOL_CALLS]", "[ARGS]"),
        openings=("[TOOL_CALLS]",),
        before="[TOOL_CALLS]",
        head="NAME[ARGS]",
        between="[TOOL_CALLS]",
        after="",
        read=read_named,
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        has_ids=True,
    ),
    # Mistral before: Nemo, 7B v0.3
    CallForm(
        signs=("[TOOL_CALLS]",),
        openings=("[TOOL_CALLS]",),
        before="[TOOL_CALLS][",
        head=_OBJECT,
        tail="}",
        between=", ",
        after="]",
        read=read_objects,
        marks=("[TOOL_CALLS]",),
        has_ids=True,
    ),
    # Apriel
    CallForm(
        signs=("<tool_calls>[",),
        openings=("<tool_calls>",),
        closing="</tool_calls>",
        before="<tool_calls>[",
        head=_OBJECT,
        tail="}",
        between=", ",
        after="]</tool_calls>",
        read=read_objects,
        marks=("<tool_calls>", "</tool_calls>"),
    ),
    # Qwen2.5, Qwen3, QwQ, Hermes, Granite 4, MiMo, Reka, Bielik …
    CallForm(
        signs=("<tool_call>", '"arguments": '),
        openings=("<tool_call>",),
        closing="</tool_call>",
        before="<tool_call>\n",
        head=_OBJECT,
        tail="}",
        between="\n</tool_call>\n<tool_call>\n",
        after="\n</tool_call>",
        read=read_objects,
        marks=("<tool_call>", "</tool_call>"),
    ),
    # Nemotron Nano 2
    CallForm(
        signs=("<TOOLCALL>",),
        openings=("<TOOLCALL>",),
        closing="</TOOLCALL>",
        before="<TOOLCALL>[",
        head=_OBJECT,
        tail="}",
        between=", ",
        after="]</TOOLCALL>",
        read=read_objects,
        marks=("<TOOLCALL>", "</TOOLCALL>"),
    ),
    # Llama 3.1 to 3.3: the answer is the call
    CallForm(
        signs=('"parameters": ', "<|start_header_id|>"),
        openings=("<|python_tag|>",),
        before="",
        head='{"name": "NAME", "parameters": ',
        tail="}",
        after="",
        read=read_objects,
        marks=("<|python_tag|>",),
        is_bare=True,
        is_single=True,
    ),
)


def form_of(template: str) -> CallForm | None:
    """The form whose signs the template's source has; None if none is known."""
    unescaped = template.replace('\\"', '"')
    return next((form for form in FORMS if all(sign in unescaped for sign in form.signs)), None)


def known_families() -> Collection[str]:
    """Names for people of the families whose calls are understood."""
    return (
        "Qwen 2.5 and later",
        "Hermes",
        "Llama 3.1 to 3.3",
        "Mistral",
        "gpt-oss",
        "Gemma 4",
        "Granite 4",
        "Nemotron",
        "Apriel",
    )
