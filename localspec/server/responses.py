"""OpenAI's Responses, without a memory: each request brings all that was said."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat.messages import checked_messages
from localspec.server.answering import Event, Finished, Said
from localspec.server.chat_completions import logprob_object
from localspec.server.costs import Usage, timings_of, usage_of
from localspec.server.fields import Fields
from localspec.server.question import (
    Question,
    answer_options,
    max_tokens,
    num_logprobs,
    refuse_format,
    refuse_tool_choice,
)
from localspec.server.refusal import RequestError
from localspec.server.served_models import ServedModel
from localspec.server.tool_text import call_as_text, result_as_text
from localspec.server.writing import event
from localspec.streaming.stream import Piece

logger = logging.getLogger(__name__)

# Items that stand for calls, where their arguments are, and for what came of them.
_CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
}
_LOGPROBS = "message.output_text.logprobs"  # what is included if that is asked for
_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


def read_question(fields: Fields) -> Question:
    """What a request asks; without any input the model is loaded. Raises RequestError."""
    for name in ("previous_response_id", "conversation"):
        if name in fields:
            fields.refuse(name, "Send all that was said: nothing is kept here.")
    if fields.flag("background"):
        fields.refuse("background", "Leave it out: answers are given at once.")
    fields.objects("tools")  # they are passed over: the answer is text
    choice = fields.any("tool_choice")
    refuse_tool_choice(choice.get("type") if isinstance(choice, dict) else choice)
    text = fields.object("text")
    form = None if text is None else text.object("format")
    refuse_format(None if form is None else form.any("type"))
    reasoning = fields.object("reasoning")
    effort = None if reasoning is None else reasoning.text("effort")
    options = answer_options(fields)
    options["max_tokens"] = max_tokens(fields, "max_output_tokens")
    options["stop"] = fields.texts("stop")
    num_top = num_logprobs(fields, "top_logprobs")
    has_logprobs = _LOGPROBS in (fields.texts("include") or ())
    options["logprobs"] = num_top or 0 if has_logprobs else None
    messages = _messages(fields)
    return Question(
        model=fields.text("model"),
        inputs=[messages] if messages else [],
        options=options,
        think=effort != "none",
        streams=bool(fields.flag("stream")),
    )


def _messages(fields: Fields) -> list[dict[str, str]]:
    given = fields.any("input")
    if given is None or isinstance(given, str):
        messages = [{"role": "user", "content": given}] if given else []
    else:
        found = map(_message, fields.objects("input") or [])
        messages = [message for message in found if message is not None]
    instructions = fields.text("instructions")
    if instructions and messages:
        messages = [{"role": "system", "content": instructions}, *messages]
    return messages


def _message(item: Fields) -> dict[str, str] | None:
    """What an item says, as a message of text; None if it says nothing to a model."""
    kind = item.text("type") or "message"
    if kind == "message":
        given = {"role": item.any("role"), "content": item.any("content")}
        (message,) = checked_messages([given])
        return {"role": message["role"], "content": message["content"]}
    if kind in _CALLS:
        name = item.text("name") or kind
        return {"role": "assistant", "content": call_as_text(name, item.any(_CALLS[kind]))}
    if kind in _RESULTS:
        output = item.any("output")
        if isinstance(output, dict):
            output = json.dumps(output)
        (message,) = checked_messages([{"role": "user", "content": output}])
        return {"role": "user", "content": result_as_text(message["content"])}
    if kind != "reasoning":
        logger.debug("an item of type %.80r is passed over", kind)
    return None


class ResponseForm:
    """An answer as Responses have it; see `writing.Form`.

    Its events come in the order in which the parts of an item begin and end, and the last is
    response.completed, also where the answer was cut: clients take any other end for a failure.
    """

    def __init__(self, question: Question, model: ServedModel) -> None:
        self._question = question
        self._id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._model = model.name
        self._num_events = 0
        self._item: _Item | None = None  # the one that is being written
        self._output: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []  # of what was said, not yet in an item
        self._finished: list[Finished] = []

    def whole(self, finished: Sequence[Finished]) -> Any:
        """See `writing.Form.whole`."""
        output = []
        for each in finished:
            if each.reply.thoughts:
                thought = _Item(is_thought=True)
                thought.text = each.reply.thoughts
                output.append(thought.object())
            message = _Item(is_thought=False)
            message.text = each.reply.text
            said = (each.reply.logprobs or ())[each.num_thought :]
            message.logprobs += map(logprob_object, said)
            output.append(message.object())
        return self._response("completed", output, finished)

    def told(self, event: Event) -> str:
        """See `writing.Form.told`."""
        begun = self._begin()
        if isinstance(event, Said):
            return begun + self._say(event.piece)
        if isinstance(event, Finished):
            self._finished.append(event)
            said = self._turn_to(is_thought=False)  # an answer without a word has its item, too
            return begun + said + self._end_item()
        return begun or self._in_progress()

    def end(self) -> str:
        """See `writing.Form.end`."""
        response = self._response("completed", self._output, self._finished)
        return self._begin() + self._event("response.completed", response=response)

    def failure(self, error: RequestError) -> str:
        """See `writing.Form.failure`."""
        response = self._response("failed", self._output, self._finished)
        response["error"] = {"code": error.code, "message": error.sentence}
        return self._begin() + self._event("response.failed", response=response)

    def _begin(self) -> str:
        if self._num_events:
            return ""
        response = self._response("in_progress", [], [])
        return self._event("response.created", response=response) + self._in_progress()

    def _in_progress(self) -> str:
        response = self._response("in_progress", [], [])
        return self._event("response.in_progress", response=response)

    def _say(self, piece: Piece) -> str:
        if piece.logprobs is not None and not piece.is_thought:
            self._logprobs.append(logprob_object(piece.logprobs))
        if not piece.text:
            return ""
        turned = self._turn_to(is_thought=piece.is_thought)
        item = self._item
        assert item is not None
        item.text += piece.text
        place = item.place(len(self._output))
        more = {} if piece.is_thought else {"logprobs": self._take_logprobs(item)}
        kind = f"response.{item.part_kind}.delta"
        return turned + self._event(kind, **place, delta=piece.text, **more)

    def _take_logprobs(self, item: _Item) -> list[dict[str, Any]]:
        """Those of tokens since the last text of a message, of which they are now."""
        taken, self._logprobs = self._logprobs, []
        item.logprobs += taken
        return taken

    def _turn_to(self, *, is_thought: bool) -> str:
        """End an item of the other kind, and begin one of this."""
        if self._item is not None and self._item.is_thought == is_thought:
            return ""
        ended = self._end_item()
        self._item = item = _Item(is_thought=is_thought)
        index = len(self._output)
        added = self._event(
            "response.output_item.added",
            output_index=index,
            item={**item.object(), "status": "in_progress", "content": []},
        )
        part = self._event("response.content_part.added", **item.place(index), part=item.part())
        return ended + added + part

    def _end_item(self) -> str:
        item, self._item = self._item, None
        if item is None:
            return ""
        more = {}
        if not item.is_thought:
            self._take_logprobs(item)
            more = {"logprobs": item.logprobs}
        index = len(self._output)
        self._output.append(item.object())
        place = item.place(index)
        return (
            self._event(f"response.{item.part_kind}.done", **place, text=item.text, **more)
            + self._event("response.content_part.done", **place, part=item.part())
            + self._event(
                "response.output_item.done", output_index=index, item=self._output[-1]
            )
        )

    def _event(self, kind: str, **fields: Any) -> str:
        number, self._num_events = self._num_events, self._num_events + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    def _response(
        self, status: str, output: Sequence[Mapping[str, Any]], finished: Sequence[Finished]
    ) -> dict[str, Any]:
        is_cut = any(each.reply.finish_reason == "length" for each in finished)
        response: dict[str, Any] = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": "incomplete" if is_cut and status == "completed" else status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": None,
            "max_output_tokens": self._question.options.get("max_tokens"),
            "model": self._model,
            "output": list(output),
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": self._question.options.get("temperature"),
            "top_p": self._question.options.get("top_p"),
            "top_logprobs": self._question.options.get("logprobs") or 0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            "metadata": {},
            "usage": None,
        }
        if status == "completed":
            response["usage"] = _usage(usage_of(finished, 1, has_prediction=False))
        if finished:
            response["timings"] = timings_of(finished[-1].reply.stats)
        return response


class _Item:
    """A message, or what was thought before it."""

    def __init__(self, *, is_thought: bool) -> None:
        self.is_thought = is_thought
        self.text = ""
        self.logprobs: list[dict[str, Any]] = []
        self.part_kind = "reasoning_text" if is_thought else "output_text"
        self._id = ("rs_" if is_thought else "msg_") + secrets.token_hex(24)

    def part(self) -> dict[str, Any]:
        if self.is_thought:
            return {"type": "reasoning_text", "text": self.text}
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": self.logprobs,
        }

    def object(self) -> dict[str, Any]:
        common = {"id": self._id, "status": "completed", "content": [self.part()]}
        if self.is_thought:
            return {"type": "reasoning", "summary": [], **common}
        return {"type": "message", "role": "assistant", **common}

    def place(self, index: int) -> dict[str, Any]:
        """Where a part of it stands."""
        return {"item_id": self._id, "output_index": index, "content_index": 0}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.thought},
        "total_tokens": usage.prompt + usage.completion,
    }
