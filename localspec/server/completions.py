"""OpenAI's Completions: raw prompts that are continued."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from localspec.sampling.logprobs import TokenLogprobs
from localspec.server.answering import Event, Finished, NewPiece, ReadingPrompt
from localspec.server.costs import LOWEST_LOGPROB, openai_usage, own_fields, usage_of
from localspec.server.encoding import sse_event
from localspec.server.fields import Fields
from localspec.server.form import Form
from localspec.server.question import (
    MOST_ANSWERS,
    Input,
    Question,
    RawPrompt,
    answer_options,
    max_tokens,
    num_answers,
    num_logprobs,
    wants_usage,
)
from localspec.server.refusal import RequestError, openai_error
from localspec.server.served_models import ServedModel
from localspec.server.tool_fields import own_form


class Completion(Form):
    """A request to /v1/completions, and its answer."""

    example: ClassVar = {"prompt": "Hello", "max_tokens": 5}

    def __init__(self, fields: Fields) -> None:
        self.question = _raw_question(fields)
        self._has_usage = wants_usage(fields)
        self._finished: list[Finished] = []

    def begin(self, model: ServedModel) -> None:
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }

    def whole(self, finished: Sequence[Finished]) -> Any:
        choices = [
            _text_choice(
                each.number, each.reply.text, each.reply.logprobs, each.reply.finish_reason
            )
            for each in finished
        ]
        own, usage = own_fields(finished[-1].reply), self._usage(finished)
        return {**self._head, "choices": choices, "usage": usage, **own}

    def told(self, event: Event) -> str:
        if isinstance(event, NewPiece):
            piece = event.piece
            if not piece.text and piece.logprobs is None:
                return ""
            logprobs = None if piece.logprobs is None else [piece.logprobs]
            return self._chunk([_text_choice(event.number, piece.text, logprobs, None)])
        if isinstance(event, Finished):
            self._finished.append(event)
            reply = event.reply
            choice = _text_choice(event.number, "", None, reply.finish_reason)
            return self._chunk([choice], **own_fields(reply))
        if isinstance(event, ReadingPrompt):
            progress = {"processed": event.num_decoded, "total": event.num_tokens}
            return self._chunk([_text_choice(0, "", None, None)], prompt_progress=progress)
        return self._chunk([_text_choice(0, "", None, None)], queue_position=event.position)

    def end(self) -> str:
        usage = self._chunk([], usage=self._usage(self._finished)) if self._has_usage else ""
        return usage + sse_event("[DONE]")

    def failure(self, error: RequestError) -> str:
        return sse_event(openai_error(error))

    def _usage(self, finished: Sequence[Finished]) -> dict[str, Any]:
        return openai_usage(usage_of(finished, self.question.num_answers, has_prediction=False))

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        return sse_event({**self._head, "choices": choices, **more})


def _raw_question(fields: Fields) -> Question:
    if fields.text("suffix"):
        fields.refuse("suffix", "Leave it out: nothing is filled in between two texts.")
    if fields.flag("echo"):
        fields.refuse("echo", "Leave it out: put the prompt before the answer yourself.")
    options = answer_options(fields) | own_form(fields)
    options["max_tokens"] = max_tokens(fields, "max_tokens", "n_predict")
    options["stop"] = fields.texts("stop")
    options["logprobs"] = num_logprobs(fields, "logprobs")
    return Question.of(
        fields,
        _prompts(fields),
        options,
        num_answers=num_answers(fields),
        streams=bool(fields.flag("stream")),
    )


def _prompts(fields: Fields) -> list[Input]:
    """One prompt or several, each a text or token ids."""
    value = fields.any("prompt")
    if isinstance(value, str) or _is_tokens(value):
        return [RawPrompt(value)]
    is_list = isinstance(value, list) and 0 < len(value) <= MOST_ANSWERS
    if not is_list or not all(isinstance(each, str) or _is_tokens(each) for each in value):
        fields.refuse(
            "prompt", f"Give a text, a list of token ids, or up to {MOST_ANSWERS} of these."
        )
    return [RawPrompt(each) for each in value]


def _is_tokens(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, int) and not isinstance(each, bool) for each in value)
    )


def _text_choice(
    index: int,
    text: str,
    logprobs: Sequence[TokenLogprobs] | None,
    finish_reason: str | None,
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None if logprobs is None else _logprob_lists(logprobs),
        "finish_reason": finish_reason,
    }


def _logprob_lists(found: Sequence[TokenLogprobs]) -> dict[str, Any]:
    return {
        "tokens": [each.text for each in found],
        "token_logprobs": [max(each.before, LOWEST_LOGPROB) for each in found],
        "top_logprobs": [
            {top.text: max(top.logprob, LOWEST_LOGPROB) for top in each.top_before}
            for each in found
        ],
        "text_offset": [],
    }
