"""Anthropic's Messages."""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat.messages import checked_messages
from localspec.chat.template import NO_VARIABLES, Message
from localspec.server.answering import Event, Finished, NewPiece
from localspec.server.encoding import sse_event
from localspec.server.fields import Fields
from localspec.server.form import Form, Handler, engine_handler, extra_fields
from localspec.server.question import (
    Question,
    answer_form,
    answer_options,
    max_tokens,
    prompt_maker,
    template_variables,
    tool_options,
)
from localspec.server.refusal import RequestError, anthropic_error
from localspec.streaming.reply import Piece, Reply

# A line that a coding agent sends; its numbers change with each request or session.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
_NO_TEXT = {"type": "text", "text": ""}  # a block of text as it starts
_NO_THOUGHT = {
    "type": "thinking",
    "thinking": "",
    "signature": "",
}
# Types of blocks that are no text.
_OWN = ("thinking", "redacted_thinking", "tool_use", "tool_result")
# Types of blocks for calls that Anthropic's servers made themselves.
_THEIRS = ("server_tool_use", "mcp_tool_use")

_CHOICES = {
    "auto": "auto",
    "any": "required",
    "none": "none",
}  # of tools
_STOPS = {"tool_calls": "tool_use", "length": "max_tokens"}


class MessageForm(Form):
    """A request to /v1/messages, and its answer.

    Without max_tokens the answer may fill the context, where Anthropic's API refuses.
    """

    def __init__(self, fields: Fields) -> None:
        options = answer_options(fields) | _tools(fields)
        options |= answer_form(fields.object("output_config").object("format"))
        options["max_tokens"] = max_tokens(fields, "max_tokens")
        options["stop"] = fields.texts("stop_sequences")
        messages = _read_messages(fields)
        variables = _variables(fields)
        self.question = Question(
            fields,
            [messages],
            options,
            variables=variables,
        )
        self._id = f"msg_{secrets.token_hex(12)}"
        self._has_begun = False
        self._num_blocks = 0
        self._block: str | int | None = None  # the open one: its type, or a call's number

    def body(self, finished: Sequence[Finished]) -> Any:
        (answer,) = finished
        reply = answer.reply
        content: list[dict[str, Any]] = []
        if reply.thoughts:
            content.append({**_NO_THOUGHT, "thinking": reply.thoughts})
        if reply.text or not reply.tool_calls:
            content.append({**_NO_TEXT, "text": reply.text})
        for call in reply.tool_calls:
            content.append({**_tool_use(call.id, call.name), "input": call.arguments})
        return {
            **self._message(content),
            **_stop_fields(reply),
            **_costs(reply),
        }

    def text_for(self, event: Event) -> str:
        if isinstance(event, NewPiece):
            piece = event.piece
            if not piece.text and piece.call is None:
                return ""
            begun = self._message_start(event.num_prompt_tokens, event.num_cached)
            return begun + self._say(piece)
        if isinstance(event, Finished):
            return self._end_answer(event.reply)
        # An empty delta of the open block: another block would end it in the middle of a
        # call's JSON. A coding agent that gets nothing but pings for five minutes gives up.
        texts = [self._message_start(event.num_tokens, event.num_cached)]
        if self._block is None:
            texts.append(self._switch_to("text", _NO_TEXT))
        texts.append(self._delta("", event.field))
        return "".join(texts)

    def _end_answer(self, reply: Reply) -> str:
        stats = reply.stats
        texts = [self._message_start(stats.prompt_tokens, stats.cached_prompt_tokens)]
        if self._block != "text" and not reply.tool_calls:
            texts.append(self._switch_to("text", _NO_TEXT))  # an empty answer has a block, too
        texts.append(self._end_block())
        stop = _stop_fields(reply)
        texts.append(_named_event("message_delta", delta=stop, **_costs(reply)))
        return "".join(texts)

    def end(self, finished: Sequence[Finished]) -> str:
        return _named_event("message_stop")

    def failure(self, error: RequestError) -> str:
        return sse_event(anthropic_error(error), "error")

    def _message_start(self, num_prompt_tokens: int, num_cached: int) -> str:
        if self._has_begun:
            return ""
        self._has_begun = True
        usage = _usage(num_prompt_tokens, num_cached, 0)
        stop = {"stop_reason": None, "stop_sequence": None}
        message = {**self._message([]), **stop, "usage": usage}
        return _named_event("message_start", message=message)

    def _say(self, piece: Piece) -> str:
        call = piece.call
        if call is not None:
            switched = self._switch_to(call.number, _tool_use(call.id, call.name))
            return switched + self._delta(call.json)
        if piece.is_thought:
            switched = self._switch_to("thinking", _NO_THOUGHT)
        else:
            switched = self._switch_to("text", _NO_TEXT)
        return switched + self._delta(piece.text)

    def _delta(self, text: str, more: Mapping[str, Any] = NO_VARIABLES) -> str:
        """The event that the open block has more text.

        Args:
            text: the new text.
            more: further fields of the event.
        """
        kind = f"{self._block}_delta"
        name = str(self._block)
        if isinstance(self._block, int):
            kind = "input_json_delta"
            name = "partial_json"
        at = {"index": self._num_blocks, "delta": {"type": kind, name: text}}
        return _named_event("content_block_delta", **at, **more)

    def _switch_to(self, name: str | int, block: dict[str, Any]) -> str:
        """Start a block, unless it is open, and end any other.

        Args:
            name: see `_block`.
            block: the block as it starts.
        """
        if self._block == name:
            return ""
        ended = self._end_block()
        self._block = name
        index = self._num_blocks
        started = _named_event("content_block_start", index=index, content_block=block)
        return ended + started

    def _end_block(self) -> str:
        if self._block is None:
            return ""
        ended = _named_event("content_block_stop", index=self._num_blocks)
        self._block = None
        self._num_blocks += 1
        return ended

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.model.name,
            "content": content,
        }


def count_tokens(fields: Fields) -> Handler:
    """Answer a request to /v1/messages/count_tokens: the number of tokens in the prompt."""
    prompt = prompt_maker(_read_messages(fields), _tools(fields), _variables(fields))
    return engine_handler(fields, lambda engine: {"input_tokens": len(prompt(engine))})


def _tools(fields: Fields) -> dict[str, Any]:
    """The tools of Messages; Anthropic's own are ignored. Raises RequestError."""
    tools: list[Mapping[str, Any]] = []
    ignored: list[object] = []
    for tool in fields.objects("tools"):
        if "input_schema" in tool:
            tools.append(tool.values)
        else:
            ignored.append(tool.value("name"))
    choice = fields.object("tool_choice")
    is_disabled = choice.flag("disable_parallel_tool_use")
    is_parallel = None
    if is_disabled is not None:
        is_parallel = not is_disabled
    kind = choice.text("type") or "auto"
    if kind == "tool":
        named = choice.text("name")
        wanted = named
    else:
        named = ""
        wanted = _CHOICES.get(kind)
    if wanted is None:
        fields.refuse("tool_choice", "Choose auto, any, none, or a tool by its name.")
    return tool_options(
        tools,
        wanted,
        ignored,
        named,
        is_parallel=is_parallel,
    )


def _read_messages(fields: Fields) -> list[Message]:
    given = fields.objects("messages")
    if not given:
        fields.refuse("messages", "Give one or more.")
    unchecked: list[Message] = []
    for message in given:
        unchecked += _messages_in(message.value("content"), message.text("role") or "")
    messages = checked_messages(unchecked)
    system = fields.value("system")
    if system is None:
        return messages
    (opening,) = checked_messages([{"role": "system", "content": system}])
    # If that line stayed, nothing after it would be found in a cache.
    text = _BILLING.sub("", opening["content"], count=1)
    return [{**opening, "content": text}, *messages]


def _messages_in(content: object, role: str) -> list[Message]:
    """The messages in an Anthropic message: the results of calls, then its text with calls."""
    if not isinstance(content, list):
        return [{"role": role, "content": content}]

    blocks = defaultdict[str, list[Any]](list)
    for block in content:
        kind = _kind_of(block)
        # Calls and results of other servers are left out; anything else is text or an image.
        if kind in _THEIRS or kind.endswith("_tool_result"):
            continue
        if kind not in _OWN:
            kind = "text"
        blocks[kind].append(block)
    results = [_result_in(block) for block in blocks["tool_result"]]
    calls = [_call_in(block) for block in blocks["tool_use"]]
    text = _plain(blocks["text"])
    if results and not (text or calls):
        return results
    thoughts = [str(block.get("thinking")) for block in blocks["thinking"]]
    said = {
        "role": role,
        "content": text,
        "reasoning_content": "\n".join(thoughts),
    }
    if calls:
        said["tool_calls"] = calls
    return [*results, said]


def _kind_of(block: object) -> str:
    """The type of a block; "" for anything that is no object."""
    if isinstance(block, dict):
        return str(block.get("type"))
    return ""


def _call_in(block: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": block.get("id"),
        "name": block.get("name"),
        "arguments": block.get("input"),
    }


def _result_in(block: Mapping[str, Any]) -> Message:
    content = _plain(block.get("content"))
    if block.get("is_error") is True:
        if not isinstance(content, list):
            content = [{**_NO_TEXT, "text": content or ""}]
        content = [{**_NO_TEXT, "text": "The tool failed:"}, *content]
    return {
        "role": "tool",
        "content": content,
        "tool_call_id": block.get("tool_use_id"),
    }


def _plain(content: object) -> object:
    """The content, with documents and search results as their titles and texts."""
    if not isinstance(content, list):
        return content
    plain: list[Any] = []
    for block in content:
        within = _texts_within(block)
        if within is None:
            plain.append(block)
        else:
            title = str(block.get("title") or "")
            plain += [{**_NO_TEXT, "text": title}, *within]
    return plain


def _texts_within(block: object) -> list[Any] | None:
    """The blocks of a search result or of a document that is text; None for any other."""
    if not isinstance(block, dict):
        return None
    source = block.get("source")
    kind = block.get("type")
    within = None
    if kind == "search_result":
        within = block.get("content")
    elif kind == "document" and isinstance(source, dict):
        within = source.get("content")
        if source.get("type") == "text":
            within = source.get("data")
    if isinstance(within, str):
        return [{**_NO_TEXT, "text": within}]
    if isinstance(within, list):
        return within
    return None


def _variables(fields: Fields) -> dict[str, Any]:
    kind = fields.object("thinking").text("type") or ""
    thinks = {"enabled": True, "disabled": False}.get(kind)
    effort = fields.object("output_config").text("effort")
    return template_variables(fields, thinks=thinks, effort=effort)


def _tool_use(call_id: str, name: str) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": call_id,
        "name": name,
        "input": {},
    }


def _named_event(kind: str, **fields: Any) -> str:
    return sse_event({"type": kind, **fields}, kind)


def _stop_fields(reply: Reply) -> dict[str, Any]:
    reason = _STOPS.get(reply.finish_reason, "end_turn")
    if reply.stopped_by is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": reply.stopped_by}


def _costs(reply: Reply) -> dict[str, Any]:
    stats = reply.stats
    usage = _usage(stats.prompt_tokens, stats.cached_prompt_tokens, stats.completion_tokens)
    return {"usage": usage, **extra_fields(reply)}


def _usage(num_prompt: int, num_cached: int, num_answered: int) -> dict[str, int]:
    return {
        "input_tokens": num_prompt - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_answered,
    }
