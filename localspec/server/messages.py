"""Anthropic's Messages."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from localspec.chat.messages import checked_messages
from localspec.chat.template import Message
from localspec.server.answering import (
    Event,
    Finished,
    Reading,
    Said,
    Service,
    in_thread,
    prompt_of,
)
from localspec.server.costs import Usage, own_fields, usage_of
from localspec.server.error_shapes import anthropic_error
from localspec.server.fields import Fields
from localspec.server.question import (
    PromptQuestion,
    Question,
    answer_options,
    max_tokens,
)
from localspec.server.refusal import RequestError
from localspec.server.served_models import ServedModel
from localspec.server.tool_fields import answer_form, anthropic_tools
from localspec.server.writing import event
from localspec.streaming.cancellation import never
from localspec.streaming.options import AnswerOptions
from localspec.streaming.stream import Piece

# A line of a coding agent's, with numbers that change from one request or session to the next.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
_NO_TEXT = ("thinking", "redacted_thinking", "tool_use", "tool_result")  # kinds of blocks


def read_question(fields: Fields) -> Question:
    """What a request asks. Raises RequestError."""
    options = answer_options(fields) | anthropic_tools(fields)
    for name in ("output_format", "output_config"):
        form = fields.object(name)
        form = form if form is None or name == "output_format" else form.object("format")
        options |= answer_form(form)
    options["max_tokens"] = max_tokens(fields, "max_tokens")
    options["stop"] = fields.texts("stop_sequences")
    return Question(
        model=fields.text("model"),
        inputs=[read_messages(fields)],
        options=options,
        think=thinks(fields),
        streams=bool(fields.flag("stream")),
    )


def read_messages(fields: Fields) -> list[Message]:
    """System text and messages, as `checked_messages` has them.

    Raises RequestError, OptionError.
    """
    messages: list[Message] = []
    system = fields.any("system")
    if system is not None:
        # Else nothing behind it stays cached.
        text = _BILLING.sub("", _text_of(system, "system"), count=1)
        messages.append({"role": "system", "content": text})
    given = fields.objects("messages")
    if not given:
        fields.refuse("messages", "Give one or more.")
    for message in given:
        messages += _messages_of(message.any("content"), message.text("role") or "")
    return messages


def _messages_of(content: object, role: str) -> list[Message]:
    """What a message says: first what came of calls, then its text and the calls in it."""
    blocks = content if isinstance(content, list) else []
    results = [_result(block) for block in blocks if _kind(block) == "tool_result"]
    calls = [_call(block) for block in blocks if _kind(block) == "tool_use"]
    if isinstance(content, list):
        content = [block for block in content if _kind(block) not in _NO_TEXT]
    told: list[Message] = []
    if content or calls or not results:
        thoughts = [block for block in blocks if _kind(block) == "thinking"]
        thought = "\n".join(str(block.get("thinking")) for block in thoughts)
        called = {"tool_calls": calls, "reasoning_content": thought} if calls else {}
        told = [{"role": role, "content": _text_of(content, role), **called}]
    return checked_messages([*results, *told])


def _call(block: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": block.get("id"),
        "function": {"name": block.get("name"), "arguments": block.get("input")},
    }


def _result(block: dict[str, Any]) -> Message:
    text = _text_of(block.get("content"), "user")
    return {"role": "tool", "content": text, "tool_call_id": block.get("tool_use_id")}


def _kind(block: object) -> object:
    return block.get("type") if isinstance(block, dict) else None


def _text_of(content: object, role: str) -> str:
    """The text of a content: one, or blocks of it."""
    (message,) = checked_messages([{"role": role, "content": content}])
    return str(message["content"])


def read_prompt_question(fields: Fields) -> PromptQuestion:
    """What a request to count its tokens asks. Raises RequestError, OptionError."""
    use = AnswerOptions.of(**anthropic_tools(fields)).tool_use(())
    return PromptQuestion(fields.text("model"), read_messages(fields), use, thinks(fields))


async def count_tokens(service: Service, asked: PromptQuestion) -> dict[str, int]:
    """How many tokens the prompt has. Raises RequestError, TemplateError."""
    async with service.opened(asked.model) as engine:
        make = partial(prompt_of, engine, asked.messages, asked.use, never, think=asked.think)
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
        self._block: str | int | None = None  # that is being written: its kind, or which call

    def whole(self, finished: Sequence[Finished]) -> Any:
        """See `writing.Form.whole`."""
        (answer,) = finished
        content: list[dict[str, Any]] = []
        if answer.reply.thoughts:
            thoughts = answer.reply.thoughts
            content.append({"type": "thinking", "thinking": thoughts, "signature": ""})
        if answer.reply.text or not answer.reply.tool_calls:
            content.append({"type": "text", "text": answer.reply.text})
        for call in answer.reply.tool_calls:
            content.append({**_tool_use(call.id, call.name), "input": call.arguments})
        return {
            **self._message(content),
            **_stop(answer),
            "usage": _usage(usage_of(finished, 1, has_prediction=False)),
            **own_fields(answer.reply),
        }

    def told(self, event: Event) -> str:
        """See `writing.Form.told`."""
        if isinstance(event, Said):
            piece = event.piece
            if not piece.text and piece.call is None:
                return ""
            return self._begin(event.num_prompt_tokens) + self._say(piece)
        if isinstance(event, Finished):
            begun = self._begin(event.reply.stats.prompt_tokens)
            has_said = self._block == "text" or event.reply.tool_calls
            text = {"type": "text", "text": ""}
            turned = "" if has_said else self._turn_to("text", text)
            usage = _usage(usage_of([event], 1, has_prediction=False))
            ended = _event(
                "message_delta",
                delta=_stop(event),
                usage=usage,
                **own_fields(event.reply),
            )
            return begun + turned + self._end_block() + ended
        # Not a ping: a coding agent gives up that gets nothing else for five minutes.
        begun = self._begin(event.num_tokens if isinstance(event, Reading) else 0)
        return begun + self._say_text("")

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

    def _say(self, piece: Piece) -> str:
        """A piece in the block that it belongs to."""
        if (call := piece.call) is not None:
            turned = self._turn_to(call.number, _tool_use(call.id, call.name))
            delta = {"type": "input_json_delta", "partial_json": call.json}
        elif piece.is_thought:
            block = {"type": "thinking", "thinking": "", "signature": ""}
            turned = self._turn_to("thinking", block)
            delta = {"type": "thinking_delta", "thinking": piece.text}
        else:
            return self._say_text(piece.text)
        return turned + self._delta(delta)

    def _say_text(self, text: str) -> str:
        turned = self._turn_to("text", {"type": "text", "text": ""})
        return turned + self._delta({"type": "text_delta", "text": text})

    def _delta(self, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", index=self._num_blocks, delta=delta)

    def _turn_to(self, name: str | int, block: dict[str, Any]) -> str:
        """End another block, and begin this one. name: what it is told from others by."""
        if self._block == name:
            return ""
        ended = self._end_block()
        self._block = name
        return ended + _event(
            "content_block_start", index=self._num_blocks, content_block=block
        )

    def _end_block(self) -> str:
        if self._block is None:
            return ""
        signed = ""
        if self._block == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            signed = self._delta(delta)
        ended = _event("content_block_stop", index=self._num_blocks)
        self._block = None
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


def _tool_use(call_id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def _event(kind: str, **fields: Any) -> str:
    return event({"type": kind, **fields}, kind)


def _stop(finished: Finished) -> dict[str, Any]:
    reason = "tool_use" if finished.reply.tool_calls else "end_turn"
    if finished.reply.finish_reason == "length":
        reason = "max_tokens"
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
