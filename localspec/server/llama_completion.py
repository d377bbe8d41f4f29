"""llama-server's endpoints /completion, for raw prompts, and /infill, for gaps in texts."""

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
from localspec.server.form import Form, extra_fields
from localspec.server.question import (
    MOST_ANSWERS,
    FimPrompt,
    Input,
    Question,
    max_tokens,
)
from localspec.server.refusal import RequestError, llama_error
from localspec.streaming.reply import Reply

# The field "stop_type" for these reasons of an answer's end; the others have "word" or "eos".
_STOP_TYPES = {"length": "limit", "cancelled": "none"}
_MOST_PROBS = 100  # most probable tokens at each position, in every event of a stream
_COMMENT = ":\n\n"  # a server-sent event without data: the client sees that the server lives


@dataclass
class _Unsent:
    """The tokens of an answer that no event of its stream has had yet.

    A token without a text of its own waits for the next token with a text.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_tokens: int = 0
    """All tokens of the answer until now, including those that were sent."""


class LlamaCompletion(Form):
    """A request to /completion, and its answer.

    If there are several prompts, the response is a list of the answers to them.
    """

    def __init__(self, fields: Fields) -> None:
        options = openai_options(fields)
        limit = max_tokens(fields, "n_predict", "max_tokens")
        # Editors have the prompt read in advance: it stays cached. The one token is not sent.
        self._only_reads = limit == 0
        if self._only_reads:
            limit = 1
        options["max_tokens"] = limit
        options["logprobs"] = fields.integer_between("n_probs", 0, _MOST_PROBS) or None
        self._returns_tokens = bool(fields.flag("return_tokens"))
        self._has_probs_after_sampling = bool(fields.flag("post_sampling_probs"))
        self.question = Question(fields, self._inputs(fields), options)
        # The unsent tokens of each answer, by its index.
        self._unsent: defaultdict[int, _Unsent] = defaultdict(_Unsent)

    def _inputs(self, fields: Fields) -> list[Input]:
        """The inputs of the question. Raises RequestError."""
        prompts = fields.prompts("prompt", MOST_ANSWERS, may_be_mixed=True)
        return [RawSource(prompt) for prompt in prompts]

    def body(self, finished: Sequence[Finished]) -> Any:
        """The response, to be written as JSON: the answer, or a list if there are several."""
        answers = [self._whole_answer(answer) for answer in finished]
        if len(answers) > 1:
            return answers
        return answers[0]

    def _whole_answer(self, finished: Finished) -> dict[str, Any]:
        """A whole answer, with all fields of the last event of a stream."""
        reply = finished.reply
        answer = self._end_fields(finished)
        if self._only_reads:
            return answer
        answer["content"] = reply.text
        if self._returns_tokens:
            answer["tokens"] = list(reply.token_ids)
        answer |= self._probabilities(reply.logprobs)
        return answer

    def text_for(self, event: Event) -> str:
        """The event of the stream for something that happened; "" if it says nothing."""
        if isinstance(event, Finished):
            unsent_fields = self._take_unsent(event.number)
            return sse_event({**self._end_fields(event), **unsent_fields})
        if isinstance(event, ReadingPrompt) and self.question.wants_progress:
            fields = self._piece_fields(0, "", event.num_tokens)
            return sse_event({**fields, **event.field})
        if not isinstance(event, NewPiece):
            return _COMMENT
        if self._only_reads:
            return ""
        piece = event.piece
        unsent = self._unsent[event.number]
        unsent.token_ids += piece.token_ids
        unsent.logprobs += event.logprobs or ()
        unsent.num_tokens += len(piece.token_ids)
        if not piece.text:
            return ""
        fields = self._piece_fields(event.number, piece.text, event.num_prompt_tokens)
        return sse_event({**fields, **self._take_unsent(event.number)})

    def failure(self, error: RequestError) -> str:
        """The last event of the stream after an error."""
        return sse_event(llama_error(error))

    def _piece_fields(self, number: int, text: str, num_prompt_tokens: int) -> dict[str, Any]:
        """The fields of an event for a piece of an answer, without its tokens.

        Args:
            number: the index of the answer.
            text: the piece's text.
            num_prompt_tokens: all tokens of the prompt.
        """
        return {
            "index": number,
            "content": text,
            "tokens": [],
            "stop": False,
            "tokens_predicted": self._unsent[number].num_tokens,
            "tokens_evaluated": num_prompt_tokens,
        }

    def _take_unsent(self, number: int) -> dict[str, Any]:
        """The fields of the unsent tokens of an answer. They count as sent afterwards.

        Args:
            number: the index of the answer.
        """
        unsent = self._unsent[number]
        fields = {"tokens": unsent.token_ids, **self._probabilities(unsent.logprobs)}
        unsent.token_ids = []
        unsent.logprobs = []
        return fields

    def _probabilities(self, logprobs: Sequence[TokenLogprobs] | None) -> dict[str, Any]:
        """The field with the probabilities of tokens; no field if there are none."""
        if not logprobs:
            return {}
        describe = logprob_object
        if self._has_probs_after_sampling:
            describe = _probs_after_sampling
        return {"completion_probabilities": [describe(token) for token in logprobs]}

    def _end_fields(self, finished: Finished) -> dict[str, Any]:
        """The fields of the last event of an answer, which has no text of its own."""
        reply = finished.reply
        stats = reply.stats
        num_tokens = stats.completion_tokens
        if self._only_reads:
            num_tokens = 0
        stop_type = "word"
        if reply.stopped_by is None:
            stop_type = "eos"
        return {
            "index": finished.number,
            "content": "",
            "tokens": [],
            "stop": True,
            "model": self.model.name,
            "tokens_predicted": num_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": stats.cached_prompt_tokens,
            "truncated": self._is_context_full(reply),
            "stop_type": _STOP_TYPES.get(reply.finish_reason, stop_type),
            "stopping_word": reply.stopped_by or "",
            **extra_fields(reply),
        }

    def _is_context_full(self, reply: Reply) -> bool:
        """Whether the answer ended because the context is full."""
        num_tokens = reply.stats.prompt_tokens + reply.stats.completion_tokens
        return reply.finish_reason == "length" and num_tokens >= self.model.context_length


def _probs_after_sampling(token: TokenLogprobs) -> dict[str, Any]:
    """The probabilities of a token and of the most probable ones at its position.

    They are those in the distribution that the token was drawn from, after temperature,
    filters and penalties.
    """
    drawn = TokenLogprob(token.token_id, token.after, token.text)
    return {
        **_prob_fields(drawn, token.raw),
        "top_probs": [_prob_fields(top, token.raw) for top in token.top_after],
    }


def _prob_fields(token: TokenLogprob, raw: Mapping[int, bytes]) -> dict[str, Any]:
    """The fields of one token and its probability.

    Args:
        token: the token.
        raw: the bytes of tokens by their ids, where these are not the bytes of the texts.
    """
    return {
        "id": token.token_id,
        "token": token.text,
        "prob": math.exp(token.logprob),
        "bytes": list(raw.get(token.token_id, token.text.encode())),
    }


class Infill(LlamaCompletion):
    """A request to /infill: the model fills in a gap between two texts."""

    def _inputs(self, fields: Fields) -> list[Input]:
        """The gap to be filled in, with the other files. Raises RequestError."""
        before = _text_beside_gap(fields, "input_prefix")
        after = _text_beside_gap(fields, "input_suffix")
        files = []
        for file in fields.objects("input_extra"):
            text = file.text("text")
            if text is None:
                file.refuse("text", "Give the file's text.")
            name = file.text("filename") or "file"
            files.append((name, text))
        line_start = fields.text("prompt") or ""  # what the user has typed on the current line
        return [FimPrompt(before + line_start, after, files)]


def _text_beside_gap(fields: Fields, name: str) -> str:
    """The text in a field that every request to /infill needs. Raises RequestError."""
    text = fields.text(name)
    if text is None:
        fields.refuse(name, "Give the text on that side; it may be empty.")
    return text
