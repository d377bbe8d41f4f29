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
from localspec.server.form import EngineCall
from localspec.server.question import CLIENTS_NAMES, openai_tools, templated
from localspec.server.refusal import RequestError
from localspec.server.served_models import ServedModel
from localspec.vocabulary import with_bos


def tokenize(fields: Fields) -> EngineCall:
    """Answer a request to /tokenize: the token ids of a text, with their pieces if wanted."""
    text, special = fields.text("content") or "", fields.flag("parse_special") is not False
    has_bos, has_pieces = fields.flag("add_special"), fields.flag("with_pieces")

    def compute(engine: IsolatedEngine) -> dict[str, Any]:
        tokens = engine.tokenize(text, special=special)
        if has_bos:
            tokens = with_bos(tokens, engine.vocabulary)
        if not has_pieces:
            return {"tokens": tokens}
        if len(tokens) > engine.context_length:  # each piece is a call of its own
            raise RequestError(
                f"the text has {len(tokens)} tokens",
                f"with_pieces takes up to {engine.context_length}.",
                param="with_pieces",
            )
        pieces = [engine.detokenize([token], special=True) for token in tokens]
        pairs = zip(tokens, pieces, strict=True)
        return {"tokens": [{"id": token, "piece": piece} for token, piece in pairs]}

    return compute


def detokenize(fields: Fields) -> EngineCall:
    """Answer a request to /detokenize: the text of token ids."""
    ids = fields.any("tokens")
    if not isinstance(ids, list):
        fields.refuse("tokens", "Give a list of token ids.")
    return lambda engine: {"content": engine.detokenize(ids, special=True)}


def apply_template(fields: Fields) -> EngineCall:
    """Answer a request to /apply-template: the prompt made from messages."""
    messages = checked_messages(fields.any("messages"))
    prompt = templated(messages, openai_tools(fields), chat_variables(fields))
    return lambda engine: {
        "prompt": engine.detokenize(without_cells(prompt(engine)), special=True)
    }


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
