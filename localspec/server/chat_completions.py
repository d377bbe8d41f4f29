"""OpenAI's Chat Completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from localspec.chat.messages import checked_messages
from localspec.sampling.logprobs import TokenLogprob, TokenLogprobs
from localspec.server.answering import Event, Finished, NewPiece, ReadingPrompt
from localspec.server.costs import LOWEST_LOGPROB, openai_usage, own_fields, usage_of
from localspec.server.encoding import sse_event
from localspec.server.fields import Fields
from localspec.server.form import Form
from localspec.server.question import (
    Question,
    answer_options,
    max_tokens,
    num_answers,
    num_logprobs,
    wants_usage,
)
from localspec.server.refusal import RequestError, openai_error
from localspec.server.served_models import ServedModel
from localspec.server.tool_fields import answer_form, openai_tools, own_form
from localspec.streaming.reply import Reply
from localspec.tools.calls import CallPiece


class ChatCompletion(Form):
    """A request to /v1/chat/completions, and its answer."""

    example: ClassVar = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 5}

    def __init__(self, fields: Fields) -> None:
        self.question = _chat_question(fields)
        self._has_usage = wants_usage(fields)
        self._has_role: set[int] = set()
        self._begun_calls: set[tuple[int, int]] = set()  # numbers of an answer and its call
        self._finished: list[Finished] = []

    def begin(self, model: ServedModel) -> None:
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": None,
        }

    def whole(self, finished: Sequence[Finished]) -> Any:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [_chat_choice(each) for each in finished],
            "usage": self._usage(finished),
            **own_fields(finished[-1].reply),
        }

    def told(self, event: Event) -> str:
        if isinstance(event, NewPiece):
            return self._piece(event)
        if isinstance(event, Finished):
            self._finished.append(event)
            own = own_fields(event.reply)
            return self._chunk(event.number, {}, _finish_reason(event.reply), **own)
        if isinstance(event, ReadingPrompt):
            progress = {"processed": event.num_decoded, "total": event.num_tokens}
            return self._chunk(0, {}, None, prompt_progress=progress)
        return self._chunk(0, {}, None, queue_position=event.position)

    def end(self) -> str:
        usage = {**self._head, "choices": [], "usage": self._usage(self._finished)}
        return (sse_event(usage) if self._has_usage else "") + sse_event("[DONE]")

    def failure(self, error: RequestError) -> str:
        return sse_event(openai_error(error))

    def _usage(self, finished: Sequence[Finished]) -> dict[str, Any]:
        asked = self.question
        return openai_usage(
            usage_of(
                finished,
                asked.num_answers,
                has_prediction=asked.options.prediction is not None,
            )
        )

    def _piece(self, said: NewPiece) -> str:
        piece = said.piece
        if not piece.text and piece.logprobs is None and piece.call is None:
            return ""
        name = "reasoning_content" if piece.is_thought else "content"
        delta: dict[str, Any] = {name: piece.text}
        if piece.call is not None:
            delta = {"tool_calls": [self._call(said.number, piece.call)]}
        logprobs = None
        if piece.logprobs is not None:
            logprobs = {"content": [logprob_object(piece.logprobs)], "refusal": None}
        return self._chunk(said.number, delta, None, logprobs=logprobs)

    def _call(self, answer: int, call: CallPiece) -> dict[str, Any]:
        """More of a call; the first time with what it is."""
        arguments = {"arguments": call.json}
        if (answer, call.number) in self._begun_calls:
            return {"index": call.number, "function": arguments}
        self._begun_calls.add((answer, call.number))
        function = {"name": call.name, **arguments}
        return {"index": call.number, "id": call.id, "type": "function", "function": function}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        finish_reason: str | None,
        *,
        logprobs: Any = None,
        **more: Any,
    ) -> str:
        if index not in self._has_role:
            self._has_role.add(index)
            delta = {"role": "assistant", "content": "", **delta}
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        usage = {"usage": None} if self._has_usage else {}
        return sse_event({**self._head, "choices": [choice], **usage, **more})


def _chat_question(fields: Fields) -> Question:
    _refuse_sound(fields)
    options = answer_options(fields) | openai_tools(fields)
    options |= own_form(fields) | answer_form(fields.object("response_format"))
    options["max_tokens"] = max_tokens(
        fields, "max_completion_tokens", "max_tokens", "n_predict"
    )
    options["stop"] = fields.texts("stop")
    num_top = num_logprobs(fields, "top_logprobs")
    options["logprobs"] = num_top or 0 if fields.flag("logprobs") else None
    options["prediction"] = _prediction(fields)
    return Question.of(
        fields,
        [checked_messages(fields.any("messages"))],
        options,
        think=may_think(fields),
        num_answers=num_answers(fields),
        streams=bool(fields.flag("stream")),
    )


def _refuse_sound(fields: Fields) -> None:
    modalities = fields.texts("modalities")
    if "audio" in fields or (modalities is not None and modalities != ["text"]):
        raise RequestError("the answer would be audio", "Ask for text.", param="modalities")


def may_think(fields: Fields) -> bool:
    """Whether a reasoning model may think before it answers."""
    kwargs = fields.object("chat_template_kwargs")
    says = None if kwargs is None else kwargs.flag("enable_thinking")
    return says is not False and fields.text("reasoning_effort") != "none"


def _prediction(fields: Fields) -> str | None:
    prediction = fields.object("prediction")
    content = None if prediction is None else prediction.any("content")
    if content is None:
        return None
    return str(checked_messages([{"role": "user", "content": content}])[0]["content"])


def _chat_choice(finished: Finished) -> dict[str, Any]:
    reply = finished.reply
    logprobs = None
    if reply.logprobs is not None:
        logprobs = {
            "content": [logprob_object(each) for each in reply.logprobs],
            "refusal": None,
        }
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.thoughts:
        message["reasoning_content"] = reply.thoughts
    if reply.tool_calls:
        message["content"] = reply.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.json},
            }
            for call in reply.tool_calls
        ]
    return {
        "index": finished.number,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": _finish_reason(reply),
    }


def _finish_reason(reply: Reply) -> str:
    """Why the answer ended."""
    has_called = reply.finish_reason == "stop" and reply.tool_calls
    return "tool_calls" if has_called else reply.finish_reason


def logprob_object(found: TokenLogprobs) -> dict[str, Any]:
    """A token's log-probability, and the best of its place, as OpenAI has them."""
    own = TokenLogprob(found.token_id, found.before, found.text)
    return {
        **_one_logprob(own),
        "top_logprobs": [_one_logprob(top) for top in found.top_before],
    }


def _one_logprob(token: TokenLogprob) -> dict[str, Any]:
    is_whole = "\N{REPLACEMENT CHARACTER}" not in token.text
    return {
        "id": token.token_id,
        "token": token.text,
        "logprob": max(token.logprob, LOWEST_LOGPROB),
        "bytes": list(token.text.encode()) if is_whole else None,
    }
