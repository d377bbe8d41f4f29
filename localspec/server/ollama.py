"""Ollama's protocol: chat and generate, whose answers are lines of JSON, and its models."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, ClassVar

from localspec.chat.call_forms import takes_tools
from localspec.chat.messages import checked_messages
from localspec.chat.prompt_source import RawSource
from localspec.sampling.logprobs import TokenLogprobs
from localspec.server.answering import Event, Finished, NewPiece, Service
from localspec.server.completions import logprob_object
from localspec.server.encoding import compact_json, sent_bytes
from localspec.server.fields import Fields
from localspec.server.form import Form, Handler, in_thread, own_fields
from localspec.server.question import (
    FimPrompt,
    Input,
    Question,
    answer_options,
    asked_logprobs,
    openai_tools,
    template_variables,
)
from localspec.server.refusal import RequestError
from localspec.server.served_models import ServedEmbedder, ServedFile, ServedModel, ServedModels
from localspec.streaming.thought_families import FAMILIES
from localspec.tools.tool import CallPiece, ToolCall, whole_calls

# Clients compare it with the first version that has what they need.
OLLAMA_VERSION = "0.12.0"
_LONGEST_S = 9e9  # for a time in the future: some 285 years, as in Ollama
_NOT_OFFERED = ("pull", "push", "create", "copy", "delete", "blobs")


def tags(models: ServedModels) -> dict[str, Any]:
    """The list of models."""
    return {"models": [_tag(model) for model in models.listed]}


def show(fields: Fields) -> Handler:
    """Answer a request to /api/show: the facts about a model."""
    older = fields.text("name")
    name = fields.text("model") or older

    async def result(service: Service) -> dict[str, Any]:
        model = service.models.listed_named(name)
        # A template is foreign code, and can take long.
        tools = await in_thread(partial(_tools_of, model))
        return {
            "modelfile": "",
            "parameters": "",
            "template": model.chat_template,
            "details": _model_details(model),
            "model_info": {
                "general.architecture": model.architecture,
                "general.basename": model.name,
                "general.parameter_count": model.num_weights,
                f"{model.architecture}.context_length": model.context_length,
                f"{model.architecture}.embedding_length": model.width,
                **tools,
            },
            "capabilities": _capabilities(model),
            "modified_at": _utc(model.created),
        }

    return result


def loaded(models: ServedModels, unload_s: float) -> dict[str, Any]:
    """The loaded models. unload_s: seconds without a request after which one is closed."""
    found = []
    for model in models.listed:
        if model.engine is not None:
            left_s = min(max(model.left_s(unload_s), 0.0), _LONGEST_S)
            part = {**_tag(model), "size": model.needed_bytes}
            part["expires_at"] = _utc(time.time() + left_s)
            part["context_length"] = model.context_length
            if model.gpu_bytes is not None:
                part["size_vram"] = model.gpu_bytes
            if model.device:
                part["device"] = model.device
            found.append(part)
    return {"models": found}


def not_offered(path: str) -> RequestError | None:
    """The refusal for a path of Ollama's that this server lacks; None for any other path."""
    root, name, *_ = [*path.removeprefix("/").split("/"), ""]
    if root != "api" or name not in _NOT_OFFERED:
        return None
    hint = "Use localspec download or localspec models on the command line."
    return RequestError(f"/api/{name} is not offered by this server", hint, status=501)


def _tag(model: ServedFile[Any]) -> dict[str, Any]:
    # It changes with the file: hashing all of that takes too long for a list.
    digest = hashlib.sha256(sent_bytes(f"{model.name} {model.size_bytes} {model.created}"))
    # Some clients add the tag to a name, and look for that in the list.
    name = model.name if ":" in model.name else f"{model.name}:latest"
    return {
        "name": name,
        "model": name,
        "modified_at": _utc(model.created),
        "size": model.size_bytes,
        "digest": digest.hexdigest(),
        "details": _model_details(model),
    }


def _capabilities(model: ServedModel | ServedEmbedder) -> list[str]:
    if isinstance(model, ServedEmbedder):
        if model.ranks:
            return []
        return ["embedding"]
    template = model.chat_template
    thinks = any(all(sign in template for sign in family.signs) for family in FAMILIES)
    # Every model: where the template has no tools they are described in words.
    more = {"thinking": thinks, "insert": model.fim is not None, "vision": model.sees}
    return ["completion", "tools", *(name for name, has in more.items() if has)]


def _tools_of(model: ServedModel | ServedEmbedder) -> dict[str, str]:
    """Where a model reads of tools: in a template of its own, or in a message in words."""
    if isinstance(model, ServedEmbedder):
        return {}
    has_tools = any(map(takes_tools, (model.tool_template, model.chat_template)))
    return {"localspec.tools": "in the template" if has_tools else "in words"}


def _model_details(model: ServedFile[Any]) -> dict[str, Any]:
    number = model.num_weights
    counted = f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"
    return {
        "parent_model": "",
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": model.size_label or counted,
        "quantization_level": model.quantization,
    }


def _utc(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, timezone.utc).isoformat()


_THINK_LEVELS = ("low", "medium", "high", "max")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_DURATION = re.compile(rf"[-+]?(?:0|(?:{_DURATION_PART.pattern})+)")


class OllamaForm(Form):
    """A request in Ollama's protocol, and its answer in lines of JSON."""

    content_type = "application/x-ndjson"
    is_chat: ClassVar[bool]
    """Whether the text of an answer stands in a message."""

    def __init__(
        self, fields: Fields, inputs: Sequence[Input], tools: Mapping[str, Any]
    ) -> None:
        given = fields.object("options")
        options = {**answer_options(given), **_format_options(fields), **tools}
        num_predict = given.whole("num_predict") or 0
        options["max_tokens"] = num_predict if num_predict > 0 else None  # else what fits
        options["stop"] = given.texts("stop")
        if (num_drafted := given.whole("draft_num_predict")) is not None:
            options["draft_tokens"] = num_drafted
        options["logprobs"] = asked_logprobs(fields, is_asked=fields.flag("logprobs"))
        variables = _variables(fields)
        keep_s = _keep_s(fields)
        self.question = Question(fields, inputs, options, variables=variables, keep_s=keep_s)
        self.question.streams = fields.flag("stream") is not False and bool(inputs)
        self._num_ctx = given.whole("num_ctx")
        self._started_s = time.monotonic()
        self._calls: list[CallPiece] = []  # all pieces of them

    def body(self, finished: Sequence[Finished]) -> Any:
        """The answer, or without a question whether the model was loaded or unloaded."""
        if not finished:
            reason = "unload" if self.question.keep_s == 0 else "load"
            return {**self._part(""), "done": True, "done_reason": reason}
        (answer,) = finished
        reply = answer.reply
        calls = list(enumerate(reply.tool_calls))
        part = self._part(reply.text, reply.thoughts, calls, reply.logprobs)
        return {**part, **self._end_of(answer)}

    def text_for(self, event: Event) -> str:
        """A line; empty pieces for a client that waits, or it may hang up."""
        if isinstance(event, Finished):
            return _json_line({**self._part(""), **self._end_of(event)})
        if not isinstance(event, NewPiece):
            return _json_line({**self._part(""), **event.field})
        piece = event.piece
        calls = list[tuple[int, ToolCall]]()
        if piece.call is not None:
            self._calls.append(piece.call)
            if piece.call.is_last:  # in this protocol the arguments are an object
                calls = [(piece.call.number, whole_calls(self._calls)[-1])]
        if not piece.text and not calls and piece.logprobs is None:
            return ""
        texts = ("", piece.text) if piece.is_thought else (piece.text, "")
        return _json_line(self._part(*texts, calls, event.logprobs))

    def failure(self, error: RequestError) -> str:
        return _json_line({"error": error.sentence})

    def _part(
        self,
        text: str,
        thoughts: str = "",
        calls: Sequence[tuple[int, ToolCall]] = (),
        logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> dict[str, Any]:
        called = [
            {
                "id": call.id,
                "function": {"index": number, "name": call.name, "arguments": call.arguments},
            }
            for number, call in calls
        ]
        found = {"thinking": thoughts, "tool_calls": called}
        more = {name: each for name, each in found.items() if each}
        message = {"role": "assistant", "content": text, **more}
        said = {"message": message} if self.is_chat else {"response": text, **more}
        part: dict[str, Any] = {
            "model": self.model.name,
            "created_at": _utc(time.time()),
            **said,
        }
        if logprobs is not None:
            part["logprobs"] = [logprob_object(each) for each in logprobs]
        return {**part, "done": False}

    def _end_of(self, finished: Finished) -> dict[str, Any]:
        """The further fields of the last piece: why the answer ended, and its costs."""
        reply = finished.reply
        stats = finished.reply.stats
        has_called = reply.finish_reason == "tool_calls"  # for which Ollama has no word
        wanted = self._num_ctx or 0
        here = self.model.context_length
        warning = {}
        if wanted > here:  # Ollama would load the model again
            message = f"num_ctx is {wanted}; the context holds {here} tokens"
            warning = {"warning": f"{message}. Start the server with --ctx {wanted}."}
        return {
            "done": True,
            "done_reason": "stop" if has_called else reply.finish_reason,
            "total_duration": _ns(time.monotonic() - self._started_s),
            "load_duration": _ns(self.model.loading_s(self._started_s)),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _ns(stats.time_to_first_token_s),
            "eval_count": stats.completion_tokens,
            "eval_duration": max(_ns(stats.decode_time_s), 1),  # clients divide by it
            **own_fields(reply),
            **warning,
        }


class OllamaChat(OllamaForm):
    """A request to /api/chat, and its answer."""

    is_chat = True

    def __init__(self, fields: Fields) -> None:
        messages = fields.objects("messages")
        given = [_message_of(each) for each in messages]
        inputs = [checked_messages(given)] if given else []
        super().__init__(fields, inputs, openai_tools(fields))


class OllamaGenerate(OllamaForm):
    """A request to /api/generate, and its answer."""

    is_chat = False

    def __init__(self, fields: Fields) -> None:
        if fields.text("template"):
            fields.refuse("template", "Leave it out, or set raw and put it around the prompt.")
        given = _generate_input(fields)
        super().__init__(fields, [] if given is None else [given], {})


def _generate_input(fields: Fields) -> Input | None:
    """The input of /api/generate: messages, a raw prompt, or nothing. Raises RequestError."""
    prompt = fields.text("prompt")
    system = fields.text("system")
    is_raw = fields.flag("raw")
    if fields.any("context"):
        fields.refuse("context", "Send the conversation to /api/chat.")
    if is_raw and system:
        fields.refuse("raw", "Put the system text into the prompt, or leave raw out.")
    images = _images(fields)
    after = fields.text("suffix")
    if images and (is_raw or after):
        fields.refuse("images", "Leave them out of a raw prompt, or one with a suffix.")
    if not prompt and not images:
        return None
    if prompt and after:
        return FimPrompt(prompt, after)
    if prompt and is_raw:
        return RawSource(prompt)
    asked = [*images, {"type": "text", "text": prompt or ""}]
    said = [{"role": "system", "content": system}] if system else []
    return checked_messages([*said, {"role": "user", "content": asked}])


def _message_of(fields: Fields) -> dict[str, Any]:
    content = fields.any("content")
    if images := _images(fields):
        content = [*images, {"type": "text", "text": fields.text("content") or ""}]
    return {
        "role": (fields.text("role") or "").lower(),
        "content": content,
        "reasoning_content": fields.text("thinking"),
        "tool_calls": fields.any("tool_calls"),
        "name": fields.text("tool_name"),
        "tool_call_id": fields.text("tool_call_id"),
    }


def _images(fields: Fields) -> list[dict[str, Any]]:
    """Parts of a message: Ollama's clients send files in base64."""
    images = fields.any("images") or []
    if not isinstance(images, list):
        fields.refuse("images", "Give a list of files in base64.")
    return [{"type": "image_url", "image_url": f"data:;base64,{each}"} for each in images]


def _format_options(fields: Fields) -> dict[str, Any]:
    value = fields.any("format")
    if value in (None, ""):
        return {}
    if value == "json":
        return {"json_schema": {"type": "object"}}
    if not isinstance(value, Mapping):
        fields.refuse("format", 'Give "json" or a JSON schema.')
    return {"json_schema": value}


def _variables(fields: Fields) -> dict[str, Any]:
    value = fields.any("think")
    if value is not None and not isinstance(value, bool) and value not in _THINK_LEVELS:
        fields.refuse("think", f"Give true, false, or one of {', '.join(_THINK_LEVELS)}.")
    level = value if isinstance(value, str) else None
    thinks = None if value is None else value is not False
    return template_variables(fields, thinks=thinks, effort=level)


def _keep_s(fields: Fields) -> float | None:
    """How many seconds the model stays loaded without a question; below 0 is forever."""
    value = fields.any("keep_alive")
    if value is None:
        return None
    if isinstance(value, str) and _DURATION.fullmatch(value):  # as Go writes them: 1h30m
        parts = _DURATION_PART.findall(value)
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
        value = -seconds if value.startswith("-") else seconds
    if isinstance(value, bool) or not isinstance(value, int | float):
        fields.refuse("keep_alive", 'Give seconds, or a string such as "10m"; -1 is forever.')
    if value < 0:
        return math.inf
    return float(min(value, 1e18))


def _json_line(value: Any) -> str:
    return compact_json(value) + "\n"


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)
