"""llama-server's own completions: /completion, and /infill for editors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.server.answering import Event, Finished, NewPiece
from localspec.server.completions import openai_options, raw_prompts
from localspec.server.costs import own_fields
from localspec.server.encoding import sse_event
from localspec.server.fields import Fields
from localspec.server.form import Form
from localspec.server.infill import FimPrompt
from localspec.server.question import Input, Question, RawPrompt, max_tokens
from localspec.server.refusal import RequestError, openai_error

_STOPS = {"length": "limit", "cancelled": "none"}


class LlamaCompletion(Form):
    """A request to /completion, and its answer."""

    def __init__(self, fields: Fields) -> None:
        options = openai_options(fields)
        limit = max_tokens(fields, "n_predict", "max_tokens")
        self._only_reads = limit == 0  # as an editor does before it asks
        options["max_tokens"] = 1 if self._only_reads else limit
        self.question = Question(fields, [self._input(fields)], options)

    def _input(self, fields: Fields) -> Input:
        value = fields.any("prompt")
        if isinstance(value, list) and {type(each) for each in value} == {int, str}:
            return RawPrompt(value)
        prompts = raw_prompts(fields)
        if len(prompts) != 1:
            fields.refuse("prompt", "Give one: a string, token ids, or both in one list.")
        return prompts[0]

    def body(self, finished: Sequence[Finished]) -> Any:
        return {**self._last(finished[-1]), "content": self._shown(finished[-1].reply.text)}

    def text_for(self, event: Event) -> str:
        if isinstance(event, Finished):
            return sse_event(self._last(event))
        if not isinstance(event, NewPiece):
            return ":\n\n"  # a comment, so that the client sees that the server is there
        text = self._shown(event.piece.text)
        return sse_event({"content": text, "stop": False}) if text else ""

    def end(self, finished: Sequence[Finished]) -> str:
        return ""

    def failure(self, error: RequestError) -> str:
        return sse_event(openai_error(error))

    def _shown(self, text: str) -> str:
        return "" if self._only_reads else text

    def _last(self, finished: Finished) -> dict[str, Any]:
        reply, stats = finished.reply, finished.reply.stats
        stop = "eos" if reply.stopped_by is None else "word"
        return {
            "index": 0,
            "content": "",
            "stop": True,
            "model": self._model.name,
            "tokens_predicted": 0 if self._only_reads else stats.completion_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": stats.cached_prompt_tokens,
            "truncated": False,
            "stop_type": _STOPS.get(reply.finish_reason, stop),
            "stopping_word": reply.stopped_by or "",
            **own_fields(reply),
        }


class Infill(LlamaCompletion):
    """A request to /infill: a text to be filled in between two others."""

    def _input(self, fields: Fields) -> Input:
        before, after = fields.text("input_prefix"), fields.text("input_suffix")
        for name, value in (("input_prefix", before), ("input_suffix", after)):
            if value is None:
                fields.refuse(name, "Give the text on that side; it may be empty.")
        files = []
        for each in fields.objects("input_extra") or []:
            text = each.text("text")
            if text is None:
                each.refuse("text", "Give the file's text.")
            files.append((each.text("filename") or "file", text))
        begun = fields.text("prompt") or ""  # of the line that is being typed
        return FimPrompt(f"{before}{begun}", after or "", files)
