"""How a template writes calls of tools, read off what it makes of made-up ones.

The template is rendered with one call and with two, whose names and values occur nowhere else.
The text between these is the form. It counts only if the template's own calls, with values of
all kinds, can be read back by it. llama.cpp does the same (its docs/autoparser.md).
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from localspec.chat.template import ChatTemplate, Message
from localspec.errors import Interrupted, TemplateError
from localspec.streaming.calls import CallStream
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.thinking import Part, Thoughts
from localspec.streaming.thought_families import TextKind, families_of
from localspec.tools.arguments import (
    CDATA,
    KEY,
    KIND,
    QUOTE,
    ArgumentReader,
    GemmaArguments,
    JsonArguments,
    TagArguments,
    Tags,
    marks_in,
    to_first_mark,
)
from localspec.tools.call_form import CALL_ID, NAME, CallForm
from localspec.tools.forms import (
    IN_WORDS,
    unlike_template,
    unshown_form,
)
from localspec.tools.grammar import Calls
from localspec.tools.partial_text import first_of
from localspec.tools.tool import tool_use, whole_calls

# Limit of processor time for all renderings of a template here, which nothing else would end.
_MOST_S = 10.0

_FIRST = "firsttool"
_SECOND = "othertool"
_KEY_A = "firstkey"
_KEY_B = "otherkey"
_VALUE_A = "firstvalue"
_VALUE_B = 8642
_QUESTION = "somequestion"
_SAID = "somewords"
_RESULT = "someresult"
_IDS = ("callid001", "callid002")
_PLAIN: Mapping[str, Any] = {_KEY_A: _VALUE_A, _KEY_B: _VALUE_B}
# Values of all kinds, which a form has to carry.
_HARD: Mapping[str, Any] = {
    _KEY_A: 'a "quoted" <b> 中\nand a line',
    _KEY_B: 3,
    "a_list": [1, "two"],
    "an_object": {"a": {"b": [True]}},
    "a_number": -1.5,
    "a_flag": False,
}
_TYPES: Mapping[type, Mapping[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    list: {"type": "array", "items": {}},
    dict: {"type": "object"},
}


def _schema(value: Any) -> dict[str, Any]:
    return {"description": "d", **_TYPES[type(value)]}


_PARAMETERS = {
    "type": "object",
    "properties": {key: _schema(value) for key, value in _HARD.items()},
    "required": [_KEY_A, _KEY_B],
}
_USE = tool_use(
    [
        {
            "name": _FIRST,
            "description": "d",
            "parameters": _PARAMETERS,
        },
        {
            "name": _SECOND,
            "description": "d",
            "parameters": _PARAMETERS,
        },
    ],
    None,
    is_parallel=True,
)
_TOOLS = _USE.tools


class _UnreadError(Exception):
    """The form cannot be read off what the template makes of the calls."""


class TemplateTools(NamedTuple):
    """How a template shows tools and writes calls."""

    form: CallForm
    """How calls are written."""

    are_shown: bool
    """Whether the template shows a model its tools. If not, they have to be described in
    words."""

    is_known: bool
    """Whether the template, or its family, has that form. If not, it has to be explained in
    words."""


@functools.lru_cache(maxsize=16)
def tools_of(source: str) -> TemplateTools:
    """How a template shows tools and writes calls. It is rendered for that once."""
    until_s = time.thread_time() + _MOST_S  # not of the clock: the machine may be busy

    def is_late() -> bool:
        return time.thread_time() > until_s

    try:
        template = ChatTemplate(source, bos="<s>", eos="</s>")
        form = unlike_template(source)
        if form is None:
            form = _read_form(template, source, is_late)
        if form is None:
            form = unshown_form(source)
        are_shown = form is not None and _shows_tools(template, is_late)
    except (TemplateError, Interrupted):
        form = None
        are_shown = False
    return TemplateTools(form or IN_WORDS, are_shown, is_known=form is not None)


def takes_tools(source: str | None) -> bool:
    """Whether a template shows tools, and the form of its models' calls is known."""
    return source is not None and tools_of(source).are_shown


def _shows_tools(template: ChatTemplate, is_late: CancelCheck) -> bool:
    """Whether the names of tools come out in a prompt."""
    tools = [tool.declared() for tool in _TOOLS]
    question: Message = {"role": "user", "content": _QUESTION}
    try:
        return _SECOND in template.render([question], is_late, tools=tools)
    except TemplateError:
        return False


def _read_form(template: ChatTemplate, source: str, is_late: CancelCheck) -> CallForm | None:
    """The form that the template shows; None if it shows none that can be read."""
    for said in (_SAID, ""):  # some templates refuse words before calls
        try:
            return _FormReader(template, source, said, is_late).form()
        except (TemplateError, _UnreadError):
            continue
    return None


class _Parted(NamedTuple):
    """The text after a call's name, in parts."""

    middle: str
    """The text between the name and the arguments."""

    tags: Tags | None
    """How arguments are written one by one, but for the end; None for an object."""

    notation: type[ArgumentReader]
    """The kind of reader for the arguments."""

    rest: str
    """The text after the arguments."""


class _FormReader:
    """Reads off a template in which form it writes calls of tools.

    Args:
        template: The template, which is rendered with made-up answers.
        source: The template's source, for the marks around its thoughts.
        said: What the made-up answers say before their calls; empty for templates that refuse
            words there.
        is_late: Whether reading has taken too long.
    """

    def __init__(
        self,
        template: ChatTemplate,
        source: str,
        said: str,
        is_late: CancelCheck,
    ) -> None:
        self._template = template
        self._is_late = is_late
        self._said = said
        self._thoughts = Thoughts(families_of(source, ()))
        question: Message = {"role": "user", "content": _QUESTION}
        self._asked = [question]  # the messages before an answer

    def form(self) -> CallForm:
        """The form. Raises _UnreadError or TemplateError."""
        answer: Message = {"role": "assistant", "content": _SAID}
        more: Message = {"role": "user", "content": _RESULT}
        head, _, tail = self._turn([answer, more]).partition(_SAID)
        self._turn_end = self._first_mark(tail)
        self._turn_marks = {self._turn_end, *marks_in(head)}
        prefix, first = _parted(self._turn_of_calls(_PLAIN), _FIRST)
        prefix = self._without_head(prefix, head)
        try:
            _, call = _parted(self._turn_of_calls(_PLAIN, _PLAIN), _FIRST)
            link, second = _parted(call.rest, _SECOND)
        except (TemplateError, _UnreadError):
            form = self._of_single(prefix, first)
        else:
            if any(mark in link for mark in self._thoughts.marks(TextKind.HEAD)):
                form = self._of_single(prefix, first)  # each is a message
            else:
                form = self._of_several(prefix, first, link, second)
        if form.tags is not None:
            tags = form.tags._replace(has_cdata=CDATA in self._turn_of_calls(_HARD))
            form = replace(form, tags=tags)
        form = self._with_ids(form)
        self._check(form)
        return form

    def _first_mark(self, text: str) -> str:
        """The mark that comes first in the text; "" for none."""
        candidates = (*self._thoughts.marks(), *marks_in(text)[:1])
        return first_of(candidates, text) or ""

    def _rendered(self, messages: Sequence[Message]) -> str:
        tools = [tool.declared() for tool in _TOOLS]
        return self._template.render(
            messages,
            self._is_late,
            tools=tools,
            opens_answer=False,
        )

    def _turn(self, messages: Sequence[Message]) -> str:
        """The text that the template makes of an answer, up to the next message's content."""
        text = self._rendered([*self._asked, *messages])
        _, _, after = text.rpartition(_QUESTION)
        turn, _, _ = after.partition(_RESULT)
        for call_id in _IDS:
            turn = turn.replace(call_id, CALL_ID)
        return turn

    def _turn_of_calls(self, *arguments: Mapping[str, Any], ids: Sequence[str] = _IDS) -> str:
        """The text that the template makes of an answer with calls of these arguments."""
        names = (_FIRST, _SECOND)[: len(arguments)]
        calls = []
        results: list[Message] = []
        for call_id, name, given in zip(
            ids,
            names,
            arguments,
            strict=False,
        ):
            function = {"name": name, "arguments": dict(given)}
            calls.append(
                {
                    "id": call_id,
                    "type": "function",
                    "function": function,
                }
            )
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": call_id,
                    "name": name,
                    "content": _RESULT,
                }
            )
        answer: Message = {
            "role": "assistant",
            "content": self._said,
            "tool_calls": calls,
        }
        turn = self._turn([answer, *results])
        if not all(name in turn for name in names):
            raise _UnreadError("calls are not shown")
        return turn

    def _without_head(self, prefix: str, head: str) -> str:
        """The text before the name, without the beginning of the answer, and thoughts."""
        if self._said and self._said in prefix:
            prefix = prefix.rpartition(self._said)[2]
        else:
            prefix = prefix[len(_common_prefix(prefix, head)) :]
        for mark in self._thoughts.marks(TextKind.SPEECH, TextKind.BODY, TextKind.NOTHING):
            prefix = prefix.rpartition(mark)[2]
        return prefix.lstrip()

    def _opening(self, prefix: str) -> str:
        """The text with which calls begin, up to and with a mark."""
        mark = self._first_mark(prefix)
        if mark and mark == self._turn_end:  # only the marks after it are a call's alone
            mark = marks_in(prefix)[-1]
        opening = prefix[: prefix.find(mark) + len(mark)] or prefix
        if not opening.strip() or "{" in opening:
            raise _UnreadError("calls have no mark of their own")
        return opening

    def _up_to_mark(self, text: str) -> str:
        """The text up to its first mark, and the mark, unless that ends or begins a turn."""
        mark = self._first_mark(text)
        if not mark:
            return ""
        found = text.partition(mark)[0]
        if mark in self._turn_marks:
            return found
        return found + mark

    def _of_single(self, prefix: str, call: _Parted) -> CallForm:
        """The form of a template that takes one call in a message."""
        opening = self._opening(prefix)
        rest = _without_ids(call.rest)
        closing = opening.replace("<", "</", 1)
        before, closing, _ = rest.rpartition(closing)
        form = CallForm(
            before=opening,
            start=f"{prefix.removeprefix(opening)}{NAME}{call.middle}",
            end=f"{before}{closing}" or self._up_to_mark(rest),
            openings=(opening,),
            is_single=True,
        )
        return _with_arguments(form, call)

    def _of_several(
        self,
        prefix: str,
        call: _Parted,
        link: str,
        second: _Parted,
    ) -> CallForm:
        """The form of a template that takes several calls in a message.

        Args:
            prefix: The text before the first call's name.
            call: The text after it.
            link: The text between the first call's arguments and the second call's name.
            second: The text after that name.
        """
        prefix, link = _with_numbers(prefix, link)
        middle, other = _with_numbers(call.middle, second.middle)
        if middle != other:
            raise _UnreadError("names end in several ways")
        opening = self._opening(prefix)
        rest = _without_ids(call.rest)
        link = _without_ids(link)
        start = _common_suffix(prefix.removeprefix(opening), link)
        link = link[: len(link) - len(start)]
        end = _common_prefix(link, rest)
        after = ""
        if opening not in link:
            after = self._up_to_mark(rest[len(end) :])
        form = CallForm(
            before=prefix[: len(prefix) - len(start)],
            start=f"{start}{NAME}{middle}",
            end=end,
            between=link[len(end) :],
            after=after,
            openings=(opening,),
        )
        return _with_arguments(form, call)

    def _with_ids(self, form: CallForm) -> CallForm:
        """The form, with whether the template accepts only ids of its own kind."""
        try:
            self._turn_of_calls(_PLAIN, ids=("call-1",))
        except TemplateError:
            return replace(form, has_ids=True)
        return form

    def _check(self, form: CallForm) -> None:
        """Raise _UnreadError for a form by which the template's own calls are read wrongly."""
        self._check_reads(form, [_HARD])
        if not form.is_single:
            self._check_reads(form, [_HARD, _PLAIN])

    def _check_reads(self, form: CallForm, arguments: list[Mapping[str, Any]]) -> None:
        """Raise _UnreadError if the form does not read the template's calls back.

        The template writes calls with these arguments, as an answer would have them.
        """
        turn = self._turn_of_calls(*arguments)
        # Of the turn only the calls, from their opening to their end. In a form without an end
        # they extend to the end of the turn.
        _, opening, rest = turn.partition(form.openings[0])
        end = (form.end + form.after).strip()
        end_position = rest.rfind(end or self._turn_end)
        text = opening + rest[:end_position] + end
        stream = CallStream(Calls(form, _USE))
        parts = stream.push(Part(text, is_thought=False))
        parts += stream.finish(is_cut=False)
        read = [call.arguments for call in whole_calls(part.call for part in parts)]
        if read != arguments:
            raise _UnreadError("calls are not read as they are written")


def _with_arguments(form: CallForm, call: _Parted) -> CallForm:
    """The form, with the fields that follow from its parts and from the arguments' notation."""
    tags = call.tags
    if tags is not None:
        end = form.end.strip() or form.after.strip()
        if not end:
            raise _UnreadError("arguments have no end")
        mark = to_first_mark(end)
        if mark not in tags.closing:
            end = mark
        tags = tags._replace(end=end)
    last = (form.end + form.after).rstrip()
    ends = marks_in(last)
    closing = ""
    if ends and last.endswith(ends[-1]):
        closing = ends[-1]
    form = replace(
        form,
        notation=call.notation,
        tags=tags,
        closing=closing,
    )
    marks = dict.fromkeys(marks_in(form.literals))
    if call.notation is GemmaArguments:
        marks[QUOTE] = None
    return replace(form, forgets=_forgotten(form), marks=tuple(marks))


def _forgotten(form: CallForm) -> str:
    """The tag with the name before which models may leave out the opening; "" for none."""
    before, _, after = form.start.lstrip().partition(NAME)
    if not before.startswith("<") or ">" not in after or CALL_ID in form.start:
        return ""
    end_of_tag, _, _ = after.partition(">")
    return f"{before}{NAME}{end_of_tag}>"


def _without_ids(text: str) -> str:
    """The text without an object's id, which models need not write."""
    text = _ID_FIELD.sub("", text)
    if CALL_ID in text.partition(_SECOND)[0] and _ID_FIELD.search(text):
        raise _UnreadError("ids stand behind the arguments")
    return text


_ID_FIELD = re.compile(rf',\s*"\w+":\s*"{CALL_ID}"')
# A call's number, as "0" or :0<
_NUMBER = re.compile(r"""(?<=["':])\d(?=["'<])""")


def _with_numbers(text: str, other: str) -> tuple[str, str]:
    """Two texts; a call's number in them becomes its id if they then have more in common."""
    numbered = _NUMBER.sub(CALL_ID, text)
    other_numbered = _NUMBER.sub(CALL_ID, other)
    if len(_common_suffix(numbered, other_numbered)) > len(_common_suffix(text, other)):
        return numbered, other_numbered
    return text, other


def _parted(text: str, name: str) -> tuple[str, _Parted]:
    """The text before a call's name, and the parts of the text after it.

    Raises _UnreadError.
    """
    before, _, rest = text.partition(_KEY_A)
    prefix, named, middle = before.rpartition(name)
    if not named or not rest:
        raise _UnreadError("a call is not shown")
    brace = middle.rfind("{")
    if brace >= 0 and middle[brace + 1 :].strip() == '"':
        end = _end_of_object(text, len(before) - len(middle) + brace)
        return prefix, _Parted(middle[:brace], None, JsonArguments, text[end:])
    found_all = _ONE_BY_ONE.match(rest)
    if found_all is None:
        raise _UnreadError("arguments are written in an unknown way")
    naming, link, naming_other, rest = found_all.groups()
    if naming.endswith(QUOTE) and link.startswith(QUOTE) and middle.endswith("{"):
        return prefix, _Parted(middle[:-1], None, GemmaArguments, rest.removeprefix("}"))
    if naming_other.replace('"number"', '"string"') == naming:
        naming_other = naming_other.replace('"number"', f'"{KIND}"')
    link = link.replace(_KEY_A, KEY)
    if KEY in link:
        rest = rest.replace(_KEY_B, KEY, 1)
    is_quoted = naming[-1:] in ("'", '"') and link.startswith(naming[-1:])
    if is_quoted:
        naming = naming[:-1]
        link = link[1:]
    closing = _common_prefix(link, rest)
    opening = _common_suffix(middle, link[len(closing) :]).lstrip()
    middle = middle[: len(middle) - len(opening)]
    between = link[len(closing) : len(link) - len(opening)]
    if not is_quoted and not closing.strip():
        raise _UnreadError("arguments have no end")
    tags = Tags(opening, naming, naming_other, closing, between, "", is_quoted)
    return prefix, _Parted(middle, tags, TagArguments, rest[len(closing) :])


def _end_of_object(text: str, begin: int) -> int:
    """The place after the JSON object of a call's arguments. Raises _UnreadError."""
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except ValueError as error:
        raise _UnreadError("arguments are no object") from error
    if value != _PLAIN:
        raise _UnreadError("arguments are others")
    return end


_DECODER = json.JSONDecoder()
_ONE_BY_ONE = re.compile(f"(.*?){_VALUE_A}(.*?){_KEY_B}(.*?){_VALUE_B}(.*)", re.DOTALL)


def _common_prefix(text: str, other: str) -> str:
    """The text with which both begin, up to a mark that only one of them has whole."""
    found = text[: _num_common(text, other)]
    at = found.rfind("<")
    if at > found.rfind(">"):
        return found[:at]
    return found


def _num_common(text: str, other: str) -> int:
    """The number of characters with which both begin."""
    pairs = zip(text, other, strict=False)
    for index, (character, other_character) in enumerate(pairs):
        if character != other_character:
            return index
    return min(len(text), len(other))


def _common_suffix(text: str, other: str) -> str:
    """The text with which both end, starting after a mark that only one of them has whole."""
    found = text[len(text) - _num_common(text[::-1], other[::-1]) :]
    at = found.find(">")
    is_within = at >= 0 and "<" not in found[:at]
    if is_within:
        return found[at + 1 :]
    return found
