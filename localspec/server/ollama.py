"""What programs ask to find out whether an Ollama is there and which models it has."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any

from localspec.models.preset import HubModel
from localspec.server.fields import Fields
from localspec.server.served_models import ServedModel, ServedModels

# Clients compare it with the one from which they can do without /api/chat.
_VERSION = "0.12.0"


def version() -> dict[str, Any]:
    """Of Ollama's interface."""
    return {"version": _VERSION}


def tags(models: ServedModels) -> dict[str, Any]:
    """The list of models."""
    return {"models": [_tag(model) for model in models.all]}


def read_name(fields: Fields) -> str | None:
    """Of which model a request asks. Raises RequestError."""
    model, name = fields.text("model"), fields.text("name")
    return model or name


def show(models: ServedModels, name: str | None) -> dict[str, Any]:
    """What is known of one of them. Raises RequestError."""
    model = models.named(name)
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _details(model),
        "model_info": {
            "general.architecture": model.architecture,
            "general.basename": model.name,
            "general.parameter_count": model.num_parameters,
            f"{model.architecture}.context_length": model.context_length,
        },
        # Editors do not list a model that cannot be told of tools; it answers in text.
        "capabilities": ["completion", "tools"],
        "modified_at": _modified_at(model),
    }


def _tag(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _modified_at(model),
        "size": model.size_bytes,
        "digest": _digest(model),
        "details": _details(model),
    }


def _details(model: ServedModel) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": _parameter_size(model.num_parameters),
        "quantization_level": model.preset.target.quantization,
    }


def _digest(model: ServedModel) -> str:
    """The file's sha256 where the preset pins it.

    Else one that changes when the file does: reading all of it takes too long for a list.
    """
    target = model.preset.target
    pinned = [file.sha256 for file in target.files] if isinstance(target, HubModel) else []
    if len(pinned) == 1 and pinned[0] is not None:
        return pinned[0]
    known = f"{model.name} {model.size_bytes} {model.created} {pinned}"
    return hashlib.sha256(known.encode()).hexdigest()


def _parameter_size(number: int) -> str:
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"


def _modified_at(model: ServedModel) -> str:
    return datetime.fromtimestamp(model.created, timezone.utc).isoformat()
