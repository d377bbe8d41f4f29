"""Anthropic's Messages.

The content of a message, and of an answer, is a list of blocks: a text, the thoughts before it,
a call of a tool, or the result of a call.
"""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat.messages import checked_messages
from localspec.chat.template import NO_VARIABLES, Message
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.answering import Event, Finished, NewPiece
from localspec.server.encoding import sse_event
from localspec.server.fields import Fields
from localspec.server.form import Form, Handler, engine_handler, extra_fields
from localspec.server.question import (
    Question,
    answer_form,
    answer_options,
    declared_name,
    max_tokens,
    prompt_maker,
    template_variables,
    tool_options,
)
from localspec.server.refusal import RequestError, anthropic_error
from localspec.streaming.reply import Piece, Reply

# A line that a coding agent sends; its numbers change with each request or session.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
_EMPTY_TEXT = {"type": "text", "text": ""}  # a block of text as it starts
_EMPTY_THINKING = {
    "type": "thinking",
    "thinking": "",
    "signature": "",
}
# The types of blocks in requests that are neither text nor an image.
_TYPES_BESIDE_TEXT = ("thinking", "redacted_thinking", "tool_use", "tool_result")
# The types of blocks for calls that Anthropic's own servers made: these are ignored.
_TYPES_OF_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")

# The option "tool_choice" for each type of a choice in a request, other than a tool.
_CHOICES = {
    "auto": "auto",
    "any": "required",
    "none": "none",
}
# The field "stop_reason" for these reasons of an answer's end; it is "end_turn" for the others.
_STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens"}


class MessageForm(Form):
    """A request to /v1/messages, and its answer.

    Without max_tokens, which Anthropic's API demands, the answer may fill the context.
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
        self._has_begun = False  # whether the event message_start is made
        self._num_blocks = 0  # blocks that have ended
        # The block that has started and not ended: its type; for a call, the call's index.
        self._block: str | int | None = None

    def body(self, finished: Sequence[Finished]) -> Any:
        """The whole message of the only answer, to be written as JSON."""
        (answer,) = finished
        reply = answer.reply
        content: list[dict[str, Any]] = []
        if reply.thoughts:
            content.append({**_EMPTY_THINKING, "thinking": reply.thoughts})
        if reply.text or not reply.tool_calls:
            content.append({**_EMPTY_TEXT, "text": reply.text})
        for call in reply.tool_calls:
            content.append({**_empty_call(call.id, call.name), "input": call.arguments})
        return {
            **self._message(content),
            **_stop_fields(reply),
            **_usage_fields(reply),
        }

    def text_for(self, event: Event) -> str:
        """The events of the stream for something that happened; "" if there are none."""
        if isinstance(event, NewPiece):
            piece = event.piece
            if not piece.text and piece.call is None:
                return ""
            start = self._message_start(event.num_prompt_tokens, event.num_cached)
            return start + self._piece_events(piece)
        if isinstance(event, Finished):
            return self._end_events(event.reply)
        # An empty delta, not a ping: coding agents that get only pings for five minutes give
        # up. It is of the open block, since another block would end a call amid its JSON.
        events = self._message_start(event.num_tokens, event.num_cached)
        if self._block is None:
            events += self._switch_to("text", _EMPTY_TEXT)
        return events + self._delta("", event.field)

    def _end_events(self, reply: Reply) -> str:
        """The events that end an answer."""
        stats = reply.stats
        events = self._message_start(stats.prompt_tokens, stats.cached_prompt_tokens)
        if self._block != "text" and not reply.tool_calls:
            # Clients expect a text, even in an answer that has only thoughts or nothing.
            events += self._switch_to("text", _EMPTY_TEXT)
        events += self._end_block()
        stop = _stop_fields(reply)
        return events + _named_event("message_delta", delta=stop, **_usage_fields(reply))

    def end(self, finished: Sequence[Finished]) -> str:
        """The last event of the stream."""
        return _named_event("message_stop")

    def failure(self, error: RequestError) -> str:
        """The last event of the stream after an error."""
        return sse_event(anthropic_error(error), "error")

    def _message_start(self, num_prompt_tokens: int, num_cached: int) -> str:
        """The first event of the stream; "" if it is sent already.

        Args:
            num_prompt_tokens: all tokens of the prompt.
            num_cached: tokens of the prompt that were cached.
        """
        if self._has_begun:
            return ""
        self._has_begun = True
        usage = _usage(num_prompt_tokens, num_cached, 0)
        stop = {"stop_reason": None, "stop_sequence": None}
        message = {**self._message([]), **stop, "usage": usage}
        return _named_event("message_start", message=message)

    def _piece_events(self, piece: Piece) -> str:
        """The events of a piece of an answer."""
        call = piece.call
        if call is not None:
            started = self._switch_to(call.number, _empty_call(call.id, call.name))
            return started + self._delta(call.json)
        if piece.is_thought:
            started = self._switch_to("thinking", _EMPTY_THINKING)
        else:
            started = self._switch_to("text", _EMPTY_TEXT)
        return started + self._delta(piece.text)

    def _delta(self, text: str, more: Mapping[str, Any] = NO_VARIABLES) -> str:
        """The event that the open block has more text.

        Args:
            text: the new text.
            more: further fields of the event, none by default.
        """
        delta_type = f"{self._block}_delta"
        text_field = str(self._block)
        if isinstance(self._block, int):
            delta_type = "input_json_delta"
            text_field = "partial_json"
        delta = {"type": delta_type, text_field: text}
        index = self._num_blocks
        return _named_event("content_block_delta", index=index, delta=delta, **more)

    def _switch_to(self, name: str | int, block: dict[str, Any]) -> str:
        """End any open block, and start another.

        Returns the events; "" if the block to be started is open already.

        Args:
            name: the type of the block; for a call, the call's index.
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
        """End the open block, and return its last event; "" if no block is open."""
        if self._block is None:
            return ""
        ended = _named_event("content_block_stop", index=self._num_blocks)
        self._block = None
        self._num_blocks += 1
        return ended

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """The fields that every message of an answer has."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.model.name,
            "content": content,
        }


def count_tokens(fields: Fields) -> Handler:
    """The handler of a request to /v1/messages/count_tokens.

    Its response is the number of tokens in the prompt.
    """
    make_prompt = prompt_maker(_read_messages(fields), _tools(fields), _variables(fields))

    def compute(engine: IsolatedEngine) -> dict[str, int]:
        return {"input_tokens": len(make_prompt(engine))}

    return engine_handler(fields, compute)


def _tools(fields: Fields) -> dict[str, Any]:
    """The options of tools. Raises RequestError.

    The tools that Anthropic's servers run, which have no schema, are ignored.
    """
    tools: list[Mapping[str, Any]] = []
    ignored_names: list[object] = []
    for tool in fields.objects("tools"):
        name = declared_name(tool)
        if "input_schema" in tool:
            tools.append(tool.values)
        else:
            ignored_names.append(name)
    choice = fields.object("tool_choice")
    is_disabled = choice.flag("disable_parallel_tool_use")
    is_parallel = None
    if is_disabled is not None:
        is_parallel = not is_disabled
    choice_type = choice.text("type") or "auto"
    if choice_type == "tool":
        chosen_name = choice.text("name")
        tool_choice = chosen_name
    else:
        chosen_name = ""
        tool_choice = _CHOICES.get(choice_type)
    if tool_choice is None:
        fields.refuse("tool_choice", "Choose auto, any, none, or a tool by its name.")
    return tool_options(
        tools,
        tool_choice,
        ignored_names,
        chosen_name,
        is_parallel=is_parallel,
    )


def _read_messages(fields: Fields) -> list[Message]:
    """The conversation in a request, with its system text as the first message.

    Raises:
        RequestError: a field is wrong.
        OptionError: a message is wrong.
    """
    request_messages = fields.objects("messages")
    if not request_messages:
        fields.refuse("messages", "Give one or more.")
    unchecked: list[Message] = []
    for message in request_messages:
        role = message.text("role") or ""
        unchecked += _split_message(message.value("content"), role)
    messages = checked_messages(unchecked)
    system = fields.value("system")
    if system is None:
        return messages
    (system_message,) = checked_messages([{"role": "system", "content": system}])
    # With a line that changes, a cache would be of no use for anything after the line.
    text = _BILLING.sub("", system_message["content"], count=1)
    return [{**system_message, "content": text}, *messages]


def _split_message(content: object, role: str) -> list[Message]:
    """The messages that an Anthropic message becomes, not checked yet.

    Content that is no list becomes one message. In a list, the result of each call becomes a
    message; the texts, images, thoughts and calls become one message after these. That one is
    left out if there are results, but neither texts, images nor calls.
    """
    if not isinstance(content, list):
        return [{"role": role, "content": content}]

    blocks = defaultdict[str, list[Any]](list)  # by their types; unknown ones count as text
    for block in content:
        block_type = _block_type(block)
        if block_type in _TYPES_OF_SERVER_CALLS or block_type.endswith("_tool_result"):
            continue
        if block_type not in _TYPES_BESIDE_TEXT:
            block_type = "text"
        blocks[block_type].append(block)
    results = [_result_message(block) for block in blocks["tool_result"]]
    calls = [_call_in(block) for block in blocks["tool_use"]]
    text = _without_documents(blocks["text"])
    if results and not (text or calls):
        return results
    thoughts = [str(block.get("thinking")) for block in blocks["thinking"]]
    message = {
        "role": role,
        "content": text,
        "reasoning_content": "\n".join(thoughts),
    }
    if calls:
        message["tool_calls"] = calls
    return [*results, message]


def _block_type(block: object) -> str:
    """The type of a block; "" for anything that is no object."""
    if isinstance(block, dict):
        return str(block.get("type"))
    return ""


def _call_in(block: Mapping[str, Any]) -> dict[str, Any]:
    """The call in a block, as messages have it."""
    return {
        "id": block.get("id"),
        "name": block.get("name"),
        "arguments": block.get("input"),
    }


def _result_message(block: Mapping[str, Any]) -> Message:
    """The message of a block with the result of a call."""
    content = _without_documents(block.get("content"))
    if block.get("is_error") is True:
        if not isinstance(content, list):
            content = [_text_block(content or "")]
        content = [_text_block("The tool failed:"), *content]
    return {
        "role": "tool",
        "content": content,
        "tool_call_id": block.get("tool_use_id"),
    }


def _without_documents(content: object) -> object:
    """The content of a message, its documents and search results replaced by their texts.

    The title of each comes first. Content that is no list is returned as it is.
    """
    if not isinstance(content, list):
        return content
    blocks: list[Any] = []
    for block in content:
        inner_blocks = _blocks_in_document(block)
        if inner_blocks is None:
            blocks.append(block)
        else:
            title = str(block.get("title") or "")
            blocks += [_text_block(title), *inner_blocks]
    return blocks


def _blocks_in_document(block: object) -> list[Any] | None:
    """The blocks in a search result, or in a document that is text; None for anything else."""
    if not isinstance(block, dict):
        return None
    source = block.get("source")
    block_type = block.get("type")
    content = None
    if block_type == "search_result":
        content = block.get("content")
    elif block_type == "document" and isinstance(source, dict):
        content = source.get("content")
        if source.get("type") == "text":
            content = source.get("data")
    if isinstance(content, str):
        return [_text_block(content)]
    if isinstance(content, list):
        return content
    return None


def _text_block(text: object) -> dict[str, Any]:
    """A block of text; `text` is checked later."""
    return {**_EMPTY_TEXT, "text": text}


def _variables(fields: Fields) -> dict[str, Any]:
    """The variables of the chat template. Raises RequestError."""
    thinking_type = fields.object("thinking").text("type") or ""
    thinks = {"enabled": True, "disabled": False}.get(thinking_type)
    effort = fields.object("output_config").text("effort")
    return template_variables(fields, thinks=thinks, effort=effort)


def _empty_call(call_id: str, name: str) -> dict[str, Any]:
    """A block of a call as it starts, without arguments."""
    return {
        "type": "tool_use",
        "id": call_id,
        "name": name,
        "input": {},
    }


def _named_event(event_type: str, **fields: Any) -> str:
    """An event of the stream, whose type is also its name."""
    return sse_event({"type": event_type, **fields}, event_type)


def _stop_fields(reply: Reply) -> dict[str, Any]:
    """The fields that say why an answer ended."""
    reason = _STOP_REASONS.get(reply.finish_reason, "end_turn")
    if reply.stopped_by is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": reply.stopped_by}


def _usage_fields(reply: Reply) -> dict[str, Any]:
    """The fields with the numbers of tokens of an answer, and with its timings."""
    stats = reply.stats
    usage = _usage(stats.prompt_tokens, stats.cached_prompt_tokens, stats.completion_tokens)
    return {"usage": usage, **extra_fields(reply)}


def _usage(num_prompt_tokens: int, num_cached: int, num_answer_tokens: int) -> dict[str, int]:
    """The field "usage" of a message; `num_cached` of the prompt's tokens were cached."""
    return {
        "input_tokens": num_prompt_tokens - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_answer_tokens,
    }
