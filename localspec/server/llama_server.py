"""llama-server's own endpoints: tokens, templated prompts, and facts about a model."""

from __future__ import annotations

import dataclasses
from typing import Any

from localspec._version import __version__
from localspec.chat.messages import checked_messages
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.pictures.cells import without_cells
from localspec.server.completions import chat_variables
from localspec.server.fields import Fields
from localspec.server.form import EngineAside
from localspec.server.prompting import templated
from localspec.server.question import CLIENTS_NAMES
from localspec.server.refusal import RequestError
from localspec.server.served_models import ServedModel
from localspec.server.tool_fields import openai_tools
from localspec.vocabulary import with_bos


class Tokenize(EngineAside):
    """A request to /tokenize: the token ids of a text, with their pieces if wanted."""

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

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._ids = fields.any("tokens")
        if not isinstance(self._ids, list):
            fields.refuse("tokens", "Give a list of token ids.")

    def _computed(self, engine: IsolatedEngine) -> dict[str, Any]:
        return {"content": engine.detokenize(self._ids, special=True)}


class ApplyTemplate(EngineAside):
    """A request to /apply-template: the prompt made from messages."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        messages = checked_messages(fields.any("messages"))
        tools = openai_tools(fields)
        self._prompt = templated(messages, tools, chat_variables(fields))

    def _computed(self, engine: IsolatedEngine) -> dict[str, Any]:
        tokens = without_cells(self._prompt(engine))
        return {"prompt": engine.detokenize(tokens, special=True)}


def props(model: ServedModel) -> dict[str, Any]:
    """The answer of GET /props: the facts about a model, without where its file lies."""
    bos, eos = model.end_texts
    params = dataclasses.asdict(model.sampling)  # by the names that requests may use
    del params["logit_bias"]
    usual = {CLIENTS_NAMES.get(name, (name,))[-1]: value for name, value in params.items()}
    return {
        "default_generation_settings": {"params": usual, "n_ctx": model.context_length},
        "total_slots": model.num_slots,
        "model_alias": model.name,
        "model_path": model.file_name,
        "modalities": {"vision": model.sees, "video": False, "audio": False},
        "chat_template": model.chat_template,
        "bos_token": bos,
        "eos_token": eos,
        "build_info": f"localspec {__version__}",
    }
