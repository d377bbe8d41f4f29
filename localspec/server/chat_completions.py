"""OpenAI's Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat.messages import checked_messages
from localspec.sampling.logprobs import TokenLogprob, TokenLogprobs
from localspec.server.answering import Finished, NewPiece
from localspec.server.completions import OpenAIForm, openai_options
from localspec.server.costs import LOWEST_LOGPROB, explanation, step_object
from localspec.server.fields import Fields
from localspec.server.question import flagged_logprobs, max_tokens, template_variables
from localspec.server.refusal import RequestError
from localspec.server.tool_fields import answer_form, openai_tools
from localspec.streaming.reply import Reply
from localspec.tools.calls import CallPiece


class ChatCompletion(OpenAIForm):
    """A request to /v1/chat/completions, and its answer."""

    id_prefix = "chatcmpl"
    objects = ("chat.completion", "chat.completion.chunk")

    def __init__(self, fields: Fields) -> None:
        if "audio" in fields or fields.texts("modalities") not in (None, ["text"]):
            raise RequestError("the answer would be audio", "Ask for text.", param="modalities")
        options = openai_options(fields) | openai_tools(fields)
        options |= answer_form(fields.object("response_format"))
        options["max_tokens"] = max_tokens(
            fields, "max_completion_tokens", "max_tokens", "n_predict"
        )
        options["logprobs"] = flagged_logprobs(fields)
        options["prediction"] = _prediction(fields)
        self._explains = bool(fields.flag("explain"))
        messages = checked_messages(fields.any("messages"))
        super().__init__(fields, [messages], options, variables=chat_variables(fields))
        self._has_role: set[int] = set()
        self._started_calls: set[tuple[int, int]] = set()  # numbers of answer and call

    def _whole_choice(self, finished: Finished) -> dict[str, Any]:
        reply = finished.reply
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
            "logprobs": _logprob_content(reply.logprobs),
            "finish_reason": _finish_reason(reply),
        }

    def _choice(self, new: NewPiece) -> dict[str, Any] | None:
        piece = new.piece
        explains = self._explains and bool(piece.token_ids)  # a token may bring no text yet
        if not (piece.text or piece.logprobs or piece.call or explains):
            return None
        choice = self._empty_choice(new.number, None)
        if piece.call is not None:
            choice["delta"]["tool_calls"] = [self._call(new.number, piece.call)]
        else:
            name = "reasoning_content" if piece.is_thought else "content"
            choice["delta"][name] = piece.text
        choice["logprobs"] = _logprob_content(
            None if piece.logprobs is None else [piece.logprobs]
        )
        if explains:
            choice["provenance"] = piece.provenance.value
            if piece.step is not None:
                choice["step"] = step_object(piece.step, new.num_prompt_tokens)
        return choice

    def _own_fields(self, reply: Reply) -> dict[str, Any]:
        told = super()._own_fields(reply)
        return {**told, "explanation": explanation(reply)} if self._explains else told

    def _empty_choice(self, number: int, finished: Finished | None) -> dict[str, Any]:
        """The first choice of an answer has its role."""
        delta = {} if number in self._has_role else {"role": "assistant", "content": ""}
        self._has_role.add(number)
        reason = None if finished is None else _finish_reason(finished.reply)
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": reason}

    def _call(self, answer: int, call: CallPiece) -> dict[str, Any]:
        """More of a call; its id and name come with the first part."""
        arguments = {"arguments": call.json}
        if (answer, call.number) in self._started_calls:
            return {"index": call.number, "function": arguments}
        self._started_calls.add((answer, call.number))
        function = {"name": call.name, **arguments}
        return {"index": call.number, "id": call.id, "type": "function", "function": function}


def chat_variables(fields: Fields) -> dict[str, Any]:
    """What a request says to the chat template. Raises RequestError."""
    return template_variables(fields, effort=fields.text("reasoning_effort"))


def _prediction(fields: Fields) -> str | None:
    prediction = fields.object("prediction")
    content = None if prediction is None else prediction.any("content")
    if content is None:
        return None
    return str(checked_messages([{"role": "user", "content": content}])[0]["content"])


def _logprob_content(found: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"content": [logprob_object(each) for each in found], "refusal": None}


def _finish_reason(reply: Reply) -> str:
    """Why the answer ended."""
    has_called = reply.finish_reason == "stop" and reply.tool_calls
    return "tool_calls" if has_called else reply.finish_reason


def logprob_object(found: TokenLogprobs) -> dict[str, Any]:
    """A token's log-probability, and the best ones at its position, as OpenAI has them."""
    own = TokenLogprob(found.token_id, found.before, found.text)
    return {
        **_one_logprob(own, found.raw),
        "top_logprobs": [_one_logprob(top, found.raw) for top in found.top_before],
    }


def _one_logprob(token: TokenLogprob, raw: Mapping[int, bytes]) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "token": token.text,
        "logprob": max(token.logprob, LOWEST_LOGPROB),
        "bytes": list(raw.get(token.token_id, token.text.encode())),
    }
