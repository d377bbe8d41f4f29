"""Messages of the system, for templates that refuse or silently ignore them.

Their text then stands before the next question, with a blank line between, as the makers of
such models advise. A template is tried once: later prompts begin as earlier ones did.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from localspec.chat.shown import joined, shown_in
from localspec.chat.template import ChatTemplate, Message
from localspec.errors import TemplateError
from localspec.streaming.cancellation import CancelCheck

# Texts that have to come out of a template that shows messages of the system.
_FIRST = "localspec"
_SECOND = "guidance"
_QUESTION: Message = {"role": "user", "content": "question"}
_ANSWER: Message = {"role": "assistant", "content": "answer"}
_FIRST_MESSAGE: Message = {"role": "system", "content": _FIRST}
_SECOND_MESSAGE: Message = {"role": "system", "content": _SECOND}
# The conversations with which a template is tried, by where the system speaks in them.
_TRIALS: dict[str, Sequence[Message]] = {
    "once": (_FIRST_MESSAGE, _QUESTION),
    "twice": (_FIRST_MESSAGE, _SECOND_MESSAGE, _QUESTION),
    "later": (_FIRST_MESSAGE, _QUESTION, _ANSWER, _SECOND_MESSAGE, _QUESTION),
}


class SystemRole:
    """Knows where a template shows messages of the system. For any thread."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._shown: dict[str, bool] = {}  # by the trial: most conversations need none

    def fitted(
        self,
        messages: Sequence[Message],
        is_cancelled: CancelCheck,
    ) -> Sequence[Message]:
        """The messages, with the system's in a form that the template shows.

        Raises Interrupted.
        """
        opening = list(takewhile(_is_system, messages))
        later = list(messages[len(opening) :])
        if opening and not self._shows("once", is_cancelled):
            return _in_questions(messages)
        if any(map(_is_system, later)) and not self._shows("later", is_cancelled):
            later = _in_questions(later)
        if len(opening) > 1 and not self._shows("twice", is_cancelled):
            opening = [{"role": "system", **joined(opening, "\n\n")}]
        return opening + later

    def _shows(self, trial: str, is_cancelled: CancelCheck) -> bool:
        """Whether all texts of the system come out of a trial's conversation."""
        if trial in self._shown:
            return self._shown[trial]
        messages = _TRIALS[trial]
        try:
            text = self._template.render(messages, is_cancelled)
        except TemplateError:
            text = ""
        of_system = filter(_is_system, messages)
        is_shown = all(message["content"] in text for message in of_system)
        self._shown[trial] = is_shown
        return is_shown


def _in_questions(messages: Sequence[Message]) -> list[Message]:
    """The messages, with the system's texts before the next question.

    If no question follows directly, such a text is added to the question before, or becomes a
    question.
    """
    fitted: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if _is_system(message):
            waiting.append(message)
            continue
        said = list(filter(_says_something, waiting))
        waiting = []
        if message["role"] == "user":
            fitted.append({**message, **joined([*said, message], "\n\n")})
            continue
        if said:
            _add_to_question(fitted, said)
        fitted.append(message)
    if waiting:
        _add_to_question(fitted, waiting)
    return fitted


def _add_to_question(fitted: list[Message], said: Sequence[Message]) -> None:
    """Add the system's messages to the last one, if that is a question, or as a question."""
    parts = list(said)
    if fitted and fitted[-1]["role"] == "user":
        parts.insert(0, fitted.pop())
    fitted.append({"role": "user", **joined(parts, "\n\n")})


def _says_something(message: Message) -> bool:
    """Whether a message has text or pictures."""
    return bool(message["content"].strip() or shown_in(message))


def _is_system(message: Message) -> bool:
    return bool(message["role"] == "system")
