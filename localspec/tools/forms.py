"""How each family of models writes a call of a tool: one table, found by the template.

A call is before + head + arguments + tail + after; another call follows after `between`. That
is how a template renders it, and what the grammar lets a model write (`grammar`). A model that
writes without a grammar may use other blank space, which `read` accepts.
"""

from __future__ import annotations

import re
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
    of calls; without a closing it extends to the end of the answer. before … after: see the
    module; NAME stands for the tool's. marks: texts in these that may be entries of the
    vocabulary. is_bare: an answer may begin with a call without an opening. recipient: matches
    the head of a message that is a call, with its name, and its space where that is. forgets: a
    text before which models leave out the opening. is_single: templates take one call per
    message.
    has_ids: templates only take ids of nine letters and digits.
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
    forgets: str = ""
    is_single: bool = False
    has_ids: bool = False

    @property
    def sign(self) -> str:
        """The text of a head before the name, without blank space."""
        return "".join(self.head.partition("NAME")[0].split())

    def may_begin(self, opening: str, text: str) -> bool:
        """Whether the text behind an opening may be the beginning of a call."""
        before = self.before.removeprefix(opening) if opening else ""
        before += self.head.partition("NAME")[0]
        sign = "".join(before.partition('"')[0].split())
        begun = "".join(text.split())
        return begun.startswith(sign) or sign.startswith(begun)

    def head_pattern(self) -> re.Pattern[str]:
        """Matches the head of a call, with its name, once that has ended."""
        name = "(?P<name>[A-Za-z0-9_.:/-]+)(?=[^A-Za-z0-9_.:/-])"
        return re.compile(re.escape(self.head).replace("NAME", name))


_OBJECT = '{"name": "NAME", "arguments": '


def _list_of_objects(
    sign: str, opening: str, closing: str, *, has_ids: bool = False
) -> CallForm:
    """A form with all calls in one JSON list."""
    return CallForm(
        signs=(sign,),
        openings=(opening,),
        closing=closing,
        before=f"{opening}[",
        head=_OBJECT,
        tail="}",
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
        head="<function=NAME>\n",
        tail="</function>\n",
        between="</tool_call>\n<tool_call>\n",
        after="</tool_call>",
        read=read_tags,
        notation="tags",
        forgets="<function=NAME>",
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
        recipient=r" to=(?P<space>functions\.)?(?P<name>[A-Za-z0-9_.:/-]+)",
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
    _list_of_objects("[TOOL_CALLS]", "[TOOL_CALLS]", "", has_ids=True),
    # Apriel
    _list_of_objects("<tool_calls>[", "<tool_calls>", "</tool_calls>"),
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
    _list_of_objects("<TOOLCALL>", "<TOOLCALL>", "</TOOLCALL>"),
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

# For people.
KNOWN_FAMILIES = (
    "Qwen 2.5 and later, Hermes, Llama 3.1 to 3.3, Mistral, gpt-oss, Gemma 4, Granite 4, "
    "Nemotron, Apriel"
)


def form_of(template: str) -> CallForm | None:
    """The form whose signs are in the template's source; None for an unknown form."""
    unescaped = template.replace('\\"', '"')
    return next((form for form in FORMS if all(sign in unescaped for sign in form.signs)), None)
