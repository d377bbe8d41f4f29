"""System messages for templates that refuse or silently ignore them.

The text of such a message is put before the next question, with a blank line between them, as
the makers of such models advise. Each template is tried once, with made-up conversations, so
that all prompts of a conversation are made in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from localspec.chat.shown import joined_content, shown_in
from localspec.chat.template import ChatTemplate, Message
from localspec.errors import TemplateError
from localspec.streaming.cancellation import CancelCheck

_QUESTION: Message = {"role": "user", "content": "question"}
_ANSWER: Message = {"role": "assistant", "content": "answer"}
_FIRST_MESSAGE: Message = {"role": "system", "content": "localspec"}
_SECOND_MESSAGE: Message = {"role": "system", "content": "guidance"}
# The made-up conversations with which a template is tried, by their system messages: one at the
# beginning, two at the beginning, or one after an answer.
_TRIALS: dict[str, Sequence[Message]] = {
    "once": (_FIRST_MESSAGE, _QUESTION),
    "twice": (_FIRST_MESSAGE, _SECOND_MESSAGE, _QUESTION),
    "later": (_FIRST_MESSAGE, _QUESTION, _ANSWER, _SECOND_MESSAGE, _QUESTION),
}


class SystemRole:
    """Finds out which system messages a template shows, and moves the others to questions.

    Any thread may use it.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        # Whether the template shows the system messages of each trial made so far.
        self._trial_results: dict[str, bool] = {}

    def adapt(
        self,
        messages: Sequence[Message],
        is_cancelled: CancelCheck,
    ) -> Sequence[Message]:
        """The messages, with system messages only where the template shows them.

        Several system messages at the beginning become one if the template does not show two.
        Other ones that it does not show are put into questions. Raises Interrupted once
        `is_cancelled` is true.
        """
        opening = list(takewhile(_is_system, messages))
        later = list(messages[len(opening) :])
        if opening and not self._shows("once", is_cancelled):
            return _in_questions(messages)
        if any(map(_is_system, later)) and not self._shows("later", is_cancelled):
            later = _in_questions(later)
        if len(opening) > 1 and not self._shows("twice", is_cancelled):
            opening = [{"role": "system", **joined_content(opening, "\n\n")}]
        return opening + later

    def _shows(self, trial: str, is_cancelled: CancelCheck) -> bool:
        """Whether the template shows all system messages of a trial, a key of _TRIALS."""
        if trial in self._trial_results:
            return self._trial_results[trial]
        messages = _TRIALS[trial]
        try:
            prompt = self._template.render(messages, is_cancelled)
        except TemplateError:
            prompt = ""
        system_messages = filter(_is_system, messages)
        is_shown = all(message["content"] in prompt for message in system_messages)
        self._trial_results[trial] = is_shown
        return is_shown


def _in_questions(messages: Sequence[Message]) -> list[Message]:
    """The messages, with the texts of system messages before the question that follows.

    If another message or none follows, the text is added to the question before it, or becomes
    a question.
    """
    adapted: list[Message] = []
    waiting: list[Message] = []  # system messages since the last other message
    for message in messages:
        if _is_system(message):
            waiting.append(message)
            continue
        system_messages = list(filter(_has_content, waiting))
        waiting = []
        if message["role"] == "user":
            adapted.append({**message, **joined_content([*system_messages, message], "\n\n")})
            continue
        if system_messages:
            _add_to_question(adapted, system_messages)
        adapted.append(message)
    ends_with_question = bool(adapted) and adapted[-1]["role"] == "user"
    if ends_with_question:
        waiting = list(filter(_has_content, waiting))
    if waiting:
        _add_to_question(adapted, waiting)
    return adapted


def _add_to_question(adapted: list[Message], system_messages: Sequence[Message]) -> None:
    """Add the texts of system messages to the end of `adapted`.

    They are added to its last message if that is a question; otherwise they become a question.
    """
    parts = list(system_messages)
    if adapted and adapted[-1]["role"] == "user":
        parts.insert(0, adapted.pop())
    adapted.append({"role": "user", **joined_content(parts, "\n\n")})


def _has_content(message: Message) -> bool:
    """Whether a message has text or pictures."""
    return bool(message["content"].strip() or shown_in(message))


def _is_system(message: Message) -> bool:
    return bool(message["role"] == "system")
