"""Finds out how a template writes calls of tools, by rendering made-up calls.

The template is rendered with one call and with two calls. Their names and values occur nowhere
else, so the text around them is the form of calls. The form is accepted only if it reads back
calls that the template writes, with values of all kinds. llama.cpp does the same (its
docs/autoparser.md).
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

# Seconds of processor time for all renderings of one template. Nothing else limits them.
_MOST_S = 10.0

# The parts of the made-up conversation. None of these texts occurs in a template.
_FIRST_TOOL = "firsttool"
_SECOND_TOOL = "othertool"
_FIRST_KEY = "firstkey"
_SECOND_KEY = "otherkey"
_FIRST_VALUE = "firstvalue"
_SECOND_VALUE = 8642
_QUESTION = "somequestion"
_ANSWER_TEXT = "somewords"
_RESULT = "someresult"
_CALL_IDS = ("callid001", "callid002")
_PLAIN_ARGUMENTS: Mapping[str, Any] = {_FIRST_KEY: _FIRST_VALUE, _SECOND_KEY: _SECOND_VALUE}
# Arguments with values of all kinds, which have to survive writing and reading a call.
_HARD_ARGUMENTS: Mapping[str, Any] = {
    _FIRST_KEY: 'a "quoted" <b> 中\nand a line',
    _SECOND_KEY: 3,
    "a_list": [1, "two"],
    "an_object": {"a": {"b": [True]}},
    "a_number": -1.5,
    "a_flag": False,
}
_SCHEMAS_BY_TYPE: Mapping[type, Mapping[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    list: {"type": "array", "items": {}},
    dict: {"type": "object"},
}


def _schema(value: Any) -> dict[str, Any]:
    return {"description": "d", **_SCHEMAS_BY_TYPE[type(value)]}


_PARAMETERS = {
    "type": "object",
    "properties": {key: _schema(value) for key, value in _HARD_ARGUMENTS.items()},
    "required": [_FIRST_KEY, _SECOND_KEY],
}
_USE = tool_use(
    [
        {
            "name": _FIRST_TOOL,
            "description": "d",
            "parameters": _PARAMETERS,
        },
        {
            "name": _SECOND_TOOL,
            "description": "d",
            "parameters": _PARAMETERS,
        },
    ],
    None,
    is_parallel=True,
)
_TOOLS = _USE.tools


class _UnreadError(Exception):
    """The form of calls cannot be derived from the template's text of the made-up calls."""


class TemplateTools(NamedTuple):
    """How a template shows tools and writes calls."""

    form: CallForm
    """How calls are written."""

    are_shown: bool
    """Whether the template shows a model its tools. If not, the system message has to describe
    them."""

    is_known: bool
    """Whether the form is the template's, or that of its family. If not, it is `IN_WORDS`, and
    the system message has to explain it."""


@functools.lru_cache(maxsize=16)
def tools_of(source: str) -> TemplateTools:
    """How the template with this source shows tools and writes calls. The result is cached.

    For a template that is broken or takes too long: tools are not shown, and the form is not
    known.
    """
    deadline_s = time.thread_time() + _MOST_S  # processor time: the machine may be busy

    def is_late() -> bool:
        return time.thread_time() > deadline_s

    try:
        template = ChatTemplate(source, bos="<s>", eos="</s>")
        form = unlike_template(source)  # of models that write calls unlike their template
        if form is None:
            form = _read_form(template, source, is_late)
        if form is None:
            form = unshown_form(source)  # of models whose template shows no calls
        are_shown = form is not None and _shows_tools(template, is_late)
    except (TemplateError, Interrupted):
        form = None
        are_shown = False
    return TemplateTools(form or IN_WORDS, are_shown, is_known=form is not None)


def takes_tools(source: str | None) -> bool:
    """Whether a template shows tools in a form of calls that is known; False for None."""
    return source is not None and tools_of(source).are_shown


def _shows_tools(template: ChatTemplate, is_late: CancelCheck) -> bool:
    """Whether a prompt with tools names them; False if the template refuses tools."""
    tools = [tool.declared() for tool in _TOOLS]
    question: Message = {"role": "user", "content": _QUESTION}
    try:
        return _SECOND_TOOL in template.render([question], is_late, tools=tools)
    except TemplateError:
        return False


def _read_form(template: ChatTemplate, source: str, is_late: CancelCheck) -> CallForm | None:
    """The form in which the template writes calls; None if it cannot be derived."""
    for text_before_calls in (_ANSWER_TEXT, ""):  # some templates refuse a text before calls
        try:
            return _FormReader(template, source, text_before_calls, is_late).form()
        except (TemplateError, _UnreadError):
            continue
    return None


class _CallParts(NamedTuple):
    """The text after a call's name, in parts."""

    middle: str
    """The text between the name and the arguments."""

    tags: Tags | None
    """How each argument is written, with an empty `end`; None if all are in one object."""

    notation: type[ArgumentReader]
    """The class that reads the arguments."""

    after: str
    """The text after the arguments."""


class _FormReader:
    """Derives the form in which a template writes calls of tools.

    A mark is a text that looks like a tag or a control token, such as <tool_call>.

    Args:
        template: The template, which is rendered with made-up answers.
        source: The template's source, which tells the marks around thoughts.
        text_before_calls: The text of the made-up answers before their calls; empty for
            templates that refuse one.
        is_late: Whether the renderings have taken too long, which ends them.
    """

    def __init__(
        self,
        template: ChatTemplate,
        source: str,
        text_before_calls: str,
        is_late: CancelCheck,
    ) -> None:
        self._template = template
        self._is_late = is_late
        self._text_before_calls = text_before_calls
        self._thoughts = Thoughts(families_of(source, ()))

    def form(self) -> CallForm:
        """The form of calls.

        Raises:
            _UnreadError: It cannot be derived, or does not read the template's calls back.
            TemplateError: The template refuses the made-up conversation.
        """
        answer: Message = {"role": "assistant", "content": _ANSWER_TEXT}
        next_question: Message = {"role": "user", "content": _RESULT}  # ends the turn's text
        turn = self._turn([answer, next_question])
        head, _, tail = turn.partition(_ANSWER_TEXT)  # around the text of an answer
        self._turn_end = self._first_mark(tail)
        self._turn_marks = {self._turn_end, *marks_in(head)}
        one_call = self._turn_with_calls(_PLAIN_ARGUMENTS)
        prefix, first = _split_at_name(one_call, _FIRST_TOOL)
        prefix = self._without_answer_head(prefix, head)
        form = self._form_of_several_calls(prefix, first)
        if form is None:
            form = self._form_of_single_calls(prefix, first)
        if form.tags is not None:
            has_cdata = CDATA in self._turn_with_calls(_HARD_ARGUMENTS)
            form = replace(form, tags=form.tags._replace(has_cdata=has_cdata))
        form = self._with_id_rule(form)
        self._check(form)
        return form

    def _first_mark(self, text: str) -> str:
        """The mark that comes first in the text; "" if there is none."""
        candidates = (*self._thoughts.marks(), *marks_in(text)[:1])
        return first_of(candidates, text) or ""

    def _rendered(self, messages: Sequence[Message]) -> str:
        """The template's text of the messages, with the made-up tools."""
        tools = [tool.declared() for tool in _TOOLS]
        return self._template.render(
            messages,
            self._is_late,
            tools=tools,
            opens_answer=False,
        )

    def _turn(self, messages: Sequence[Message]) -> str:
        """The template's text from the question up to the content of _RESULT.

        Ids of calls are replaced by CALL_ID.

        Args:
            messages: An answer, and the messages after it, the first with the content _RESULT.
        """
        question: Message = {"role": "user", "content": _QUESTION}
        text = self._rendered([question, *messages])
        _, _, after_question = text.rpartition(_QUESTION)
        turn, _, _ = after_question.partition(_RESULT)
        for call_id in _CALL_IDS:
            turn = turn.replace(call_id, CALL_ID)
        return turn

    def _turn_with_calls(
        self,
        *arguments_of_calls: Mapping[str, Any],
        ids: Sequence[str] = _CALL_IDS,
    ) -> str:
        """As `_turn`, for an answer with one or two calls and their results.

        Raises _UnreadError if a call's name is not in the text.

        Args:
            arguments_of_calls: The arguments of each call, by name.
            ids: The ids of the calls.
        """
        names = (_FIRST_TOOL, _SECOND_TOOL)[: len(arguments_of_calls)]
        calls = []
        results: list[Message] = []
        for call_id, name, arguments in zip(
            ids,
            names,
            arguments_of_calls,
            strict=False,
        ):
            function = {"name": name, "arguments": dict(arguments)}
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
            "content": self._text_before_calls,
            "tool_calls": calls,
        }
        turn = self._turn([answer, *results])
        if not all(name in turn for name in names):
            raise _UnreadError("calls are not shown")
        return turn

    def _without_answer_head(self, prefix: str, head: str) -> str:
        """The text before a call's name, without the text before the call itself.

        The head of the answer, its text and its thoughts are removed.

        Args:
            prefix: The text from the question to the name.
            head: The text with which the template begins any answer.
        """
        if self._text_before_calls and self._text_before_calls in prefix:
            _, _, prefix = prefix.rpartition(self._text_before_calls)
        else:
            shared = _common_prefix(prefix, head)
            prefix = prefix.removeprefix(shared)
        # At these marks thoughts and heads of messages end.
        for mark in self._thoughts.marks(TextKind.SPEECH, TextKind.BODY, TextKind.NOTHING):
            _, _, prefix = prefix.rpartition(mark)
        return prefix.lstrip()

    def _opening(self, prefix: str) -> str:
        """The text with which calls begin: `prefix` up to the end of a mark, if it has one.

        The mark is the first one, or the last one if the first ends turns. Raises _UnreadError
        if an answer without calls could begin with that text, too.

        Args:
            prefix: The text of a call before its name.
        """
        mark = self._first_mark(prefix)
        if mark and mark == self._turn_end:
            marks = marks_in(prefix)
            if not marks:  # the first one is a thought's, in words
                raise _UnreadError("calls have no mark of their own")
            mark = marks[-1]
        opening = prefix
        if mark:
            before, _, _ = prefix.partition(mark)
            opening = before + mark
        if not opening.strip() or "{" in opening:
            raise _UnreadError("calls have no mark of their own")
        return opening

    def _up_to_first_mark(self, text: str) -> str:
        """The text up to the end of its first mark; "" if it has none.

        A mark that begins or ends a turn is left out, since it does not belong to calls.
        """
        mark = self._first_mark(text)
        if not mark:
            return ""
        before, _, _ = text.partition(mark)
        if mark in self._turn_marks:
            return before
        return before + mark

    def _form_of_single_calls(self, prefix: str, call: _CallParts) -> CallForm:
        """The form of a template that takes only one call in a message.

        Raises _UnreadError if it cannot be derived.

        Args:
            prefix: The text of the call before its name.
            call: The text after the name.
        """
        opening = self._opening(prefix)
        after = _without_id_field(call.after)
        closing_tag = opening.replace("<", "</", 1)
        before_closing, closing, _ = after.rpartition(closing_tag)
        end = before_closing + closing
        if not end:  # there is no such tag
            end = self._up_to_first_mark(after)
        form = CallForm(
            before=opening,
            start=f"{prefix.removeprefix(opening)}{NAME}{call.middle}",
            end=end,
            openings=(opening,),
            is_single=True,
        )
        return _with_argument_fields(form, call)

    def _form_of_several_calls(self, prefix: str, first: _CallParts) -> CallForm | None:
        """The form of a template that takes several calls in a message.

        Returns None if the template refuses two calls, leaves one out, or writes each as a
        message of its own. Raises _UnreadError if the form cannot be derived otherwise.

        Args:
            prefix: The text of the first call before its name.
            first: The text after that name, in a message with one call.
        """
        try:
            two_calls = self._turn_with_calls(_PLAIN_ARGUMENTS, _PLAIN_ARGUMENTS)
            _, call = _split_at_name(two_calls, _FIRST_TOOL)
            link, second = _split_at_name(call.after, _SECOND_TOOL)
        except (TemplateError, _UnreadError):
            return None
        # `link` is the text between the first call's arguments and the second call's name. A
        # head in it begins another message.
        if any(mark in link for mark in self._thoughts.marks(TextKind.HEAD)):
            return None
        prefix, link = _with_ids_for_numbers(prefix, link)
        middle, second_middle = _with_ids_for_numbers(first.middle, second.middle)
        if middle != second_middle:
            raise _UnreadError("names end in several ways")
        opening = self._opening(prefix)
        after_arguments = _without_id_field(first.after)
        link = _without_id_field(link)
        start = _common_suffix(prefix.removeprefix(opening), link)
        link = link.removesuffix(start)
        end = _common_prefix(link, after_arguments)
        between = link.removeprefix(end)
        after = ""
        if opening not in link:
            after = self._up_to_first_mark(after_arguments.removeprefix(end))
        form = CallForm(
            before=prefix.removesuffix(start),
            start=f"{start}{NAME}{middle}",
            end=end,
            between=between,
            after=after,
            openings=(opening,),
        )
        return _with_argument_fields(form, first)

    def _with_id_rule(self, form: CallForm) -> CallForm:
        """The form, with `has_ids` set if the template refuses the id "call-1".

        Such templates take only ids of nine letters and digits.
        """
        try:
            self._turn_with_calls(_PLAIN_ARGUMENTS, ids=("call-1",))
        except TemplateError:
            return replace(form, has_ids=True)
        return form

    def _check(self, form: CallForm) -> None:
        """Raise _UnreadError if the form does not read the template's own calls back."""
        start = (form.before + form.start).removeprefix(form.openings[0])
        if start.count(NAME) > 1 or start.count(CALL_ID) > 1:
            raise _UnreadError("a call's name or id is written twice")
        self._check_reads_back(form, [_HARD_ARGUMENTS])
        if not form.is_single:
            self._check_reads_back(form, [_HARD_ARGUMENTS, _PLAIN_ARGUMENTS])

    def _check_reads_back(self, form: CallForm, arguments: list[Mapping[str, Any]]) -> None:
        """Raise _UnreadError if the form does not read calls with these arguments back.

        Args:
            form: The form.
            arguments: The arguments of each call. The template writes the calls.
        """
        turn = self._turn_with_calls(*arguments)
        # The calls, from their opening to their end. Without an end they extend to the end of
        # the turn.
        _, opening, after_opening = turn.partition(form.openings[0])
        end = (form.end + form.after).strip()
        calls_end = after_opening.rfind(end or self._turn_end)
        written_calls = opening + after_opening[:calls_end] + end
        stream = CallStream(Calls(form, _USE))
        parts = stream.push(Part(written_calls, is_thought=False))
        parts += stream.finish(is_cut=False)
        calls_read = whole_calls(part.call for part in parts)
        if [call.arguments for call in calls_read] != arguments:
            raise _UnreadError("calls are not read as they are written")


def _with_argument_fields(form: CallForm, call: _CallParts) -> CallForm:
    """Complete a form: how arguments are written, and its marks and tags.

    Raises _UnreadError if nothing stands after arguments that are written one by one.

    Args:
        form: The form, with the texts before, between and after calls.
        call: The parts of a call.
    """
    tags = call.tags
    if tags is not None:
        end = form.end.strip() or form.after.strip()
        if not end:
            raise _UnreadError("arguments have no end")
        # The end up to its first mark is enough, unless it stands after each argument, too.
        first_part = to_first_mark(end)
        if first_part not in tags.closing:
            end = first_part
        tags = tags._replace(end=end)
    after_arguments = (form.end + form.after).rstrip()
    end_marks = marks_in(after_arguments)
    closing = ""
    if end_marks and after_arguments.endswith(end_marks[-1]):
        closing = end_marks[-1]
    form = replace(
        form,
        notation=call.notation,
        tags=tags,
        closing=closing,
    )
    marks = dict.fromkeys(marks_in(form.literals))  # each mark once, in order
    if call.notation is GemmaArguments:
        marks[QUOTE] = None
    return replace(form, forgets=_tag_without_opening(form), marks=tuple(marks))


def _tag_without_opening(form: CallForm) -> str:
    """The tag that contains a tool's name, as <function=NAME>; "" if the form has none.

    Models may leave out the opening before it. A tag with the id of a call does not count.
    """
    before, _, after = form.start.lstrip().partition(NAME)
    if not before.startswith("<") or ">" not in after or CALL_ID in form.start:
        return ""
    end_of_tag, _, _ = after.partition(">")
    return f"{before}{NAME}{end_of_tag}>"


def _without_id_field(text: str) -> str:
    """The text without the field "id" of a JSON object, which models need not write."""
    return _ID_FIELD.sub("", text)


_ID_FIELD = re.compile(rf',\s*"\w+":\s*"{CALL_ID}"')
# The number of a call, a digit as in "0" or :0<
_NUMBER = re.compile(r"""(?<=["':])\d(?=["'<])""")


def _with_ids_for_numbers(text: str, other: str) -> tuple[str, str]:
    """Replace the numbers of two calls by CALL_ID, if the texts then share a longer suffix.

    Returns both texts, changed or not.

    Args:
        text: A text of one call.
        other: The same text of another call.
    """
    numbered = _NUMBER.sub(CALL_ID, text)
    other_numbered = _NUMBER.sub(CALL_ID, other)
    if len(_common_suffix(numbered, other_numbered)) > len(_common_suffix(text, other)):
        return numbered, other_numbered
    return text, other


def _split_at_name(text: str, name: str) -> tuple[str, _CallParts]:
    """Split a text at the name of a call with _PLAIN_ARGUMENTS.

    Returns the text before the name, and the parts of the text after it.

    Raises:
        _UnreadError: The text has no such call, or writes its arguments in an unknown way.
    """
    before_key, _, after_key = text.partition(_FIRST_KEY)
    prefix, found_name, middle = before_key.rpartition(name)
    if not found_name or not after_key:
        raise _UnreadError("a call is not shown")
    # Arguments in one object: between its brace and the first key is only a quote.
    brace = middle.rfind("{")
    begins_object = brace >= 0 and middle[brace + 1 :].strip() == '"'
    if not begins_object:
        return prefix, _split_separate_arguments(middle, after_key)
    object_begin = len(prefix) + len(name) + brace
    object_end = _end_of_object(text, object_begin)
    return prefix, _CallParts(middle[:brace], None, JsonArguments, text[object_end:])


def _split_separate_arguments(middle: str, after_key: str) -> _CallParts:
    """The parts of a call whose arguments are written one by one.

    Raises _UnreadError if they are written in an unknown way, or have no end.

    Args:
        middle: The text between the call's name and the first argument's name.
        after_key: The text after the first argument's name.
    """
    arguments = _SEPARATE_ARGUMENTS.match(after_key)
    if arguments is None:
        raise _UnreadError("arguments are written in an unknown way")
    # `naming` and `naming_other` stand between a name and its value, `link` between the first
    # value and the second name.
    naming, link, naming_other, after = arguments.groups()
    if naming.endswith(QUOTE) and link.startswith(QUOTE) and middle.endswith("{"):
        after = after.removeprefix("}")
        return _CallParts(middle[:-1], None, GemmaArguments, after)
    # If the template names the types of values, that of the second value is "number".
    if naming_other.replace('"number"', '"string"') == naming:
        naming_other = naming_other.replace('"number"', f'"{KIND}"')
    # The end of the first argument may repeat its name.
    link = link.replace(_FIRST_KEY, KEY)
    if KEY in link:
        after = after.replace(_SECOND_KEY, KEY, 1)
    quote = naming[-1:]
    is_quoted = quote in ("'", '"') and link.startswith(quote)
    if is_quoted:
        naming = naming[:-1]
        link = link[1:]
    closing = _common_prefix(link, after)
    if not is_quoted and not closing.strip():
        raise _UnreadError("arguments have no end")
    after = after.removeprefix(closing)
    link = link.removeprefix(closing)
    opening = _common_suffix(middle, link).lstrip()
    between = link.removesuffix(opening)
    tags = Tags(
        opening,
        naming,
        naming_other,
        closing,
        between,
        end="",
        is_quoted=is_quoted,
    )
    return _CallParts(middle.removesuffix(opening), tags, TagArguments, after)


def _end_of_object(text: str, begin: int) -> int:
    """The index after the JSON object that begins at an index of the text.

    Raises _UnreadError unless the object is _PLAIN_ARGUMENTS.
    """
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        raise _UnreadError("arguments are no object") from error
    if value != _PLAIN_ARGUMENTS:
        raise _UnreadError("arguments are not those that were given")
    return end


_DECODER = json.JSONDecoder()
# The text after the first argument's name. The groups are the texts before the first value,
# before the second name, before the second value, and after it.
_SEPARATE_ARGUMENTS = re.compile(
    f"(.*?){_FIRST_VALUE}(.*?){_SECOND_KEY}(.*?){_SECOND_VALUE}(.*)",
    re.DOTALL,
)


def _common_prefix(text: str, other: str) -> str:
    """The longest common prefix of two texts, without a tag <…> that is cut at its end."""
    prefix = text[: _common_length(text, other)]
    tag_begin = prefix.rfind("<")
    is_tag_cut = tag_begin > prefix.rfind(">")
    if is_tag_cut:
        return prefix[:tag_begin]
    return prefix


def _common_length(text: str, other: str) -> int:
    """The length of the longest common prefix of two texts."""
    pairs = zip(text, other, strict=False)
    for index, (character, other_character) in enumerate(pairs):
        if character != other_character:
            return index
    return min(len(text), len(other))


def _common_suffix(text: str, other: str) -> str:
    """The longest common suffix of two texts, without a tag <…> that is cut at its start."""
    length = _common_length(text[::-1], other[::-1])
    suffix = text[len(text) - length :]
    before_tag_end, tag_end, after_tag = suffix.partition(">")
    is_tag_cut = bool(tag_end) and "<" not in before_tag_end
    if is_tag_cut:
        return after_tag
    return suffix
