"""Messages → the tokens that a model reads.

Templates look for switches in messages, and cut them out: what is left could join to a control
text. Where it could, the messages are rendered once more, with all of their text hidden, which
shows the control texts that are the template's own. If they are others, more of the text is
hidden, and if need be all of it: then only what the template would have done to it is lost.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from localspec.chat.call_forms import TemplateTools, takes_tools, tools_of
from localspec.chat.control_guard import ControlGuard, Exposed, Hidden
from localspec.chat.messages import THOUGHT_KEYS, fit_to_form, merged_messages
from localspec.chat.shown import for_the_blind, for_the_seeing, in_front
from localspec.chat.system_role import SystemRole
from localspec.chat.template import NO_VARIABLES, ChatTemplate, Message
from localspec.chat.tool_words import with_tools_in_words
from localspec.constraints.guidance import is_installed, kept_schema, problem_with
from localspec.constraints.spec import ConstraintSpec, calls_spec
from localspec.errors import ConstraintError, TemplateError
from localspec.pictures.picture import KnownCells, Picture, Vision
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import CancelCheck, never
from localspec.streaming.thinking import Thoughts, without_thoughts
from localspec.streaming.thought_families import families_of
from localspec.tools.call_form import CallForm
from localspec.tools.grammar import CallGrammar, Calls, call_grammar
from localspec.tools.tool import Tool, ToolUse
from localspec.vocabulary import Vocabulary, with_bos

logger = logging.getLogger(__name__)

_USUAL_ROLES = ("system", "user", "assistant")  # which templates know, or refuse in words
_ANY_OBJECT = {"type": "object"}
# Keywords of a schema that may allow arguments other than its properties.
_SAYS_MORE = frozenset(
    ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")
)


TOOLS_IN_WORDS = (
    "the chat template does not support tools, or its form of calls is not known: the system "
    "message describes the tools"
)


class _Rendered(NamedTuple):
    """The text of a prompt, what is hidden in it, and the pictures among that."""

    text: str
    hidden: Hidden
    pictures: tuple[Picture, ...]


class PromptMaker:
    """A chat template, and a guard against control texts in messages. For any thread.

    Args:
        tool_source: The source of another template, for messages with tools or calls of them,
            if there is one and the way its models write calls is known.
        think: False asks for no thoughts.
        vision: What makes tokens of pictures, if the model sees.

    Raises:
        TemplateError: For a source that is broken, or knows no such switch.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        source: str,
        *,
        think: bool,
        tool_source: str | None = None,
        vision: Vision | None = None,
    ) -> None:
        bos = vocabulary.text(vocabulary.bos)
        eos = vocabulary.text(vocabulary.eos)
        self._template = ChatTemplate(source, bos=bos, eos=eos, think=think)
        self._system_role = SystemRole(self._template)
        variables = {"bos_token": bos, "eos_token": eos}
        self._named = tuple(text for name, text in variables.items() if name in source)
        self._source = source
        # Where it takes thoughts: elsewhere a message is what it would be without them.
        self._thought_keys = self._template.keys.intersection(THOUGHT_KEYS)
        self._vocabulary = vocabulary
        self._vision = None if vision is None else KnownCells(vision)
        self._guard = ControlGuard(vocabulary)
        self._for_tools: PromptMaker | None = None
        if takes_tools(tool_source):
            assert tool_source is not None
            self._for_tools = PromptMaker(vocabulary, tool_source, think=think, vision=vision)
        self._thoughts = _thoughts(vocabulary, source, self._guard.texts)

    def prompt(
        self,
        messages: Sequence[Message],
        use: ToolUse,
        is_cancelled: CancelCheck = never,
        *,
        may_merge: bool = False,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> Prompt:
        """The prompt that asks for the next answer, or for the rest of one in the last message.

        A developer is the system where the template does not know the word. Where it shows no
        message of the system, the text of these stands in front of a question. Thoughts that
        stand within an answer's text are left out: templates that do so themselves could not
        see the marks, which are hidden like any in a message.

        A picture before the last message is a note for a model that does not see.

        Where it shows no tools, or its form of calls is not known, they are in words: see
        `tool_words`.

        Raises TemplateError if the template refuses the messages, leaves some out, or fails;
        OptionError for a picture that cannot be read, or seen; Interrupted soon after it has
        become cancelled.

        Args:
            may_merge: What the template refuses is tried once more as `merged_messages`.
            variables: The template's variables, as for `ChatTemplate.render`.
        """
        maker = self._maker_for(messages, use)
        rendered = maker._rendered_for(
            messages, use, is_cancelled, may_merge=may_merge, variables=variables
        )
        return maker._tokenized(rendered, use)

    def text(
        self,
        messages: Sequence[Message],
        use: ToolUse,
        *,
        variables: Mapping[str, Any] = NO_VARIABLES,
        opens_answer: bool = True,
    ) -> str:
        """The prompt as the template writes it, without pictures, to be sent as a raw prompt.

        So it lacks the bos in front where every text gets one. Else as `prompt`, and raises as
        that does.

        Args:
            opens_answer: Whether it ends with what begins the next answer, or goes on with the
                answer in the last message.
        """
        maker = self._maker_for(messages, use)
        rendered = maker._rendered_for(
            messages,
            use,
            never,
            may_merge=True,
            variables=variables,
            opens_answer=opens_answer,
        )
        text = rendered.hidden.uncovered(rendered.text)
        bos = self._vocabulary.text(self._vocabulary.bos)
        if self._vocabulary.add_bos:
            return text.removeprefix(bos)
        return text

    @functools.cached_property
    def _tools(self) -> TemplateTools:
        """What the template has of tools; found out where there are any."""
        return tools_of(self._source)

    @functools.cached_property
    def _has_tools_in_words(self) -> bool:
        """Whether tools that are given have to be described. The log says so once."""
        if not self._tools.are_shown:
            logger.warning("%s", TOOLS_IN_WORDS)
        return not self._tools.are_shown

    def _maker_for(self, messages: Sequence[Message], use: ToolUse) -> PromptMaker:
        """The maker whose template is for such messages."""
        has_tools = bool(use.tools) or any(map(_has_call, messages))
        if self._for_tools is not None and has_tools:
            return self._for_tools
        return self

    def _rendered_for(
        self,
        messages: Sequence[Message],
        use: ToolUse,
        is_cancelled: CancelCheck,
        *,
        may_merge: bool,
        variables: Mapping[str, Any],
        opens_answer: bool = True,
    ) -> _Rendered:
        """The template's text of the messages, in which pictures are notes, or tokens."""
        pictures: Sequence[Picture] = ()
        if self._vision is None:
            messages = for_the_blind(messages)
        else:
            messages, pictures = for_the_seeing(messages, self._vision)

        def rendered(given: Sequence[Message]) -> _Rendered:
            exposed = self._exposed(given, use, variables, is_cancelled)
            exposed = exposed._replace(opens_answer=opens_answer)
            return _Rendered(
                *self._render_with_pictures(exposed, is_cancelled), tuple(pictures)
            )

        try:
            return rendered(messages)
        except TemplateError:
            merged = merged_messages(messages) if may_merge else messages
            if merged == messages:
                raise
            return rendered(merged)

    def _render_with_pictures(
        self, exposed: Exposed, is_cancelled: CancelCheck
    ) -> tuple[str, Hidden]:
        """The template's text, with each picture in it, and what is hidden."""
        self._check_roles(exposed, is_cancelled)
        text, hidden = self._guarded(exposed, is_cancelled)
        if not hidden.shows_pictures(text):  # where they were; so each before its text
            exposed = exposed._replace(messages=in_front(exposed.messages))
            text, hidden = self._guarded(exposed, is_cancelled)
        if not hidden.shows_pictures(text):
            raise TemplateError(
                "the chat template leaves out a picture, or shows it twice",
                "Choose another template, such as template=chatml.",
            )
        return text, hidden

    def _tokenized(self, rendered: _Rendered, use: ToolUse) -> Prompt:
        """The prompt in tokens, and how to read the answer to it."""
        tokens = self._guard.tokenize(rendered.text, rendered.hidden)
        calls = self._calls(use)
        thoughts = self._thoughts.after(rendered.text)
        if calls is not None:
            thoughts = thoughts.without(calls.form.openings)
        return Prompt(
            with_bos(tokens, self._vocabulary),
            thoughts,
            calls=calls,
            pictures=rendered.pictures,
            has_tool_words=bool(use.tools) and self._has_tools_in_words,
        )

    def _with_known_roles(self, messages: Sequence[Message]) -> list[Message]:
        """The messages, a developer's as the system's where the template knows only that."""
        if "developer" in self._source:
            return list(messages)
        return [
            {**each, "role": "system"} if each["role"] == "developer" else each
            for each in messages
        ]

    def _exposed(
        self,
        messages: Sequence[Message],
        use: ToolUse,
        variables: Mapping[str, Any],
        is_cancelled: CancelCheck,
    ) -> Exposed:
        """The messages as the template takes them, with all else that it may read."""
        if messages and "tool_calls" in messages[-1]:
            raise TemplateError(
                "the last message calls tools, and their results are missing",
                "Give the results in messages of the role tool.",
            )
        messages = self._with_known_roles(messages)
        tools = [tool.declared() for tool in use.tools]
        if use.tools and self._has_tools_in_words:
            messages = with_tools_in_words(messages, use.tools, self._tools.form)
            tools = []
        if any(map(_has_call, messages)):
            messages = fit_to_form(messages, self._tools.form)
        messages = self._system_role.fitted(messages, is_cancelled)
        read = []
        data = set()
        for number, message in enumerate(messages):
            role = str(message["role"])
            content = str(message["content"])
            if role == "tool":
                data.add(number)
            if role == "assistant":
                message = self._with_thoughts(message)
                content = without_thoughts(content, self._thoughts.families)
            read.append({**message, "role": role, "content": content})
        return Exposed(read, tools, frozenset(data), variables)

    def _with_thoughts(self, answer: Message) -> Message:
        """The answer with its thoughts by the keys that the template reads."""
        if "reasoning_content" not in answer:
            return answer
        thoughts = dict.fromkeys(self._thought_keys, answer["reasoning_content"])
        if "tool_calls" in answer:
            return {**thoughts, **answer}
        bare = {key: each for key, each in answer.items() if key != "reasoning_content"}
        return {**bare, **thoughts}

    def _calls(self, use: ToolUse) -> Calls | None:
        if not use.callable:
            return None
        form = self._tools.form
        texts = [*form.marks, *filter(form.literals.__contains__, self._guard.texts)]
        ids = {mark: self._vocabulary.tokenize(mark, parse_special=True) for mark in texts}
        tokens = {mark: found[0] for mark, found in ids.items() if len(found) == 1}
        shown = frozenset(filter(self._vocabulary.is_control, tokens.values()))
        return Calls(form, use, shown, kept_calls(form, use, tokens))

    def _check_roles(self, exposed: Exposed, is_cancelled: CancelCheck) -> None:
        unusual = [
            number
            for number, message in enumerate(exposed.messages)
            if number not in exposed.data and message["role"] not in _USUAL_ROLES
        ]
        if not unusual:
            return
        hidden = self._guard.hide_all(exposed)
        text = self._rendered(hidden, is_cancelled)
        for message in (hidden.messages[number] for number in unusual):
            if message["content"].strip() not in text:
                raise TemplateError(
                    f"the chat template leaves out messages of the role {message['role']!r}",
                    "Give their text the role user or system.",
                )

    def _guarded(self, exposed: Exposed, is_cancelled: CancelCheck) -> tuple[str, Hidden]:
        """The template's text, whose control texts are its own, and what is hidden in it."""
        hidden = self._guard.hide(exposed)
        text = self._rendered(hidden, is_cancelled)
        if not self._guard.shows_ends(hidden) and self._are_written(
            self._guard.control_texts_in(text)
        ):
            return text, hidden
        safest = self._guard.hide_all(exposed)
        safe_text = self._rendered(safest, is_cancelled)
        own = self._guard.control_texts_in(safe_text)
        if self._guard.control_texts_in(text) == own:
            return text, hidden
        hidden = self._guard.hide_words(exposed)
        text = self._rendered(hidden, is_cancelled)
        # A switch in a message can bring others.
        others = [each for each in self._guard.control_texts_in(text) if each not in own]
        if self._are_written(others):
            return (text, hidden)
        return (safe_text, safest)

    def _are_written(self, texts: Sequence[str]) -> bool:
        """Whether each text stands in the template's source, so it need not be put together."""
        return all(text in self._named or text in self._source for text in texts)

    def _rendered(self, hidden: Hidden, is_cancelled: CancelCheck) -> str:
        """The template's text; up to the end of the last message if that is an answer."""
        *before, last = hidden.messages
        is_answer = hidden.opens_answer and last["role"] == "assistant"
        if is_answer:
            last = {**last, "content": last["content"] + hidden.end}
        render = functools.partial(
            self._template.render,
            is_cancelled=is_cancelled,
            tools=hidden.tools,
            variables=hidden.variables,
            opens_answer=hidden.opens_answer and not is_answer,
        )
        try:
            text = render([*before, last])
        except TemplateError:
            if all(message["content"] for message in hidden.messages):
                raise
            # Some refuse an answer in which nothing was said.
            text = render(
                [{**each, "content": each["content"] or " "} for each in (*before, last)]
            )
        if not is_answer:
            return text
        opened, found, _ = text.rpartition(hidden.end)
        if not found:
            raise TemplateError(
                "the chat template leaves out the answer to continue",
                "Leave out the last message, whose role is assistant.",
            )
        return opened


def _has_call(message: Message) -> bool:
    """Whether it calls a tool, or is a result."""
    return "tool_calls" in message or message["role"] == "tool"


def _thoughts(vocabulary: Vocabulary, source: str, texts: Sequence[str]) -> Thoughts:
    families = families_of(source, texts)
    marks = [mark for family in families for mark in family.marks]
    among = (text for text in texts if any(text in mark for mark in marks))
    ids = (vocabulary.tokenize(text, parse_special=True) for text in among)
    return Thoughts(families, shown=frozenset(token for each in ids for token in each))


def kept_calls(form: CallForm, use: ToolUse, tokens: Mapping[str, int]) -> CallGrammar | None:
    """The grammar of calls; None where they cannot be kept to one, and need not.

    A schema that says nothing of other arguments than its properties' allows none here. A tool
    whose schema cannot be kept to gets any object, and the log a line on it, unless it is
    strict or has to be called.

    Args:
        tokens: The tokens of marks, as for `call_grammar`.

    Raises:
        ConstraintError: Where something has to be kept to: such a tool, a call that has to be
            made, another answer's form.
    """
    has_to = use.must or use.answer_schema is not None
    if not is_installed():
        if use.must:
            raise ConstraintError(
                "a required tool call needs llguidance, which is not installed",
                "Install it: pip install 'localspec[grammar]'. Optional tool calls do not "
                "need it.",
            )
        return None
    try:
        grammar = call_grammar(form, use, tokens, functools.partial(_schema, use))
        if (problem := problem_with(calls_spec(grammar.lark))) is not None:
            raise problem
    except ConstraintError as error:
        if has_to or any(tool.is_strict for tool in use.callable):
            raise ConstraintError(f"the tools: {error}", error.hint) from error
        logger.debug("tool calls are not constrained to the tools' schemas: %s", error)
        return None
    return grammar


def _schema(use: ToolUse, tool: Tool) -> Mapping[str, Any]:
    schema = tool.parameters
    if _SAYS_MORE.isdisjoint(schema):
        schema = {**schema, "additionalProperties": False}
    spec = ConstraintSpec("json_schema", json.dumps(schema), is_strict=True)
    problem = problem_with(spec)
    if problem is None:
        return kept_schema(spec)
    if use.must or tool.is_strict:
        raise ConstraintError(
            f"the parameters of the tool {tool.name}: {problem}",
            "Leave that out of the schema, and check the arguments for it.",
        )
    logger.debug(
        "calls of the tool %s are not constrained to its schema: %s", tool.name, problem
    )
    return _ANY_OBJECT
