"""OpenAI's Completions, which continue raw prompts, and their base with Chat Completions."""

from __future__ import annotations

import abc
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from localspec.chat.template import NO_VARIABLES
from localspec.sampling.logprobs import TokenLogprobs
from localspec.server.answering import Event, Finished, NewPiece
from localspec.server.costs import LOWEST_LOGPROB, openai_usage, own_fields, usage_of
from localspec.server.encoding import sse_event
from localspec.server.fields import Fields
from localspec.server.form import Form
from localspec.server.infill import FimPrompt
from localspec.server.question import (
    MOST_ANSWERS,
    Input,
    Question,
    RawPrompt,
    answer_options,
    max_tokens,
    num_answers,
    num_logprobs,
)
from localspec.server.reading import ReadingPrompt
from localspec.server.refusal import RequestError, openai_error
from localspec.server.tool_fields import own_form
from localspec.streaming.reply import Reply


class OpenAIForm(Form):
    """What Completions and Chat Completions have in common.

    A subclass makes the choices: a whole one, a piece of one, and an empty one.
    """

    id_prefix: ClassVar[str]
    objects: ClassVar[tuple[str, str]]  # types of a whole answer and of a piece

    def __init__(
        self,
        fields: Fields,
        inputs: Sequence[Input],
        options: Mapping[str, Any],
        *,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> None:
        number = num_answers(fields)
        self.question = Question(
            fields, inputs, options, variables=variables, num_answers=number
        )
        of_stream = fields.object("stream_options")
        self._has_usage = of_stream is not None and bool(of_stream.flag("include_usage"))
        self._id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    @abc.abstractmethod
    def _whole_choice(self, finished: Finished) -> dict[str, Any]: ...

    @abc.abstractmethod
    def _choice(self, new: NewPiece) -> dict[str, Any] | None: ...

    @abc.abstractmethod
    def _empty_choice(self, number: int, finished: Finished | None) -> dict[str, Any]: ...

    def body(self, finished: Sequence[Finished]) -> Any:
        choices = [self._whole_choice(each) for each in finished]
        own = self._own_fields(finished[-1].reply)
        return {**self._object(0, choices), "usage": self._usage(finished), **own}

    def text_for(self, event: Event) -> str:
        if isinstance(event, NewPiece):
            choice = self._choice(event)
            return "" if choice is None else self._chunk([choice])
        if isinstance(event, Finished):
            choice = self._empty_choice(event.number, event)
            return self._chunk([choice], **self._own_fields(event.reply))
        choice = self._empty_choice(0, None)
        if isinstance(event, ReadingPrompt):
            return self._chunk([choice], **event.field)
        return self._chunk([choice], queue_position=event.position)

    def end(self, finished: Sequence[Finished]) -> str:
        usage = self._chunk([], usage=self._usage(finished)) if self._has_usage else ""
        return usage + sse_event("[DONE]")

    def failure(self, error: RequestError) -> str:
        return sse_event(openai_error(error))

    def _own_fields(self, reply: Reply) -> dict[str, Any]:
        return own_fields(reply)

    def _usage(self, finished: Sequence[Finished]) -> dict[str, Any]:
        has_prediction = self.question.options.prediction is not None
        num_answers = self.question.num_answers
        return openai_usage(usage_of(finished, num_answers, has_prediction=has_prediction))

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        usage = {"usage": None} if self._has_usage else {}
        return sse_event({**self._object(1, choices), **usage, **more})

    def _object(self, number: int, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": self.objects[number],
            "created": self._created,
            "model": self._model.name,
            "system_fingerprint": None,
            "choices": choices,
        }


class Completion(OpenAIForm):
    """A request to /v1/completions, and its answer."""

    id_prefix = "cmpl"
    objects = ("text_completion", "text_completion")

    def __init__(self, fields: Fields) -> None:
        if fields.flag("echo"):
            fields.refuse("echo", "Leave it out: put the prompt before the answer yourself.")
        options = openai_options(fields)
        options["max_tokens"] = max_tokens(fields, "max_tokens", "n_predict")
        options["logprobs"] = num_logprobs(fields, "logprobs")
        super().__init__(fields, _inputs(fields), options)
        self._offsets: dict[int, int] = {}  # of the next token, for each answer

    def _whole_choice(self, finished: Finished) -> dict[str, Any]:
        reply = finished.reply
        choice = self._empty_choice(finished.number, finished)
        logprobs = self._logprob_lists(finished.number, reply.logprobs)
        return {**choice, "text": reply.text, "logprobs": logprobs}

    def _choice(self, new: NewPiece) -> dict[str, Any] | None:
        piece = new.piece
        if not piece.text and piece.logprobs is None:
            return None
        found = None if piece.logprobs is None else [piece.logprobs]
        logprobs = self._logprob_lists(new.number, found)
        choice = self._empty_choice(new.number, None)
        return {**choice, "text": piece.text, "logprobs": logprobs}

    def _empty_choice(self, number: int, finished: Finished | None) -> dict[str, Any]:
        reason = None if finished is None else finished.reply.finish_reason
        return {"index": number, "text": "", "logprobs": None, "finish_reason": reason}

    def _logprob_lists(
        self, number: int, found: Sequence[TokenLogprobs] | None
    ) -> dict[str, Any] | None:
        if found is None:
            return None
        offsets = []
        for each in found:
            offsets.append(self._offsets.setdefault(number, self._num_before(number)))
            data = each.raw.get(each.token_id, each.text.encode())
            # A character begins with any byte but 10xxxxxx.
            self._offsets[number] += sum(byte & 0xC0 != 0x80 for byte in data)
        return {
            "tokens": [each.text for each in found],
            "token_logprobs": [max(each.before, LOWEST_LOGPROB) for each in found],
            "top_logprobs": [
                {top.text: max(top.logprob, LOWEST_LOGPROB) for top in each.top_before}
                for each in found
            ],
            "text_offset": offsets,
        }

    def _num_before(self, number: int) -> int:
        """The characters of an answer's prompt; token ids count as none."""
        given = self.question.inputs[number // self.question.num_answers]
        text = given.before if isinstance(given, FimPrompt) else getattr(given, "prompt", "")
        return len(text) if isinstance(text, str) else 0


def openai_options(fields: Fields) -> dict[str, Any]:
    """The options whose fields are the same in both."""
    return {**answer_options(fields), **own_form(fields), "stop": fields.texts("stop")}


def _inputs(fields: Fields) -> list[Input]:
    """The prompts, each to be filled in before the same `suffix` if there is one."""
    prompts, after = raw_prompts(fields), fields.text("suffix")
    if not after:
        return [*prompts]
    texts = [each.prompt for each in prompts if isinstance(each.prompt, str)]
    if len(texts) < len(prompts):
        fields.refuse("prompt", "Give texts, where there is a suffix.")
    return [FimPrompt(text, after) for text in texts]


def raw_prompts(fields: Fields) -> list[RawPrompt]:
    """One prompt or several, each a text or token ids."""
    return [RawPrompt(each) for each in fields.prompts("prompt", MOST_ANSWERS)]
