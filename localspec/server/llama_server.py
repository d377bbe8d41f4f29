"""llama-server's own endpoints: tokens, templated prompts, and what the server is doing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from localspec._version import __version__
from localspec.chat.messages import checked_messages
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.pictures.cells import without_cells
from localspec.server.answering import Answering, Service
from localspec.server.chat_completions import chat_variables
from localspec.server.fields import Fields
from localspec.server.form import EngineAside
from localspec.server.prompting import TemplatedPrompt
from localspec.server.question import CLIENTS_NAMES
from localspec.server.refusal import RequestError
from localspec.server.served_models import ServedModel
from localspec.server.tool_fields import openai_tools
from localspec.vocabulary import with_bos


class Tokenize(EngineAside):
    """A request to /tokenize: the token ids of a text, with their pieces if wanted."""

    example: ClassVar = {"content": "Hello"}

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._text = fields.text("content") or ""
        self._special = fields.flag("parse_special") is not False
        self._has_bos = bool(fields.flag("add_special"))
        self._has_pieces = bool(fields.flag("with_pieces"))

    def _computed(self, engine: IsolatedEngine) -> dict[str, Any]:
        return {"tokens": self._tokens(engine)}

    def _tokens(self, engine: IsolatedEngine) -> list[Any]:
        tokens = engine.tokenize(self._text, special=self._special)
        if self._has_bos:
            tokens = with_bos(tokens, engine.vocabulary)
        if not self._has_pieces:
            return tokens
        if len(tokens) > engine.context_length:  # each piece is a call of its own
            raise RequestError(
                f"the text has {len(tokens)} tokens",
                f"with_pieces takes up to {engine.context_length}.",
                param="with_pieces",
            )
        return [
            {"id": token, "piece": engine.detokenize([token], special=True)} for token in tokens
        ]


class Detokenize(EngineAside):
    """A request to /detokenize: the text of token ids."""

    example: ClassVar = {"tokens": [100]}

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._ids = fields.any("tokens")
        if not isinstance(self._ids, list):
            fields.refuse("tokens", "Give a list of token ids.")

    def _computed(self, engine: IsolatedEngine) -> dict[str, Any]:
        return {"content": engine.detokenize(self._ids, special=True)}


class ApplyTemplate(EngineAside):
    """A request to /apply-template: the prompt made from messages."""

    example: ClassVar = {"messages": [{"role": "user", "content": "Hello!"}]}

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        messages = checked_messages(fields.any("messages"))
        tools = openai_tools(fields)
        self._prompt = TemplatedPrompt(messages, tools, chat_variables(fields))

    def _computed(self, engine: IsolatedEngine) -> dict[str, Any]:
        tokens = without_cells(self._prompt.tokens(engine))
        return {"prompt": engine.detokenize(tokens, special=True)}


def slots(service: Service, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """The answer of GET /slots: what each answer that runs has read and said.

    Without the texts. query: `model`, and `fail_on_no_slot`, with which RequestError is raised
    while no slot is free.
    """
    model = service.models.named(query.get("model"))
    now = [each for each in service.answerings if not each.is_waiting]
    running = {each.slot: _progress(each) for each in now if each.model is model}
    # One model answers at a time; several answers to one request have a slot each.
    num_taken = max(len(now), service.line.num_working)
    has_free = len(running) == len(now) and num_taken < model.num_slots
    if query.get("fail_on_no_slot") and not has_free:
        raise RequestError("no slot is free", "Ask later.", status=503, code="overloaded")
    slot = {
        "n_ctx": model.context_length,
        "speculative": True,  # the text itself drafts, if no model does
    }
    return [
        {"id": number, **slot, "is_processing": number in running, **running.get(number, {})}
        for number in range(model.num_slots)
    ]


def _progress(running: Answering) -> dict[str, Any]:
    limit = running.question.options.max_tokens
    next_token = {
        "has_next_token": True,
        "n_decoded": running.num_said,
        "n_remain": -1 if limit is None else limit - running.num_said,
    }
    return {
        "id_task": running.number,
        "n_prompt_tokens": running.reading.num_tokens,
        "n_prompt_tokens_processed": running.reading.num_decoded,
        "params": {
            "n_predict": -1 if limit is None else limit,
            "stream": running.question.streams,
        },
        "next_token": [next_token],
    }


def props(service: Service, query: Mapping[str, str]) -> dict[str, Any]:
    """The answer of GET /props: the facts about a model, without where its file lies."""
    model = service.models.named(query.get("model"))
    bos, eos = model.end_texts
    return {
        "default_generation_settings": {
            "params": _default_params(model),
            "n_ctx": model.context_length,
        },
        "total_slots": model.num_slots,
        "model_alias": model.name,
        "model_ftype": model.quantization,
        "model_path": model.file_name,
        "modalities": {"vision": model.sees, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": model.chat_template,
        "bos_token": bos,
        "eos_token": eos,
        "build_info": f"localspec {__version__}",
        "is_sleeping": model.engine is None,
    }


def _default_params(model: ServedModel) -> dict[str, Any]:
    """The sampling options of an answer that names none, by the names that requests may use."""
    params = dataclasses.asdict(model.sampling)
    del params["logit_bias"]
    return {CLIENTS_NAMES.get(name, (name,))[-1]: value for name, value in params.items()}
