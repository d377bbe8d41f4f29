"""Ollama's endpoints that answer no question: which models there are, and which are loaded."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta, timezone
from typing import Any

from localspec.server.answering import Service
from localspec.server.encoding import sent_bytes
from localspec.server.fields import Fields
from localspec.server.form import Aside
from localspec.server.refusal import RequestError
from localspec.server.served_embedder import ServedEmbedder
from localspec.server.served_file import ServedFile
from localspec.server.served_models import ServedModel, ServedModels
from localspec.streaming.thought_families import FAMILIES

_Listed = ServedModel | ServedEmbedder

# Clients compare it with the first version that has what they need.
_VERSION = "0.12.0"
_LONGEST_S = 9e9  # for a time in the future: some 285 years, as in Ollama
_MODELS_AS_FILES = "Use localspec models on the command line."
_NOT_OFFERED = {
    "pull": ("downloading a model is", "Use localspec download on the command line."),
    "push": ("uploading a model is", ""),
    "create": ("making a model is", _MODELS_AS_FILES),
    "copy": ("copying a model is", _MODELS_AS_FILES),
    "delete": ("removing a model is", _MODELS_AS_FILES),
    "blobs": ("uploading a file is", _MODELS_AS_FILES),
}


def version() -> dict[str, Any]:
    """The version of Ollama's interface."""
    return {"version": _VERSION}


def tags(models: ServedModels) -> dict[str, Any]:
    """The list of models."""
    return {"models": [_tag(model) for model in models.listed]}


class Show(Aside):
    """A request to /api/show: the facts about a model."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        name = fields.text("name")
        self.model_name = self.model_name or name

    async def result(self, service: Service) -> dict[str, Any]:
        model = service.models.listed_named(self.model_name)
        return {
            "modelfile": "",
            "parameters": "",
            "template": model.chat_template,
            "details": _model_details(model),
            "model_info": {
                "general.architecture": model.architecture,
                "general.basename": model.name,
                "general.parameter_count": model.num_parameters,
                f"{model.architecture}.context_length": model.context_length,
                f"{model.architecture}.embedding_length": model.width,
            },
            "capabilities": _capabilities(model),
            "modified_at": _modified_at(model),
        }


def loaded(models: ServedModels, unload_s: float) -> dict[str, Any]:
    """The loaded models. unload_s: seconds without a question after which one is closed."""
    found = [_loaded(model, unload_s) for model in models.all if model.engine is not None]
    embedder = models.embedder
    if embedder is not None and embedder.isolated is not None:
        # Where its layers lie is known in its process only, so there is no size_vram.
        left_s = unload_s - embedder.idle_s
        found.append(_loaded_part(embedder, embedder.needed_bytes, left_s))
    return {"models": found}


def not_offered(path: str) -> RequestError | None:
    """The refusal for a path of Ollama's that this server lacks; None for any other path."""
    first, _, rest = path.removeprefix("/api/").partition("/")
    if (
        not path.startswith("/api/")
        or first not in _NOT_OFFERED
        or bool(rest) != (first == "blobs")
    ):
        return None
    what, hint = _NOT_OFFERED[first]
    return RequestError(f"{what} not offered by this server", hint, status=501)


def _loaded(model: ServedModel, unload_s: float) -> dict[str, Any]:
    assert model.memory is not None  # since it is loaded
    part = _loaded_part(model, model.memory.needed_bytes, model.left_s(unload_s))
    return {**part, "size_vram": sum(model.memory.gpu_bytes)}


def _loaded_part(model: _Listed, size_bytes: int, left_s: float) -> dict[str, Any]:
    """What is said of each. left_s: seconds until it may be closed."""
    left_s = min(max(left_s, 0.0), _LONGEST_S)
    expires = datetime.now(timezone.utc) + timedelta(seconds=left_s)
    return {
        **_tag(model),
        "size": size_bytes,
        "expires_at": expires.isoformat(),
        "context_length": model.context_length,
    }


def _tag(model: _Listed) -> dict[str, Any]:
    # Some clients add the tag to a name, and look for that in the list.
    name = model.name if ":" in model.name else f"{model.name}:latest"
    return {
        "name": name,
        "model": name,
        "modified_at": _modified_at(model),
        "size": model.size_bytes,
        "digest": _model_digest(model),
        "details": _model_details(model),
    }


def _capabilities(model: _Listed) -> list[str]:
    if isinstance(model, ServedEmbedder):
        return [] if model.ranks else ["embedding"]
    template = model.chat_template
    thinks = any(all(sign in template for sign in family.signs) for family in FAMILIES)
    # Editors do not list a model without "tools"; one that has none answers in text.
    more = {"thinking": thinks, "insert": model.fim is not None, "vision": model.sees}
    return ["completion", "tools", *(name for name, has in more.items() if has)]


def _model_details(model: ServedFile) -> dict[str, Any]:
    number = model.num_parameters
    size = f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"
    return {
        "parent_model": "",
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": size,
        "quantization_level": model.quantization,
    }


def _model_digest(model: ServedFile) -> str:
    """The file's sha256 if the preset pins it.

    Else a digest that changes with the file: hashing all of it takes too long for a list.
    """
    pinned = model.pinned
    if len(pinned) == 1 and pinned[0] is not None:
        return str(pinned[0])
    known = f"{model.name} {model.size_bytes} {model.created} {pinned}"
    return hashlib.sha256(sent_bytes(known)).hexdigest()


def _modified_at(model: ServedFile) -> str:
    return datetime.fromtimestamp(model.created, timezone.utc).isoformat()
