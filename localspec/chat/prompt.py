"""Messages → the tokens that a model reads.

Templates look for switches in messages, and remove them: the remaining text could join to a
control text. If it could, the messages are rendered once more, with all of their text hidden.
That shows which control texts are the template's own. If the first prompt had others, more of
the text is hidden, and in the end all of it: then only the template's changes to it are lost.
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

_USUAL_ROLES = ("system", "user", "assistant")  # every template knows or refuses them
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
    """A prompt as the template writes it."""

    text: str
    """The text, with placeholders."""

    hidden: Hidden
    """What the placeholders stand for."""

    pictures: tuple[Picture, ...]
    """The pictures in it."""


class PromptMaker:
    """A chat template, and a guard against control texts in messages. For any thread.

    Args:
        vocabulary: The model's vocabulary.
        source: The template's source.
        think: False asks for no thoughts.
        tool_source: The source of another template for messages with tools or calls of tools.
            It is used if the form of its models' calls is known.
        vision: Makes tokens of pictures, if the model sees.

    Raises:
        TemplateError: For a source that is broken, or that has no switch for thoughts.
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
        self._template = ChatTemplate(
            source,
            bos=bos,
            eos=eos,
            think=think,
        )
        self._system_role = SystemRole(self._template)
        # Control texts that the template writes without their being in its source.
        self._named: list[str] = []
        if "bos_token" in source:
            self._named.append(bos)
        if "eos_token" in source:
            self._named.append(eos)
        self._source = source
        # The keys of a message in which the template looks for an answer's thoughts.
        self._thought_keys = self._template.keys.intersection(THOUGHT_KEYS)
        self._vocabulary = vocabulary
        self._vision: KnownCells | None = None
        if vision is not None:
            self._vision = KnownCells(vision)
        self._guard = ControlGuard(vocabulary)
        # Makes the prompts with tools or calls of tools, if another template does.
        self._for_tools: PromptMaker | None = None
        if takes_tools(tool_source):
            assert tool_source is not None
            self._for_tools = PromptMaker(
                vocabulary,
                tool_source,
                think=think,
                vision=vision,
            )
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
        """The prompt for the next answer, or for the continuation of one in the last message.

        A developer's message is the system's if the template does not know the word. If the
        template shows no message of the system, their text stands before a question. Thoughts
        within an answer's text are left out: a template that does so itself could not see the
        marks, which are hidden as in any message.

        A picture before the last message becomes a note if the model does not see.

        If the template shows no tools, or its form of calls is not known, tools are described
        in words: see `tool_words`.

        Raises TemplateError if the template refuses the messages, leaves some out, or fails;
        OptionError for a picture that cannot be read, or seen; Interrupted soon after
        `is_cancelled` becomes true.

        Args:
            messages: The messages, as `checked_messages` returns them.
            use: The tools.
            is_cancelled: Whether to stop.
            may_merge: Whether messages that the template refuses are tried once more as
                `merged_messages`.
            variables: The template's variables, as for `ChatTemplate.render`.
        """
        maker = self._maker_for(messages, use)
        rendered = maker._rendered_for(
            messages,
            use,
            is_cancelled,
            may_merge=may_merge,
            variables=variables,
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

        So it lacks the bos at the beginning if every text gets one. Otherwise it is the text of
        `prompt`. Raises what that raises.

        Args:
            messages: The messages, as `checked_messages` returns them.
            use: The tools.
            variables: The template's variables, as for `ChatTemplate.render`.
            opens_answer: Whether the prompt opens the next answer, or continues the answer in
                the last message.
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
        """How the template shows tools. Read off it for the first prompt with tools."""
        return tools_of(self._source)

    @functools.cached_property
    def _has_tools_in_words(self) -> bool:
        """Whether tools have to be described in words. The log says so once."""
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
        """The template's text of the messages, with pictures as notes or tokens in it."""
        pictures: Sequence[Picture] = ()
        if self._vision is None:
            messages = for_the_blind(messages)
        else:
            messages, pictures = for_the_seeing(messages, self._vision)

        def rendered(given: Sequence[Message]) -> _Rendered:
            exposed = self._exposed(given, use, variables, is_cancelled)
            exposed = exposed._replace(opens_answer=opens_answer)
            text, hidden = self._render_with_pictures(exposed, is_cancelled)
            return _Rendered(text, hidden, tuple(pictures))

        try:
            return rendered(messages)
        except TemplateError:
            if not may_merge:
                raise
            merged = merged_messages(messages)
            if merged == messages:
                raise
            return rendered(merged)

    def _render_with_pictures(
        self,
        exposed: Exposed,
        is_cancelled: CancelCheck,
    ) -> tuple[str, Hidden]:
        """The template's text, with each picture in it, and what is hidden."""
        self._check_roles(exposed, is_cancelled)
        text, hidden = self._guarded(exposed, is_cancelled)
        if not hidden.shows_pictures(text):  # once more, with pictures before their texts
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
        """The messages, a developer's as the system's if the template knows only that role."""
        if "developer" in self._source:
            return list(messages)
        known = []
        for message in messages:
            if message["role"] == "developer":
                message = {**message, "role": "system"}
            known.append(message)
        return known

    def _exposed(
        self,
        messages: Sequence[Message],
        use: ToolUse,
        variables: Mapping[str, Any],
        is_cancelled: CancelCheck,
    ) -> Exposed:
        """The messages as the template takes them, with everything else that it may read."""
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
            read.append(
                {
                    **message,
                    "role": role,
                    "content": content,
                }
            )
        return Exposed(read, tools, frozenset(data), variables)

    def _with_thoughts(self, answer: Message) -> Message:
        """The answer with its thoughts by the keys that the template reads."""
        if "reasoning_content" not in answer:
            return answer
        thoughts = dict.fromkeys(self._thought_keys, answer["reasoning_content"])
        if "tool_calls" in answer:
            return {**thoughts, **answer}
        fitted = dict(answer)
        del fitted["reasoning_content"]
        return {**fitted, **thoughts}

    def _calls(self, use: ToolUse) -> Calls | None:
        """How to read and constrain calls of these tools; None if none may be called."""
        if not use.callable:
            return None
        form = self._tools.form
        marks = list(form.marks)
        marks += [text for text in self._guard.texts if text in form.literals]
        tokens = {}
        for mark in marks:
            ids = self._vocabulary.tokenize(mark, parse_special=True)
            if len(ids) == 1:
                tokens[mark] = ids[0]
        shown = frozenset(filter(self._vocabulary.is_control, tokens.values()))
        return Calls(form, use, shown, kept_calls(form, use, tokens))

    def _check_roles(self, exposed: Exposed, is_cancelled: CancelCheck) -> None:
        """Raise TemplateError for a message of an unusual role that the template leaves out."""
        unusual = []
        for number, message in enumerate(exposed.messages):
            if number not in exposed.data and message["role"] not in _USUAL_ROLES:
                unusual.append(number)
        if not unusual:
            return
        hidden = self._guard.hide_all(exposed)
        text = self._rendered(hidden, is_cancelled)
        for number in unusual:
            message = hidden.messages[number]
            if message["content"].strip() not in text:
                raise TemplateError(
                    f"the chat template leaves out messages of the role {message['role']!r}",
                    "Give their text the role user or system.",
                )

    def _guarded(self, exposed: Exposed, is_cancelled: CancelCheck) -> tuple[str, Hidden]:
        """The template's text, whose control texts are its own, and what is hidden in it."""
        guard = self._guard
        hidden = guard.hide(exposed)
        text = self._rendered(hidden, is_cancelled)
        control_texts = guard.control_texts_in(text)
        if not guard.shows_ends(hidden) and self._are_written(control_texts):
            return text, hidden
        safest = guard.hide_all(exposed)
        safe_text = self._rendered(safest, is_cancelled)
        own = guard.control_texts_in(safe_text)
        if control_texts == own:
            return text, hidden
        hidden = guard.hide_words(exposed)
        text = self._rendered(hidden, is_cancelled)
        # A switch in a message can bring other control texts of the template.
        found = guard.control_texts_in(text)
        others = [control_text for control_text in found if control_text not in own]
        if self._are_written(others):
            return text, hidden
        return safe_text, safest

    def _are_written(self, texts: Sequence[str]) -> bool:
        """Whether the template's source has each text, so that no message was needed for it."""
        return all(text in self._named or text in self._source for text in texts)

    def _rendered(self, hidden: Hidden, is_cancelled: CancelCheck) -> str:
        """The template's text; up to the end of the last message if that is an answer."""
        messages = list(hidden.messages)
        last = messages[-1]
        is_answer = hidden.opens_answer and last["role"] == "assistant"
        if is_answer:
            messages[-1] = {**last, "content": last["content"] + hidden.end}
        render = functools.partial(
            self._template.render,
            is_cancelled=is_cancelled,
            tools=hidden.tools,
            variables=hidden.variables,
            opens_answer=hidden.opens_answer and not is_answer,
        )
        try:
            text = render(messages)
        except TemplateError:
            if all(message["content"] for message in hidden.messages):
                raise
            # Some templates refuse an answer without text.
            for number, message in enumerate(messages):
                messages[number] = {**message, "content": message["content"] or " "}
            text = render(messages)
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
    """Whether the message calls a tool, or is a result."""
    return "tool_calls" in message or message["role"] == "tool"


def _thoughts(vocabulary: Vocabulary, source: str, texts: Sequence[str]) -> Thoughts:
    """The families of thoughts of a template, and the control tokens in their marks.

    Args:
        vocabulary: The model's vocabulary.
        source: The template's source.
        texts: The control texts.
    """
    families = families_of(source, texts)
    marks: list[str] = []
    for family in families:
        marks += family.marks
    # A mark may consist of several control texts, with plain text between them.
    mark_tokens: set[int] = set()
    for text in texts:
        is_in_mark = any(text in mark for mark in marks)
        if is_in_mark:
            mark_tokens.update(vocabulary.tokenize(text, parse_special=True))
    # An answer's text shows these, so that the marks are found in it.
    return Thoughts(families, mark_tokens=frozenset(mark_tokens))


def kept_calls(form: CallForm, use: ToolUse, tokens: Mapping[str, int]) -> CallGrammar | None:
    """The grammar of calls; None if calls cannot be constrained, and need not be.

    A schema that does not mention further arguments allows none here. A tool whose schema
    cannot be enforced may be called with any object, and the log says so, unless the tool is
    strict or has to be called.

    Args:
        form: The form of calls.
        use: The tools.
        tokens: The tokens of marks, as for `call_grammar`.

    Raises:
        ConstraintError: If something cannot be enforced that has to be: the schema of a strict
            tool, a required call, the form of an answer without calls.
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
        problem = problem_with(calls_spec(grammar.lark))
        if problem is not None:
            raise problem
    except ConstraintError as error:
        if has_to or any(tool.is_strict for tool in use.callable):
            raise ConstraintError(f"the tools: {error}", error.hint) from error
        logger.debug("tool calls are not constrained to the tools' schemas: %s", error)
        return None
    return grammar


def _schema(use: ToolUse, tool: Tool) -> Mapping[str, Any]:
    """The schema to which a tool's arguments are constrained: its own, or any object.

    Raises ConstraintError if its own cannot be enforced and has to be.
    """
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
        "calls of the tool %s are not constrained to its schema: %s",
        tool.name,
        problem,
    )
    return _ANY_OBJECT
