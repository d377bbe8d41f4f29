"""llama-server's own endpoints that answer: raw prompts, and texts to be filled in."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.chat.prompt_source import RawSource
from localspec.sampling.logprobs import TokenLogprob, TokenLogprobs
from localspec.server.answering import Event, Finished, NewPiece, ReadingPrompt
from localspec.server.completions import logprob_object, openai_options
from localspec.server.encoding import sse_event
from localspec.server.fields import Fields
from localspec.server.form import Form, own_fields
from localspec.server.question import (
    MOST_ANSWERS,
    FimPrompt,
    Input,
    Question,
    max_tokens,
)
from localspec.server.refusal import RequestError, llama_error
from localspec.streaming.reply import Reply

_STOPS = {"length": "limit", "cancelled": "none"}
_MOST_PROBS = 100  # best tokens at each position: they cost bytes in every event


@dataclass
class _Unsent:
    """Tokens of an answer that are not in an event of its stream yet.

    A token that brings no text of its own waits for the next one.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_said: int = 0
    """All tokens of the answer until now."""


class LlamaCompletion(Form):
    """A request to /completion, and its answer; a list of answers to several prompts."""

    def __init__(self, fields: Fields) -> None:
        options = openai_options(fields)
        limit = max_tokens(fields, "n_predict", "max_tokens")
        self._only_reads = limit == 0  # an editor has the prompt read before it asks
        if self._only_reads:
            limit = 1
        options["max_tokens"] = limit
        options["logprobs"] = fields.whole_from("n_probs", 0, _MOST_PROBS) or None
        self._returns_tokens = bool(fields.flag("return_tokens"))
        self._is_after_sampling = bool(fields.flag("post_sampling_probs"))
        self.question = Question(fields, self._inputs(fields), options)
        # By the index of the answer.
        self._unsent: defaultdict[int, _Unsent] = defaultdict(_Unsent)

    def _inputs(self, fields: Fields) -> list[Input]:
        prompts = fields.prompts("prompt", MOST_ANSWERS, may_be_mixed=True)
        return [RawSource(prompt) for prompt in prompts]

    def body(self, finished: Sequence[Finished]) -> Any:
        answers = [self._whole(answer) for answer in finished]
        if len(answers) > 1:
            return answers
        return answers[0]

    def _whole(self, finished: Finished) -> dict[str, Any]:
        reply = finished.reply
        last = self._final_event(finished)
        if self._only_reads:
            return last
        tokens: list[int] = []
        if self._returns_tokens:
            tokens = list(reply.token_ids)
        probs = self._probabilities(reply.logprobs)
        return {
            **last,
            "content": reply.text,
            "tokens": tokens,
            **probs,
        }

    def text_for(self, event: Event) -> str:
        if isinstance(event, Finished):
            unsent = self._unsent[event.number]
            return sse_event({**self._final_event(event), **self._unsent_fields(unsent)})
        if isinstance(event, ReadingPrompt) and self.question.wants_progress:
            return sse_event({**self._part(0, "", event.num_tokens), **event.field})
        if not isinstance(event, NewPiece):
            return ":\n\n"  # a comment, which shows the client that the server is there
        if self._only_reads:
            return ""
        unsent = self._unsent[event.number]
        unsent.token_ids += event.piece.token_ids
        unsent.logprobs += event.logprobs or ()
        unsent.num_said += len(event.piece.token_ids)
        if not event.piece.text:
            return ""
        part = self._part(event.number, event.piece.text, event.num_prompt_tokens)
        return sse_event({**part, **self._unsent_fields(unsent)})

    def failure(self, error: RequestError) -> str:
        return sse_event(llama_error(error))

    def _part(self, number: int, text: str, num_prompt_tokens: int) -> dict[str, Any]:
        """The fields of a piece."""
        return {
            "index": number,
            "content": text,
            "tokens": [],
            "stop": False,
            "tokens_predicted": self._unsent[number].num_said,
            "tokens_evaluated": num_prompt_tokens,
        }

    def _unsent_fields(self, unsent: _Unsent) -> dict[str, Any]:
        """The fields of the tokens that were not in an event yet; the next event has them."""
        fields = {"tokens": unsent.token_ids, **self._probabilities(unsent.logprobs)}
        unsent.token_ids = []
        unsent.logprobs = []
        return fields

    def _probabilities(self, found: Sequence[TokenLogprobs] | None) -> dict[str, Any]:
        """The field with the probabilities of tokens, if they were asked for."""
        if not found:
            return {}
        describe = logprob_object
        if self._is_after_sampling:
            describe = _after_sampling
        return {"completion_probabilities": [describe(token) for token in found]}

    def _final_event(self, finished: Finished) -> dict[str, Any]:
        reply = finished.reply
        stats = reply.stats
        stop = "word"
        if reply.stopped_by is None:
            stop = "eos"
        return {
            "index": finished.number,
            "content": "",
            "tokens": [],
            "stop": True,
            "model": self.model.name,
            "tokens_predicted": 0 if self._only_reads else stats.completion_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": stats.cached_prompt_tokens,
            "truncated": self._is_context_full(reply),
            "stop_type": _STOPS.get(reply.finish_reason, stop),
            "stopping_word": reply.stopped_by or "",
            **own_fields(reply),
        }

    def _is_context_full(self, reply: Reply) -> bool:
        """Whether the answer ended because the context holds no more."""
        num_tokens = reply.stats.prompt_tokens + reply.stats.completion_tokens
        return reply.finish_reason == "length" and num_tokens >= self.model.context_length


def _after_sampling(found: TokenLogprobs) -> dict[str, Any]:
    """How probable a token was in the distribution that it was drawn from."""
    own = TokenLogprob(found.token_id, found.after, found.text)
    top = [_probability(token, found.raw) for token in found.top_after]
    return {**_probability(own, found.raw), "top_probs": top}


def _probability(token: TokenLogprob, raw: Mapping[int, bytes]) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "token": token.text,
        "prob": math.exp(token.logprob),
        "bytes": list(raw.get(token.token_id, token.text.encode())),
    }


class Infill(LlamaCompletion):
    """A request to /infill: a text to be filled in between two others."""

    def _inputs(self, fields: Fields) -> list[Input]:
        before = _side(fields, "input_prefix")
        after = _side(fields, "input_suffix")
        files = []
        for file in fields.objects("input_extra"):
            text = file.text("text")
            if text is None:
                file.refuse("text", "Give the file's text.")
            files.append((file.text("filename") or "file", text))
        typed = fields.text("prompt") or ""  # the beginning of the current line
        return [FimPrompt(before + typed, after, files)]


def _side(fields: Fields, name: str) -> str:
    """The text on one side of the gap."""
    text = fields.text(name)
    if text is None:
        fields.refuse(name, "Give the text on that side; it may be empty.")
    return text
