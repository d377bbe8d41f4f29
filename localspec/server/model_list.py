"""The list of models, as OpenAI's clients read it; no model is loaded for it."""

from __future__ import annotations

from typing import Any

from localspec.server.served_models import ServedModel, ServedModels


def model_list(models: ServedModels) -> dict[str, Any]:
    """All of them."""
    return {"object": "list", "data": [model_object(model) for model in models.all]}


def model_object(model: ServedModel) -> dict[str, Any]:
    """One of them; with its context as vLLM and llama-server tell it."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "localspec",
        "max_model_len": model.context_length,
        "meta": {
            "n_ctx_train": model.num_trained,
            "n_ctx": model.context_length,
            "size": model.size_bytes,
        },
    }
