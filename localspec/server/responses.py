"""OpenAI's Responses. The server stores none: each request has the whole conversation."""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from localspec.chat.messages import checked_messages
from localspec.chat.template import NO_VARIABLES, Message
from localspec.server.answering import Event, Finished, NewPiece
from localspec.server.completions import logprob_object
from localspec.server.encoding import sse_event
from localspec.server.fields import Fields
from localspec.server.form import Aside, Form, input_tokens_aside, own_fields, usage_of
from localspec.server.question import (
    Question,
    answer_form,
    answer_options,
    asked_logprobs,
    constraint_fields,
    flat_name,
    max_tokens,
    namespaced,
    openai_tools,
    template_variables,
)
from localspec.server.refusal import RequestError
from localspec.server.response_echo import RequestEcho
from localspec.streaming.reply import Piece, Reply
from localspec.tools.tool import CallPiece, ToolCall

logger = logging.getLogger(__name__)

_LOGPROBS = "message.output_text.logprobs"  # in the field "include"
_Kind = Literal["message", "reasoning"]
# For each kind of item: the beginning of its ids, the name of its deltas, its fields at first,
# and those of its content's part.
_KINDS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "message": (
        *("msg_", "output_text", {"role": "assistant", "content": []}),
        {"text": "", "annotations": [], "logprobs": []},
    ),
    "reasoning": ("rs_", "reasoning_text", {"summary": [], "content": []}, {"text": ""}),
    "function_call": ("fc_", "function_call_arguments", {"arguments": ""}, {}),
}
_WHOLE = ("name", "arguments", "text", "logprobs")  # of an item, when it ends
_ONLY_THOUGHT = {"role", "content", "reasoning_content"}


class ResponseForm(Form):
    """A request to /v1/responses, and its answer.

    Its events come in the order in which the parts of an item start and end. The last is
    response.completed, or response.incomplete where the answer was cut.
    """

    def __init__(self, fields: Fields) -> None:
        if fields.flag("background"):
            fields.refuse("background", "Leave it out: answers are given at once.")
        options = answer_options(fields) | constraint_fields(fields) | openai_tools(fields)
        options |= answer_form(fields.object("text").object("format"))
        options["max_tokens"] = max_tokens(fields, "max_output_tokens")
        options["stop"] = fields.texts("stop")
        has_logprobs = _LOGPROBS in (fields.texts("include") or ())
        options["logprobs"] = asked_logprobs(fields, is_asked=has_logprobs)
        messages = _input_messages(fields)
        inputs = [messages] if messages else []
        self.question = Question(fields, inputs, options, variables=_variables(fields))
        self._echo = RequestEcho(fields, self.question)
        self._id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._num_events = 0
        self._item: _Item | None = None  # the open one
        self._output: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []  # of new text, not yet in an item
        self._spaces = namespaced(fields)

    def body(self, finished: Sequence[Finished]) -> Any:
        for each in finished:
            reply = each.reply
            if reply.thoughts:
                self._add("reasoning", reply.thoughts)
            said = (reply.logprobs or ())[reply.num_thought_tokens :]
            self._logprobs = [*map(logprob_object, said)]
            if reply.text:
                self._add("message", reply.text)
            for number, call in enumerate(reply.tool_calls):
                self._add(number, call.json, call)
            self.text_for(each)
        return self._response("completed", self._output, finished)

    def text_for(self, event: Event) -> str:
        begun = self._begin()
        if isinstance(event, NewPiece):
            return begun + self._say(event.piece)
        if isinstance(event, Finished):
            # An empty answer has an item, too.
            name = self._item.name if self._item else ""
            if name == "reasoning" or (name == "" and not event.reply.tool_calls):
                begun += self._switch_to(_Item("message"))
            is_whole = self._item is not None and self._item.is_whole
            return begun + self._end_item("completed" if is_whole else _status(event.reply))
        return begun or self._in_progress(event.field)

    def end(self, finished: Sequence[Finished]) -> str:
        response = self._response("completed", self._output, finished)
        return self._begin() + self._event(f"response.{response['status']}", response=response)

    def failure(self, error: RequestError) -> str:
        response = self._response("failed", self._output, [])
        response["error"] = {"code": _error_code(error), "message": error.sentence}
        return self._begin() + self._event("response.failed", response=response)

    def _begin(self) -> str:
        if self._num_events:
            return ""
        response = self._response("in_progress", [], [])
        return self._event("response.created", response=response) + self._in_progress({})

    def _in_progress(self, more: Mapping[str, Any]) -> str:
        response = self._response("in_progress", [], [])
        return self._event("response.in_progress", response=response, **more)

    def _say(self, piece: Piece) -> str:
        if piece.logprobs is not None and not piece.is_thought:
            self._logprobs.append(logprob_object(piece.logprobs))
        if (call := piece.call) is not None:
            return self._add(call.number, call.json, call, is_whole=call.is_last)
        name: _Kind = "reasoning" if piece.is_thought else "message"
        return self._add(name, piece.text) if piece.text else ""

    def _add(
        self,
        name: _Kind | int,
        text: str,
        call: ToolCall | CallPiece | None = None,
        *,
        is_whole: bool = True,
    ) -> str:
        """Add text to the item of that name, which ends any other. is_whole: of a call."""
        item, switched = self._item, ""
        if item is None or item.name != name:
            own = {} if call is None else self._spaces.get(call.name, {"name": call.name})
            item = _Item(name, {} if call is None else {"call_id": call.id, **own})
            switched = self._switch_to(item)
        item.is_whole = call is not None and is_whole
        if not text:
            return switched
        item.holder[item.text] += text
        more = {**self._position(item), "delta": text, **self._new_logprobs(item)}
        return switched + self._event(f"response.{item.delta}.delta", **more)

    def _new_logprobs(self, item: _Item) -> dict[str, Any]:
        if item.name != "message":
            return {}
        taken, self._logprobs = self._logprobs, []
        item.part["logprobs"] += taken
        return {"logprobs": taken}

    def _position(self, item: _Item) -> dict[str, Any]:
        """The fields of an event that say where its text is."""
        part = {"content_index": 0} if item.part else {}
        return {"item_id": item.json["id"], "output_index": len(self._output), **part}

    def _switch_to(self, item: _Item) -> str:
        """End any open item, and start this one."""
        ended, self._item = self._end_item(), item
        index = len(self._output)
        added = self._event("response.output_item.added", output_index=index, item=item.json)
        return ended + added + self._parted("added", item)

    def _end_item(self, status: str = "completed") -> str:
        item, self._item = self._item, None
        if item is None:
            return ""
        self._new_logprobs(item)
        whole = {name: item.holder[name] for name in _WHOLE if name in item.holder}
        more, index = {**self._position(item), **whole}, len(self._output)
        done = self._event(f"response.{item.delta}.done", **more) + self._parted("done", item)
        item.json["status"] = status
        if item.part:
            item.json["content"] = [item.part]
        self._output.append(item.json)
        ended = self._event("response.output_item.done", output_index=index, item=item.json)
        return done + ended

    def _parted(self, what: str, item: _Item) -> str:
        """The event that the part of an item starts or ends, if it has one."""
        if not item.part:
            return ""
        kind = f"response.content_part.{what}"
        return self._event(kind, **self._position(item), part=item.part)

    def _event(self, kind: str, **fields: Any) -> str:
        number, self._num_events = self._num_events, self._num_events + 1
        return sse_event({"type": kind, "sequence_number": number, **fields}, kind)

    def _response(
        self, status: str, output: Sequence[Mapping[str, Any]], finished: Sequence[Finished]
    ) -> dict[str, Any]:
        is_cut = any(each.reply.finish_reason == "length" for each in finished)
        is_over = status == "completed"
        if is_over and is_cut:
            status = "incomplete"
        response: dict[str, Any] = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self.model.name,
            "output": list(output),
            "usage": _usage(finished, self.question) if is_over else None,
            **self._echo.with_sampling(self.model.sampling),
        }
        if finished:
            response |= own_fields(finished[-1].reply)
        return response


def response_input_tokens(fields: Fields) -> Aside:
    """Answer a request to /v1/responses/input_tokens: the number of tokens in the prompt."""
    messages = _input_messages(fields)
    return input_tokens_aside(fields, messages, openai_tools(fields), _variables(fields))


def _variables(fields: Fields) -> dict[str, Any]:
    return template_variables(fields, effort=fields.object("reasoning").text("effort"))


def _input_messages(fields: Fields) -> list[Message]:
    """The conversation; an empty one loads the model. Raises RequestError, OptionError."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if name in fields:
            fields.refuse(name, "Send the whole conversation as input.")
    given = fields.any("input")
    messages: list[Message] = []
    if given is None:
        fields.refuse("input", "Give a string, or the conversation as a list.")
    if isinstance(given, str):
        messages += [{"role": "user", "content": given}] if given else []
    else:
        for item in fields.objects("input"):
            _add_item(messages, item)
    instructions = fields.text("instructions")
    if instructions and messages:
        messages = [{"role": "system", "content": instructions}, *messages]
    # Thoughts that led to no call are left out.
    kept = [
        each for each in messages if each["content"] is not None or each.keys() != _ONLY_THOUGHT
    ]
    return checked_messages(kept) if kept else []


def _add_item(messages: list[Message], item: Fields) -> None:
    """Add an item to the messages; a call becomes part of the answer before it."""
    kind = item.text("type") or "message"
    if kind == "message":
        said = {"role": item.any("role"), "content": item.any("content")}
        if said["role"] == "assistant" and messages and messages[-1].keys() == _ONLY_THOUGHT:
            said = {**messages.pop(), **said}
        messages.append(said)
    elif kind == "reasoning":
        parts = item.objects("content") or item.objects("summary")
        thought = "\n".join(part.text("text") or "" for part in parts)
        said = {"role": "assistant", "content": None, "reasoning_content": thought}
        messages.append(said)
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        before, name = messages.pop(), flat_name(item.text("name"), item.text("namespace"))
        function = {"name": name, "arguments": item.any("arguments")}
        call = {"id": item.text("call_id"), "function": function}
        messages.append({**before, "tool_calls": [*before.get("tool_calls", ()), call]})
    elif kind == "function_call_output":
        call_id = item.text("call_id")
        messages.append(
            {"role": "tool", "content": item.any("output"), "tool_call_id": call_id}
        )
    else:
        logger.debug("an item of type %.80r is ignored", kind)


class _Item:
    """An item of the output: a message, the thoughts before it, or a call of a tool.

    name: its kind, or the number of the call. called: a call's id, name and namespace. json:
    the item for clients. part: its content's; a call has none. holder, text: the object that
    has its text, and the name that the text has there.
    """

    is_whole = False

    def __init__(self, name: _Kind | int, called: Mapping[str, Any] = NO_VARIABLES) -> None:
        self.name = name
        kind = "function_call" if isinstance(name, int) else name
        prefix, self.delta, own, part = copy.deepcopy(_KINDS[kind])
        item_id = prefix + secrets.token_hex(24)
        self.json = {"id": item_id, "type": kind, "status": "in_progress", **called, **own}
        self.part = {"type": self.delta, **part} if part else {}
        self.holder, self.text = (self.part, "text") if part else (self.json, "arguments")


def _status(reply: Reply) -> str:
    return "incomplete" if reply.finish_reason == "length" else "completed"


def _error_code(error: RequestError) -> str:
    """The code of an error within a response, where OpenAI has other codes than elsewhere.

    Agents look for context_length_exceeded, which is no code of its schema.
    """
    if error.status >= 500:
        return "server_error"
    is_long = error.code == "context_length_exceeded"
    return error.code if is_long else "invalid_prompt"


def _usage(finished: Sequence[Finished], question: Question) -> dict[str, Any]:
    usage = usage_of(finished, question)
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage["total_tokens"],
    }
