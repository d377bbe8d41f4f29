"""Ollama's protocol: its requests for answers, which come as lines of JSON, and for models."""

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

# Clients compare this version with the first one of Ollama that has what they need.
OLLAMA_VERSION = "0.12.0"
_LONGEST_S = 9e9  # until a model is unloaded, as clients see it: some 285 years, as in Ollama
# The names after /api/ of Ollama's paths that this server lacks.
_NOT_OFFERED = ("pull", "push", "create", "copy", "delete", "blobs")


def tags(models: ServedModels) -> dict[str, Any]:
    """The response to GET /api/tags: the list of models."""
    return {"models": [_listed_model(model) for model in models.listed]}


def show(fields: Fields) -> Handler:
    """The handler of a request to /api/show. Its response is the facts about a model."""
    older_clients_name = fields.text("name")
    name = fields.text("model") or older_clients_name

    async def respond(service: Service) -> dict[str, Any]:
        model = service.models.listed_named(name)
        # In a thread, since a template is a stranger's program, and may run long.
        tool_facts = await in_thread(partial(_tool_facts, model))
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
                **tool_facts,
            },
            "capabilities": _capabilities(model),
            "modified_at": _utc_time(model.created),
        }

    return respond


def loaded_models(models: ServedModels, unload_s: float) -> dict[str, Any]:
    """The response to GET /api/ps: the models that are loaded now.

    Args:
        models: the server's.
        unload_s: seconds without a request after which a model is closed, if it has no
            `keep_s` of its own.
    """
    loaded = []
    for model in models.listed:
        if model.engine is None:
            continue
        left_s = min(max(model.left_s(unload_s), 0.0), _LONGEST_S)
        facts = {**_listed_model(model), "size": model.needed_bytes}
        facts["expires_at"] = _utc_time(time.time() + left_s)
        facts["context_length"] = model.context_length
        if model.gpu_bytes is not None:
            facts["size_vram"] = model.gpu_bytes
        if model.device:
            facts["device"] = model.device
        loaded.append(facts)
    return {"models": loaded}


def not_offered(path: str) -> RequestError | None:
    """The error for a path of Ollama's that this server lacks; None for any other path."""
    folder, _, below_folder = path.removeprefix("/").partition("/")
    name = below_folder.partition("/")[0]
    if folder != "api" or name not in _NOT_OFFERED:
        return None
    hint = "Use localspec download or localspec models on the command line."
    return RequestError(f"/api/{name} is not offered by this server", hint, status=501)


def _listed_model(model: ServedFile[Any]) -> dict[str, Any]:
    """A model in Ollama's lists."""
    # A digest that changes with the file; reading the whole file would take too long here.
    file_facts = f"{model.name} {model.size_bytes} {model.created}"
    digest = hashlib.sha256(sent_bytes(file_facts))
    # Some clients add the tag "latest" to a name, and search the list for the result.
    name = model.name
    if ":" not in name:
        name = f"{name}:latest"
    return {
        "name": name,
        "model": name,
        "modified_at": _utc_time(model.created),
        "size": model.size_bytes,
        "digest": digest.hexdigest(),
        "details": _model_details(model),
    }


def _capabilities(model: ServedModel | ServedEmbedder) -> list[str]:
    """What a model can do, in Ollama's words. They have none for a reranker, which gets []."""
    if isinstance(model, ServedEmbedder):
        if model.is_reranker:
            return []
        return ["embedding"]
    # Every model can call tools: if its template has no tools, they are described in words.
    capabilities = ["completion", "tools"]
    template = model.chat_template
    if any(all(sign in template for sign in family.signs) for family in FAMILIES):
        capabilities.append("thinking")
    if model.fim is not None:
        capabilities.append("insert")
    if model.sees:
        capabilities.append("vision")
    return capabilities


def _tool_facts(model: ServedModel | ServedEmbedder) -> dict[str, str]:
    """A field that says where a prompt describes tools; {} for an embedder.

    The place is the model's template or, if that has no tools, a message in words.
    """
    if isinstance(model, ServedEmbedder):
        return {}
    if takes_tools(model.tool_template) or takes_tools(model.chat_template):
        return {"localspec.tools": "in the template"}
    return {"localspec.tools": "in words"}


def _model_details(model: ServedFile[Any]) -> dict[str, Any]:
    """The field "details" of a model."""
    num_weights = model.num_weights
    rounded_size = f"{num_weights / 1e6:.1f}M"
    if num_weights >= 1e9:
        rounded_size = f"{num_weights / 1e9:.1f}B"
    return {
        "parent_model": "",
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": model.size_label or rounded_size,
        "quantization_level": model.quantization,
    }


def _utc_time(time_s: float) -> str:
    """A Unix time as a date and time of day, in ISO 8601."""
    return datetime.fromtimestamp(time_s, timezone.utc).isoformat()


_THINK_LEVELS = ("low", "medium", "high", "max")
# The units of a duration, in seconds.
_UNITS_S = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_LONGEST_KEEP_S = 1e18  # a larger integer may be too large for a float
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_DURATION = re.compile(rf"[-+]?(?:0|(?:{_DURATION_PART.pattern})+)")


class OllamaForm(Form):
    """A request for an answer in Ollama's protocol, and the answer.

    In a stream each piece of the answer is a line of JSON.

    Args:
        fields: the request.
        inputs: the input, if there is one; without it the model is only loaded or unloaded.
        tools: the options of tools by keyword, as `tool_options` returns them.
    """

    content_type = "application/x-ndjson"
    is_chat: ClassVar[bool]
    """Whether the answer's text is in a message, and not in the field "response"."""

    def __init__(
        self,
        fields: Fields,
        inputs: Sequence[Input],
        tools: Mapping[str, Any],
    ) -> None:
        option_fields = fields.object("options")
        options = {
            **answer_options(option_fields),
            **_format_options(fields),
            **tools,
        }
        num_predict = option_fields.integer("num_predict") or 0
        options["max_tokens"] = None  # as many as the context holds
        if num_predict > 0:
            options["max_tokens"] = num_predict
        options["stop"] = option_fields.texts("stop")
        draft_tokens = option_fields.integer("draft_num_predict")
        if draft_tokens is not None:
            options["draft_tokens"] = draft_tokens
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
        self._num_ctx = option_fields.integer("num_ctx")
        self._started_s = time.monotonic()
        self._call_pieces: list[CallPiece] = []  # the pieces of all calls until now

    def body(self, finished: Sequence[Finished]) -> Any:
        """The answer; if there was no input, whether the model was loaded or unloaded."""
        if not finished:
            reason = "load"
            if self.question.keep_s == 0:
                reason = "unload"
            return {
                **self._answer_fields(""),
                "done": True,
                "done_reason": reason,
            }
        (answer,) = finished
        reply = answer.reply
        calls = list(enumerate(reply.tool_calls))
        fields = self._answer_fields(reply.text, reply.thoughts, calls, reply.logprobs)
        return {**fields, **self._end_fields(answer)}

    def text_for(self, event: Event) -> str:
        """The line of an event; "" if there is nothing to send.

        While the request waits or the prompt is read, the line has an empty text: a client that
        gets nothing for long may give up.
        """
        if isinstance(event, Finished):
            return _json_line({**self._answer_fields(""), **self._end_fields(event)})
        if not isinstance(event, NewPiece):
            return _json_line({**self._answer_fields(""), **event.field})
        piece = event.piece
        calls = list[tuple[int, ToolCall]]()
        if piece.call is not None:
            self._call_pieces.append(piece.call)
            # Only whole calls are sent: in this protocol the arguments are an object.
            if piece.call.is_last:
                call = whole_calls(self._call_pieces)[-1]
                calls.append((piece.call.number, call))
        if not piece.text and not calls and piece.logprobs is None:
            return ""
        text = piece.text
        thoughts = ""
        if piece.is_thought:
            text = ""
            thoughts = piece.text
        return _json_line(self._answer_fields(text, thoughts, calls, event.logprobs))

    def failure(self, error: RequestError) -> str:
        """The last line of the stream after an error."""
        return _json_line({"error": error.sentence})

    def _answer_fields(
        self,
        text: str,
        thoughts: str = "",
        calls: Sequence[tuple[int, ToolCall]] = (),
        logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> dict[str, Any]:
        """The fields of a whole answer, or of a piece of one.

        "done" is False here; `_end_fields` replaces it in the last line.

        Args:
            text: the answer's text.
            thoughts: the thoughts before it.
            calls: whole calls, each with its index among the answer's calls.
            logprobs: the log-probabilities of the tokens; None if they are not wanted.
        """
        more: dict[str, Any] = {}
        if thoughts:
            more["thinking"] = thoughts
        if calls:
            more["tool_calls"] = [_call_fields(number, call) for number, call in calls]
        created_at = _utc_time(time.time())
        fields: dict[str, Any] = {"model": self.model.name, "created_at": created_at}
        if self.is_chat:
            fields["message"] = {
                "role": "assistant",
                "content": text,
                **more,
            }
        else:
            fields |= {"response": text, **more}
        if logprobs is not None:
            fields["logprobs"] = [logprob_object(token) for token in logprobs]
        fields["done"] = False
        return fields

    def _end_fields(self, finished: Finished) -> dict[str, Any]:
        """The further fields of a whole answer: why it ended, and what it took.

        If the request asks for a larger context than the model has, there is a warning, too.
        """
        reply = finished.reply
        stats = reply.stats
        reason: str = reply.finish_reason
        if reason == "tool_calls":  # Ollama has no such reason
            reason = "stop"
        num_ctx = self._num_ctx or 0
        context_length = self.model.context_length
        warning = {}
        if num_ctx > context_length:  # Ollama would load the model again
            message = f"num_ctx is {num_ctx}; the context holds {context_length} tokens"
            warning = {"warning": f"{message}. Start the server with --ctx {num_ctx}."}
        return {
            "done": True,
            "done_reason": reason,
            "total_duration": _nanoseconds(time.monotonic() - self._started_s),
            "load_duration": _nanoseconds(self.model.loading_s(self._started_s)),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(stats.time_to_first_token_s),
            "eval_count": stats.completion_tokens,
            # Not 0, since clients divide by this number.
            "eval_duration": max(_nanoseconds(stats.decode_time_s), 1),
            **extra_fields(reply),
            **warning,
        }


def _call_fields(number: int, call: ToolCall) -> dict[str, Any]:
    """A call in an answer.

    Args:
        number: the call's index among the answer's calls.
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
        messages = [_read_message(message) for message in fields.objects("messages")]
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
        generate_input = _generate_input(fields)
        if generate_input is not None:
            inputs.append(generate_input)
        super().__init__(fields, inputs, {})


def _generate_input(fields: Fields) -> Input | None:
    """The input of a request to /api/generate; None if it has neither a prompt nor images.

    It is a gap if the request has a suffix, else messages, or with "raw" the prompt as it is.

    Raises:
        RequestError: a field is wrong.
        OptionError: a message is wrong.
    """
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


def _read_message(fields: Fields) -> dict[str, Any]:
    """A message of a request to /api/chat, not checked yet. Raises RequestError."""
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
    """The parts of a message for the images in a request. Raises RequestError.

    Ollama's clients send the files in base64.
    """
    images = fields.value("images") or []
    if not isinstance(images, list):
        fields.refuse("images", "Give a list of files in base64.")
    return [{"type": "image_url", "image_url": f"data:;base64,{image}"} for image in images]


def _format_options(fields: Fields) -> dict[str, Any]:
    """The option that constrains an answer to JSON; {} for text. Raises RequestError."""
    schema = fields.value("format")
    if schema in (None, ""):
        return {}
    if schema == "json":
        return {"json_schema": {"type": "object"}}
    if not isinstance(schema, Mapping):
        fields.refuse("format", 'Give "json" or a JSON schema.')
    return {"json_schema": schema}


def _variables(fields: Fields) -> dict[str, Any]:
    """The variables of the chat template, with the field "think". Raises RequestError."""
    think = fields.value("think")
    if think is None:
        return template_variables(fields)
    if isinstance(think, bool):
        return template_variables(fields, thinks=think)
    if think not in _THINK_LEVELS:
        levels = ", ".join(_THINK_LEVELS)
        fields.refuse("think", f"Give true, false, or one of {levels}.")
    return template_variables(fields, thinks=True, effort=think)


def _keep_s(fields: Fields) -> float | None:
    """Seconds that the model stays loaded without a question, by the field "keep_alive".

    Returns infinity for a number below 0; None if the field is missing. Raises RequestError.
    """
    value = fields.value("keep_alive")
    if value is None:
        return None
    if isinstance(value, str) and _DURATION.fullmatch(value):
        value = _duration_s(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        fields.refuse("keep_alive", 'Give seconds, or a string such as "10m"; -1 is forever.')
    if value < 0:
        return math.inf
    return float(min(value, _LONGEST_KEEP_S))


def _duration_s(duration: str) -> float:
    """The seconds of a duration in Go's notation, such as 1h30m."""
    seconds = 0.0
    for number, unit in _DURATION_PART.findall(duration):
        seconds += float(number) * _UNITS_S[unit]
    if duration.startswith("-"):
        return -seconds
    return seconds


def _json_line(value: Any) -> str:
    """A value as a line of JSON."""
    return compact_json(value) + "\n"


def _nanoseconds(seconds: float) -> int:
    return round(1e9 * seconds)
