"""Anthropic's Messages."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from localspec.chat.messages import checked_messages
from localspec.server.answering import (
    Event,
    Finished,
    Reading,
    Said,
    Service,
    in_thread,
    prompt_of,
)
from localspec.server.costs import Usage, timings_of, usage_of
from localspec.server.error_shapes import anthropic_error
from localspec.server.fields import Fields
from localspec.server.question import (
    PromptQuestion,
    Question,
    answer_options,
    max_tokens,
    refuse_format,
    refuse_tool_choice,
)
from localspec.server.refusal import RequestError
from localspec.server.served_models import ServedModel
from localspec.server.tool_text import call_as_text, result_as_text
from localspec.server.writing import event
from localspec.streaming.cancellation import never

# A line of a coding agent's, with numbers that change from one request or session to the next.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


def read_question(fields: Fields) -> Question:
    """What a request asks. Raises RequestError."""
    fields.objects("tools")  # they are passed over: the answer is text
    choice = fields.object("tool_choice")
    refuse_tool_choice(None if choice is None else choice.any("type"))
    for name in ("output_format", "output_config"):
        form = fields.object(name)
        form = form if form is None or name == "output_format" else form.object("format")
        refuse_format(None if form is None else form.any("type"))
    options = answer_options(fields)
    options["max_tokens"] = max_tokens(fields, "max_tokens")
    options["stop"] = fields.texts("stop_sequences")
    return Question(
        model=fields.text("model"),
        inputs=[read_messages(fields)],
        options=options,
        think=thinks(fields),
        streams=bool(fields.flag("stream")),
    )


def read_messages(fields: Fields) -> list[dict[str, str]]:
    """System text and messages, as messages of text. Raises RequestError, OptionError."""
    messages = []
    system = fields.any("system")
    if system is not None:
        text = _BILLING.sub(
            "", _text_of(system, "system"), count=1
        )  # else nothing stays cached
        messages.append({"role": "system", "content": text})
    given = fields.objects("messages")
    if not given:
        fields.refuse("messages", "Give one or more.")
    for message in given:
        role = message.text("role") or ""
        messages.append({"role": role, "content": _text_of(message.any("content"), role)})
    return messages


def _text_of(content: object, role: str) -> str:
    """The text of a content: one, or blocks of it."""
    if not isinstance(content, list):
        (message,) = checked_messages([{"role": role, "content": content}])
        return message["content"]
    texts = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            texts.append(call_as_text(block.get("name"), block.get("input")))
        elif kind == "tool_result":
            texts.append(result_as_text(_text_of(block.get("content"), role)))
        elif kind not in ("thinking", "redacted_thinking"):
            (message,) = checked_messages([{"role": role, "content": [block]}])
            texts.append(message["content"])
    return "\n".join(filter(None, texts))  # an answer may begin with a text without a word


def read_prompt_question(fields: Fields) -> PromptQuestion:
    """What a request to count its tokens asks. Raises RequestError, OptionError."""
    return PromptQuestion(fields.text("model"), read_messages(fields), thinks(fields))


async def count_tokens(service: Service, asked: PromptQuestion) -> dict[str, int]:
    """How many tokens the prompt has. Raises RequestError, TemplateError."""
    async with service.opened(asked.model) as engine:
        make = partial(prompt_of, engine, asked.messages, never, think=asked.think)
        prompt = await in_thread(make)
    return {"input_tokens": len(prompt.tokens)}


def thinks(fields: Fields) -> bool:
    """Whether a reasoning model may think before it answers."""
    thinking = fields.object("thinking")
    return thinking is None or thinking.text("type") != "disabled"


class MessageForm:
    """An answer as Messages have it; see `writing.Form`."""

    def __init__(self, model: ServedModel) -> None:
        self._id = f"msg_{secrets.token_hex(12)}"
        self._model = model.name
        self._has_begun = False
        self._num_blocks = 0
        self._is_thought: bool | None = None  # the block that is being written, if one is

    def whole(self, finished: Sequence[Finished]) -> Any:
        """See `writing.Form.whole`."""
        (answer,) = finished
        content: list[dict[str, Any]] = []
        if answer.reply.thoughts:
            thoughts = answer.reply.thoughts
            content.append({"type": "thinking", "thinking": thoughts, "signature": ""})
        content.append({"type": "text", "text": answer.reply.text})
        return {
            **self._message(content),
            **_stop(answer),
            "usage": _usage(usage_of(finished, 1, has_prediction=False)),
            "timings": timings_of(answer.reply.stats),
        }

    def told(self, event: Event) -> str:
        """See `writing.Form.told`."""
        if isinstance(event, Said):
            if not event.piece.text:
                return ""
            begun = self._begin(event.num_prompt_tokens)
            turned = self._turn_to(is_thought=event.piece.is_thought)
            return begun + turned + self._delta(event.piece.text)
        if isinstance(event, Finished):
            begun = self._begin(event.reply.stats.prompt_tokens)
            has_text = self._is_thought is False
            turned = "" if has_text else self._turn_to(is_thought=False)
            usage = _usage(usage_of([event], 1, has_prediction=False))
            ended = _event(
                "message_delta",
                delta=_stop(event),
                usage=usage,
                timings=timings_of(event.reply.stats),
            )
            return begun + turned + self._end_block() + ended
        # Not a ping: a coding agent gives up that gets nothing else for five minutes.
        begun = self._begin(event.num_tokens if isinstance(event, Reading) else 0)
        return begun + self._turn_to(is_thought=False) + self._delta("")

    def end(self) -> str:
        """See `writing.Form.end`."""
        return _event("message_stop")

    def failure(self, error: RequestError) -> str:
        """See `writing.Form.failure`."""
        return event(anthropic_error(error), "error")

    def _begin(self, num_prompt_tokens: int) -> str:
        if self._has_begun:
            return ""
        self._has_begun = True
        usage = {
            "input_tokens": num_prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        stop = {"stop_reason": None, "stop_sequence": None}
        message = {**self._message([]), **stop, "usage": usage}
        return _event("message_start", message=message)

    def _turn_to(self, *, is_thought: bool) -> str:
        """End a block of the other kind, and begin one of this."""
        if self._is_thought == is_thought:
            return ""
        ended = self._end_block()
        self._is_thought = is_thought
        block = {"type": "text", "text": ""}
        if is_thought:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        return ended + _event(
            "content_block_start", index=self._num_blocks, content_block=block
        )

    def _delta(self, text: str) -> str:
        delta = {"type": "text_delta", "text": text}
        if self._is_thought:
            delta = {"type": "thinking_delta", "thinking": text}
        return _event("content_block_delta", index=self._num_blocks, delta=delta)

    def _end_block(self) -> str:
        if self._is_thought is None:
            return ""
        signed = ""
        if self._is_thought:
            delta = {"type": "signature_delta", "signature": ""}
            signed = _event("content_block_delta", index=self._num_blocks, delta=delta)
        ended = _event("content_block_stop", index=self._num_blocks)
        self._is_thought = None
        self._num_blocks += 1
        return signed + ended

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
        }


def _event(kind: str, **fields: Any) -> str:
    return event({"type": kind, **fields}, kind)


def _stop(finished: Finished) -> dict[str, Any]:
    reason = "max_tokens" if finished.reply.finish_reason == "length" else "end_turn"
    if finished.stopped_by is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": finished.stopped_by}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
