"""Makes the prompt, in tokens, from messages: renders a template and tokenises its text.

No text of a message may become a control token, so control texts in messages are hidden by
placeholders (`control_guard`). But some templates look for switches, such as /no_think, in
messages and remove them. What remains could join to a control text. In such cases the messages
are rendered once more with all of their text hidden: the control texts in that prompt are the
template's own. If the first prompt has others, more of the text is hidden, and at last all of
it. Then the template's changes of the text are lost.
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

_USUAL_ROLES = ("system", "user", "assistant")  # no template leaves them out silently
_ANY_OBJECT = {"type": "object"}
# Keywords by which a schema says whether other names than its properties are allowed.
_EXTRA_NAME_KEYWORDS = frozenset(
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
    """The pictures in the prompt, in order."""


class PromptMaker:
    """Makes prompts by one chat template, for one model. Any thread may use it.

    Args:
        vocabulary: The model's vocabulary.
        source: The template's source.
        think: False asks for answers without thoughts.
        tool_source: The source of another template, for messages with tools or calls of tools.
            It is used if it shows tools in a form that is known.
        vision: Makes tokens of pictures; None for a model that does not see.

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
        # Control texts that the template writes by a variable, not by a text in its source.
        self._control_variables: list[str] = []
        if "bos_token" in source:
            self._control_variables.append(bos)
        if "eos_token" in source:
            self._control_variables.append(eos)
        self._source = source
        # The keys of a message from which the template reads an answer's thoughts.
        self._thought_keys = self._template.keys.intersection(THOUGHT_KEYS)
        self._vocabulary = vocabulary
        self._vision: KnownCells | None = None
        if vision is not None:
            self._vision = KnownCells(vision)
        self._guard = ControlGuard(vocabulary)
        # Makes prompts with tools or calls of tools; None if this maker does.
        self._tool_prompt_maker: PromptMaker | None = None
        if takes_tools(tool_source):
            assert tool_source is not None
            self._tool_prompt_maker = PromptMaker(
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
        """The prompt for the next answer. If the last message is an answer, it is continued.

        - The role developer becomes system if the template does not know it.
        - System messages that the template does not show are put before a question.
        - Thoughts within the text of an answer are left out. The template cannot do that: it
          does not see the marks of thoughts, which are hidden as control texts.
        - If the model does not see, pictures before the last message become notes.
        - If the template shows no tools, or its form of calls is not known, the system message
          describes the tools: see `tool_words`.

        Args:
            messages: The messages, as `checked_messages` returns them.
            use: The tools.
            is_cancelled: Whether to stop. Interrupted is raised soon after it becomes true.
            may_merge: Whether messages that the template refuses are tried once more as
                `merged_messages`.
            variables: The template's variables, as for `ChatTemplate.render`.

        Raises:
            TemplateError: The template refuses the messages, leaves some out, or fails.
            OptionError: A picture in the last message cannot be read, or the model cannot see.
            ConstraintError: As `enforced_grammar`.
            Interrupted: It was cancelled.
        """
        maker = self._maker_for(messages, use)
        rendered = maker._render_messages(
            messages,
            use,
            is_cancelled,
            may_merge=may_merge,
            variables=variables,
        )
        return maker._tokenize(rendered, use)

    def text(
        self,
        messages: Sequence[Message],
        use: ToolUse,
        *,
        variables: Mapping[str, Any] = NO_VARIABLES,
        opens_answer: bool = True,
    ) -> str:
        """The prompt as text, without pictures, to be sent as a raw prompt later.

        It is the text of `prompt` with `may_merge`. But it has no bos token at its beginning if
        the vocabulary adds one to every raw prompt. Raises what `prompt` raises.

        Args:
            messages: The messages, as `checked_messages` returns them.
            use: The tools.
            variables: The template's variables, as for `ChatTemplate.render`.
            opens_answer: Whether the prompt opens the next answer, or continues the answer in
                the last message.
        """
        maker = self._maker_for(messages, use)
        rendered = maker._render_messages(
            messages,
            use,
            never,
            may_merge=True,
            variables=variables,
            opens_answer=opens_answer,
        )
        text = rendered.hidden.with_texts_restored(rendered.text)
        bos = self._vocabulary.text(self._vocabulary.bos)
        if self._vocabulary.add_bos:
            return text.removeprefix(bos)
        return text

    @functools.cached_property
    def _tools(self) -> TemplateTools:
        """How the template shows tools. Found out for the first prompt with tools."""
        return tools_of(self._source)

    @functools.cached_property
    def _has_tools_in_words(self) -> bool:
        """Whether the system message has to describe tools. If so, the log says it once."""
        if not self._tools.are_shown:
            logger.warning("%s", TOOLS_IN_WORDS)
        return not self._tools.are_shown

    def _maker_for(self, messages: Sequence[Message], use: ToolUse) -> PromptMaker:
        """The maker of prompts with or without tools, as these messages and tools need it."""
        has_tools = bool(use.tools) or any(map(_is_call_or_result, messages))
        if self._tool_prompt_maker is not None and has_tools:
            return self._tool_prompt_maker
        return self

    def _render_messages(
        self,
        messages: Sequence[Message],
        use: ToolUse,
        is_cancelled: CancelCheck,
        *,
        may_merge: bool,
        variables: Mapping[str, Any],
        opens_answer: bool = True,
    ) -> _Rendered:
        """Render the template, with merged messages if need be: see `may_merge` of `prompt`.

        Pictures become notes if the model does not see. Arguments as for `prompt` and `text`;
        raises as they do.
        """
        pictures: Sequence[Picture] = ()
        if self._vision is None:
            messages = for_the_blind(messages)
        else:
            messages, pictures = for_the_seeing(messages, self._vision)

        def render(messages_to_show: Sequence[Message]) -> _Rendered:
            exposed = self._exposed(messages_to_show, use, variables, is_cancelled)
            exposed = exposed._replace(opens_answer=opens_answer)
            text, hidden = self._render_with_pictures(exposed, is_cancelled)
            return _Rendered(text, hidden, tuple(pictures))

        try:
            return render(messages)
        except TemplateError:
            if not may_merge:
                raise
            merged = merged_messages(messages)
            if merged == messages:
                raise
            return render(merged)

    def _render_with_pictures(
        self,
        exposed: Exposed,
        is_cancelled: CancelCheck,
    ) -> tuple[str, Hidden]:
        """The template's text with each picture in it once, and what its placeholders hide.

        Raises TemplateError as `prompt` does, also for a picture that is left out or shown
        twice.
        """
        self._check_roles(exposed, is_cancelled)
        text, hidden = self._render_guarded(exposed, is_cancelled)
        if not hidden.shows_pictures(text):
            # Some templates show a picture only before the text of its message.
            exposed = exposed._replace(messages=in_front(exposed.messages))
            text, hidden = self._render_guarded(exposed, is_cancelled)
        if not hidden.shows_pictures(text):
            raise TemplateError(
                "the chat template leaves out a picture, or shows it twice",
                "Choose another template, such as template=chatml.",
            )
        return text, hidden

    def _tokenize(self, rendered: _Rendered, use: ToolUse) -> Prompt:
        """The prompt in tokens, and how to find thoughts and calls of tools in its answer."""
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
        """The messages, with the role developer as system if the template does not know it."""
        if "developer" in self._source:
            return list(messages)
        with_known_roles = []
        for message in messages:
            if message["role"] == "developer":
                message = {**message, "role": "system"}
            with_known_roles.append(message)
        return with_known_roles

    def _exposed(
        self,
        messages: Sequence[Message],
        use: ToolUse,
        variables: Mapping[str, Any],
        is_cancelled: CancelCheck,
    ) -> Exposed:
        """Everything that the template may read, in the form that it accepts.

        Raises TemplateError if the last message calls tools.
        """
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
        if any(map(_is_call_or_result, messages)):
            messages = fit_to_form(messages, self._tools.form)
        messages = self._system_role.adapt(messages, is_cancelled)
        template_messages = []
        result_indexes = set()
        for index, message in enumerate(messages):
            role = str(message["role"])
            content = str(message["content"])
            if role == "tool":
                result_indexes.add(index)
            if role == "assistant":
                message = self._with_thoughts(message)
                content = without_thoughts(content, self._thoughts.families)
            template_messages.append(
                {
                    **message,
                    "role": role,
                    "content": content,
                }
            )
        return Exposed(template_messages, tools, frozenset(result_indexes), variables)

    def _with_thoughts(self, answer: Message) -> Message:
        """The answer with its thoughts under the keys that the template reads.

        An answer with calls has them under reasoning_content, too.
        """
        if "reasoning_content" not in answer:
            return answer
        thoughts = dict.fromkeys(self._thought_keys, answer["reasoning_content"])
        if "tool_calls" in answer:
            return {**thoughts, **answer}  # its own keys count: `fit_to_form` may have set one
        adapted = dict(answer)
        del adapted["reasoning_content"]
        return {**adapted, **thoughts}

    def _calls(self, use: ToolUse) -> Calls | None:
        """How to read and constrain calls of these tools; None if none may be called."""
        if not use.callable:
            return None
        form = self._tools.form
        marks = list(form.marks)
        marks += [text for text in self._guard.texts if text in form.literals]
        token_of_mark = {}  # of marks that are one token
        for mark in marks:
            ids = self._vocabulary.tokenize(mark, parse_special=True)
            if len(ids) == 1:
                token_of_mark[mark] = ids[0]
        control_ids = frozenset(filter(self._vocabulary.is_control, token_of_mark.values()))
        grammar = enforced_grammar(form, use, token_of_mark)
        return Calls(form, use, control_ids, grammar)

    def _check_roles(self, exposed: Exposed, is_cancelled: CancelCheck) -> None:
        """Raise TemplateError for a message of an unusual role that the template leaves out."""
        unusual = []
        for index, message in enumerate(exposed.messages):
            if index not in exposed.result_indexes and message["role"] not in _USUAL_ROLES:
                unusual.append(index)
        if not unusual:
            return
        hidden = self._guard.hide_all(exposed)
        text = self._render_hidden(hidden, is_cancelled)
        for index in unusual:
            message = hidden.messages[index]
            if message["content"].strip() not in text:
                raise TemplateError(
                    f"the chat template leaves out messages of the role {message['role']!r}",
                    "Give their text the role user or system.",
                )

    def _render_guarded(
        self, exposed: Exposed, is_cancelled: CancelCheck
    ) -> tuple[str, Hidden]:
        """The template's text, in which no control text is from a message.

        Returns what its placeholders hide, too. No more is hidden than necessary: see the
        module's docstring.
        """
        guard = self._guard
        hidden = guard.hide(exposed)
        text = self._render_hidden(hidden, is_cancelled)
        control_texts = guard.control_texts_in(text)
        if not guard.shows_ends(hidden) and self._source_has(control_texts):
            return text, hidden
        all_hidden = guard.hide_all(exposed)
        safe_text = self._render_hidden(all_hidden, is_cancelled)
        texts_of_template = guard.control_texts_in(safe_text)
        if control_texts == texts_of_template:
            return text, hidden
        words_hidden = guard.hide_words(exposed)
        text = self._render_hidden(words_hidden, is_cancelled)
        # A switch in a message may make the template write other control texts of its own.
        other_texts = []
        for control_text in guard.control_texts_in(text):
            if control_text not in texts_of_template:
                other_texts.append(control_text)
        if self._source_has(other_texts):
            return text, words_hidden
        return safe_text, all_hidden

    def _source_has(self, control_texts: Sequence[str]) -> bool:
        """Whether each text is in the template's source, or in a variable that it reads."""
        for text in control_texts:
            if text not in self._control_variables and text not in self._source:
                return False
        return True

    def _render_hidden(self, hidden: Hidden, is_cancelled: CancelCheck) -> str:
        """The template's text, with placeholders.

        If the last message is an answer, and `hidden.opens_answer` is set, the text ends with
        that answer's content, so that the answer can be continued.

        Raises TemplateError.
        """
        messages = list(hidden.messages)
        last = messages[-1]
        is_continued = hidden.opens_answer and last["role"] == "assistant"
        if is_continued:
            messages[-1] = {**last, "content": last["content"] + hidden.end}
        render = functools.partial(
            self._template.render,
            is_cancelled=is_cancelled,
            tools=hidden.tools,
            variables=hidden.variables,
            opens_answer=hidden.opens_answer and not is_continued,
        )
        try:
            text = render(messages)
        except TemplateError:
            if all(message["content"] for message in hidden.messages):
                raise
            # Some templates refuse an answer without text.
            for index, message in enumerate(messages):
                messages[index] = {**message, "content": message["content"] or " "}
            text = render(messages)
        if not is_continued:
            return text
        text_with_answer, end_mark, _ = text.rpartition(hidden.end)
        if not end_mark:
            raise TemplateError(
                "the chat template leaves out the answer to continue",
                "Leave out the last message, whose role is assistant.",
            )
        return text_with_answer


def _is_call_or_result(message: Message) -> bool:
    """Whether the message calls tools, or is the result of a call."""
    return "tool_calls" in message or message["role"] == "tool"


def _thoughts(vocabulary: Vocabulary, source: str, control_texts: Sequence[str]) -> Thoughts:
    """How the template's models mark their thoughts, and the control tokens in these marks.

    Args:
        vocabulary: The model's vocabulary.
        source: The template's source.
        control_texts: The texts of the vocabulary's control tokens.
    """
    families = families_of(source, control_texts)
    marks: list[str] = []
    for family in families:
        marks += family.marks
    # A mark may consist of several control texts, with plain text between them.
    mark_tokens: set[int] = set()
    for text in control_texts:
        is_in_mark = any(text in mark for mark in marks)
        if is_in_mark:
            mark_tokens.update(vocabulary.tokenize(text, parse_special=True))
    # Control tokens have no text in an answer, except for these: marks are found by their text.
    return Thoughts(families, mark_tokens=frozenset(mark_tokens))


def enforced_grammar(
    form: CallForm,
    use: ToolUse,
    tokens: Mapping[str, int],
) -> CallGrammar | None:
    """The grammar that constrains calls; None if calls cannot and need not be constrained.

    The arguments of a tool have to fit its schema. Further arguments are not allowed, unless
    the schema says something about them. If a schema cannot be enforced, any object is allowed,
    and the log says so; for a strict tool, or if a tool has to be called, it is an error.

    Args:
        form: The form of calls.
        use: The tools.
        tokens: The token of each mark, as for `call_grammar`.

    Raises:
        ConstraintError: If something cannot be enforced that has to be: the schema of a strict
            tool, a required call, or the schema of an answer without calls. Without llguidance
            only a required call is an error.
    """
    must_be_constrained = use.must or use.answer_schema is not None
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
        has_strict_tool = any(tool.is_strict for tool in use.callable)
        if must_be_constrained or has_strict_tool:
            raise ConstraintError(f"the tools: {error}", error.hint) from error
        logger.debug("tool calls are not constrained to the tools' schemas: %s", error)
        return None
    return grammar


def _schema(use: ToolUse, tool: Tool) -> Mapping[str, Any]:
    """The schema to which a tool's arguments are constrained.

    It is the tool's own schema. Arguments that this does not name are not allowed, unless it
    says something about them. If it cannot be enforced, the schema is that of any object.
    Raises ConstraintError if it has to be enforced.
    """
    schema = tool.parameters
    if _EXTRA_NAME_KEYWORDS.isdisjoint(schema):
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
