"""Messages of the system, for templates that refuse them, or pass over them in silence.

Their text then stands in front of the next question, a blank line between, as the makers of
such models advise. What a template shows is found out once: later turns begin as earlier ones
did.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from localspec.chat.shown import joined, shown_in
from localspec.chat.template import ChatTemplate, Message
from localspec.errors import TemplateError
from localspec.streaming.cancellation import CancelCheck

_FIRST = "localspec"
_SECOND = "guidance"  # texts that are to come out
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
    """Where a template shows messages of the system. For any thread."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._shown: dict[str, bool] = {}  # by the trial: most conversations need none

    def fitted(
        self, messages: Sequence[Message], is_cancelled: CancelCheck
    ) -> Sequence[Message]:
        """The messages with those of the system where the template shows them.

        Raises Interrupted.
        """
        opening = list(takewhile(_is_system, messages))
        rest = list(messages[len(opening) :])
        has_later = any(map(_is_system, rest))
        if opening and not self._shows("once", is_cancelled):
            return _in_questions(messages)
        if has_later and not self._shows("later", is_cancelled):
            rest = _in_questions(rest)
        if len(opening) > 1 and not self._shows("twice", is_cancelled):
            opening = [{"role": "system", **joined(opening, "\n\n")}]
        return [*opening, *rest]

    def _shows(self, trial: str, is_cancelled: CancelCheck) -> bool:
        """Whether all texts of the system come out of a trial's conversation."""
        if trial in self._shown:
            return self._shown[trial]
        messages = _TRIALS[trial]
        try:
            text = self._template.render(messages, is_cancelled)
        except TemplateError:
            text = ""
        is_shown = all(each["content"] in text for each in messages if _is_system(each))
        self._shown[trial] = is_shown
        return is_shown


def _in_questions(messages: Sequence[Message]) -> list[Message]:
    """The messages with the text of each of the system in front of the next question.

    Where no question follows directly, it stands at the end of the one before, or is one.
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
    """Add what the system says to the last message, if that is a question, or as one."""
    before = [fitted.pop()] if fitted and fitted[-1]["role"] == "user" else []
    fitted.append({"role": "user", **joined([*before, *said], "\n\n")})


def _says_something(message: Message) -> bool:
    return bool(message["content"].strip() or shown_in(message))


def _is_system(message: Message) -> bool:
    return bool(message["role"] == "system")
