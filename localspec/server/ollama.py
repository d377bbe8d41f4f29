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
from localspec.server.form import Form, Handler, extra_fields, in_thread
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

# Clients compare it with the first version of Ollama that has what they need.
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
    """The loaded models.

    Args:
        models: the server's.
        unload_s: seconds without a request after which a model is closed.
    """
    running = []
    for model in models.listed:
        if model.engine is None:
            continue
        left_s = min(max(model.left_s(unload_s), 0.0), _LONGEST_S)
        facts = {**_tag(model), "size": model.needed_bytes}
        facts["expires_at"] = _utc(time.time() + left_s)
        facts["context_length"] = model.context_length
        if model.gpu_bytes is not None:
            facts["size_vram"] = model.gpu_bytes
        if model.device:
            facts["device"] = model.device
        running.append(facts)
    return {"models": running}


def not_offered(path: str) -> RequestError | None:
    """The refusal for a path of Ollama's that this server lacks; None for any other path."""
    root, _, rest = path.removeprefix("/").partition("/")
    name = rest.partition("/")[0]
    if root != "api" or name not in _NOT_OFFERED:
        return None
    hint = "Use localspec download or localspec models on the command line."
    return RequestError(f"/api/{name} is not offered by this server", hint, status=501)


def _tag(model: ServedFile[Any]) -> dict[str, Any]:
    # The digest changes with the file. To hash the whole file would take too long for a list.
    digest = hashlib.sha256(sent_bytes(f"{model.name} {model.size_bytes} {model.created}"))
    # Some clients add the tag to a name, and look for the result in the list.
    name = model.name
    if ":" not in name:
        name = f"{name}:latest"
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
    # Every model has tools: if its template has none, they are described in words.
    capabilities = ["completion", "tools"]
    if any(_has_signs(model.chat_template, family.signs) for family in FAMILIES):
        capabilities.append("thinking")
    if model.fim is not None:
        capabilities.append("insert")
    if model.sees:
        capabilities.append("vision")
    return capabilities


def _has_signs(template: str, signs: Sequence[str]) -> bool:
    return all(sign in template for sign in signs)


def _tools_of(model: ServedModel | ServedEmbedder) -> dict[str, str]:
    """Where a model reads about tools: in a template of its own, or in a message in words."""
    if isinstance(model, ServedEmbedder):
        return {}
    if takes_tools(model.tool_template) or takes_tools(model.chat_template):
        return {"localspec.tools": "in the template"}
    return {"localspec.tools": "in words"}


def _model_details(model: ServedFile[Any]) -> dict[str, Any]:
    number = model.num_weights
    counted = f"{number / 1e6:.1f}M"
    if number >= 1e9:
        counted = f"{number / 1e9:.1f}B"
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
_UNITS_S = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_DURATION = re.compile(rf"[-+]?(?:0|(?:{_DURATION_PART.pattern})+)")


class OllamaForm(Form):
    """A request in Ollama's protocol, and its answer in lines of JSON."""

    content_type = "application/x-ndjson"
    is_chat: ClassVar[bool]
    """Whether the text of an answer stands in a message."""

    def __init__(
        self,
        fields: Fields,
        inputs: Sequence[Input],
        tools: Mapping[str, Any],
    ) -> None:
        given = fields.object("options")
        options = {
            **answer_options(given),
            **_format_options(fields),
            **tools,
        }
        num_predict = given.integer("num_predict") or 0
        options["max_tokens"] = None  # as many as the context holds
        if num_predict > 0:
            options["max_tokens"] = num_predict
        options["stop"] = given.texts("stop")
        num_drafted = given.integer("draft_num_predict")
        if num_drafted is not None:
            options["draft_tokens"] = num_drafted
        options["logprobs"] = asked_logprobs(fields, is_asked=fields.flag("logprobs"))
        variables = _variables(fields)
        keep_s = _keep_s(fields)
        self.question = Question(
            fields,
            inputs,
            options,
            variables=variables,
            keep_s=keep_s,
        )
        self.question.streams = fields.flag("stream") is not False and bool(inputs)
        self._num_ctx = given.integer("num_ctx")
        self._started_s = time.monotonic()
        self._calls: list[CallPiece] = []  # all pieces of calls so far

    def body(self, finished: Sequence[Finished]) -> Any:
        """The answer; without a question, whether the model was loaded or unloaded."""
        if not finished:
            reason = "load"
            if self.question.keep_s == 0:
                reason = "unload"
            return {
                **self._part(""),
                "done": True,
                "done_reason": reason,
            }
        (answer,) = finished
        reply = answer.reply
        calls = list(enumerate(reply.tool_calls))
        part = self._part(reply.text, reply.thoughts, calls, reply.logprobs)
        return {**part, **self._end_of(answer)}

    def text_for(self, event: Event) -> str:
        """The line of an event; "" if nothing is to be sent.

        While the request waits or the prompt is read, the piece is empty: a client that gets
        nothing for long may hang up.
        """
        if isinstance(event, Finished):
            return _json_line({**self._part(""), **self._end_of(event)})
        if not isinstance(event, NewPiece):
            return _json_line({**self._part(""), **event.field})
        piece = event.piece
        calls = list[tuple[int, ToolCall]]()
        if piece.call is not None:
            self._calls.append(piece.call)
            # Only whole calls are sent: in this protocol the arguments are an object.
            if piece.call.is_last:
                call = whole_calls(self._calls)[-1]
                calls.append((piece.call.number, call))
        if not piece.text and not calls and piece.logprobs is None:
            return ""
        text = piece.text
        thoughts = ""
        if piece.is_thought:
            text = ""
            thoughts = piece.text
        return _json_line(self._part(text, thoughts, calls, event.logprobs))

    def failure(self, error: RequestError) -> str:
        return _json_line({"error": error.sentence})

    def _part(
        self,
        text: str,
        thoughts: str = "",
        calls: Sequence[tuple[int, ToolCall]] = (),
        logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if thoughts:
            more["thinking"] = thoughts
        if calls:
            more["tool_calls"] = [_called(number, call) for number, call in calls]
        part: dict[str, Any] = {"model": self.model.name, "created_at": _utc(time.time())}
        if self.is_chat:
            part["message"] = {
                "role": "assistant",
                "content": text,
                **more,
            }
        else:
            part |= {"response": text, **more}
        if logprobs is not None:
            part["logprobs"] = [logprob_object(token) for token in logprobs]
        part["done"] = False
        return part

    def _end_of(self, finished: Finished) -> dict[str, Any]:
        """The further fields of the last piece: why the answer ended, and its costs."""
        reply = finished.reply
        stats = reply.stats
        reason: str = reply.finish_reason
        if reason == "tool_calls":  # Ollama has no word for it
            reason = "stop"
        wanted = self._num_ctx or 0
        here = self.model.context_length
        warning = {}
        if wanted > here:  # Ollama would load the model again
            message = f"num_ctx is {wanted}; the context holds {here} tokens"
            warning = {"warning": f"{message}. Start the server with --ctx {wanted}."}
        return {
            "done": True,
            "done_reason": reason,
            "total_duration": _ns(time.monotonic() - self._started_s),
            "load_duration": _ns(self.model.loading_s(self._started_s)),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _ns(stats.time_to_first_token_s),
            "eval_count": stats.completion_tokens,
            "eval_duration": max(_ns(stats.decode_time_s), 1),  # clients divide by it
            **extra_fields(reply),
            **warning,
        }


def _called(number: int, call: ToolCall) -> dict[str, Any]:
    """A call in a message.

    Args:
        number: its index among the answer's calls.
        call: the call.
    """
    function = {
        "index": number,
        "name": call.name,
        "arguments": call.arguments,
    }
    return {"id": call.id, "function": function}


class OllamaChat(OllamaForm):
    """A request to /api/chat, and its answer."""

    is_chat = True

    def __init__(self, fields: Fields) -> None:
        messages = [_message_of(message) for message in fields.objects("messages")]
        inputs = []
        if messages:
            inputs.append(checked_messages(messages))
        super().__init__(fields, inputs, openai_tools(fields))


class OllamaGenerate(OllamaForm):
    """A request to /api/generate, and its answer."""

    is_chat = False

    def __init__(self, fields: Fields) -> None:
        if fields.text("template"):
            fields.refuse("template", "Leave it out, or set raw and put it around the prompt.")
        inputs = []
        given = _generate_input(fields)
        if given is not None:
            inputs.append(given)
        super().__init__(fields, inputs, {})


def _generate_input(fields: Fields) -> Input | None:
    """The input of /api/generate: messages, a raw prompt, or nothing. Raises RequestError."""
    prompt = fields.text("prompt")
    system = fields.text("system")
    is_raw = fields.flag("raw")
    if fields.value("context"):
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
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": system})
    content = [*images, {"type": "text", "text": prompt or ""}]
    messages.append({"role": "user", "content": content})
    return checked_messages(messages)


def _message_of(fields: Fields) -> dict[str, Any]:
    content = fields.value("content")
    images = _images(fields)
    if images:
        content = [*images, {"type": "text", "text": fields.text("content") or ""}]
    return {
        "role": (fields.text("role") or "").lower(),
        "content": content,
        "reasoning_content": fields.text("thinking"),
        "tool_calls": fields.value("tool_calls"),
        "name": fields.text("tool_name"),
        "tool_call_id": fields.text("tool_call_id"),
    }


def _images(fields: Fields) -> list[dict[str, Any]]:
    """Parts of a message: Ollama's clients send files in base64."""
    images = fields.value("images") or []
    if not isinstance(images, list):
        fields.refuse("images", "Give a list of files in base64.")
    return [{"type": "image_url", "image_url": f"data:;base64,{image}"} for image in images]


def _format_options(fields: Fields) -> dict[str, Any]:
    value = fields.value("format")
    if value in (None, ""):
        return {}
    if value == "json":
        return {"json_schema": {"type": "object"}}
    if not isinstance(value, Mapping):
        fields.refuse("format", 'Give "json" or a JSON schema.')
    return {"json_schema": value}


def _variables(fields: Fields) -> dict[str, Any]:
    value = fields.value("think")
    if value is not None and not isinstance(value, bool) and value not in _THINK_LEVELS:
        fields.refuse("think", f"Give true, false, or one of {', '.join(_THINK_LEVELS)}.")
    if value is None:
        return template_variables(fields)
    effort = None
    if isinstance(value, str):
        effort = value
    return template_variables(fields, thinks=value is not False, effort=effort)


def _keep_s(fields: Fields) -> float | None:
    """Seconds that the model stays loaded without a question; a number below 0 is forever."""
    value = fields.value("keep_alive")
    if value is None:
        return None
    if isinstance(value, str) and _DURATION.fullmatch(value):
        value = _seconds_of(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        fields.refuse("keep_alive", 'Give seconds, or a string such as "10m"; -1 is forever.')
    if value < 0:
        return math.inf
    return float(min(value, 1e18))


def _seconds_of(duration: str) -> float:
    """The seconds of a duration as Go writes it, such as 1h30m."""
    seconds = 0.0
    for number, unit in _DURATION_PART.findall(duration):
        seconds += float(number) * _UNITS_S[unit]
    if duration.startswith("-"):
        return -seconds
    return seconds


def _json_line(value: Any) -> str:
    return compact_json(value) + "\n"


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)
