"""llama-server's endpoint for LoRA adapters: which a model has, and their scales."""

from __future__ import annotations

from functools import partial
from typing import Any

from localspec.server.answering import Service
from localspec.server.fields import Fields
from localspec.server.form import Handler, in_thread
from localspec.server.question import adapter_scales
from localspec.server.served_models import ServedModel

PATH = "/lora-adapters"


def listed_adapters(model: ServedModel) -> list[dict[str, Any]]:
    """The adapters of a model, with the scales that answers have by default."""
    return [
        {
            "id": number,
            "path": str(adapter.file),
            "scale": adapter.scale,
            "task_name": _text(model, number, "task_name"),
            "prompt_prefix": _text(model, number, "prompt_prefix"),
        }
        for number, adapter in enumerate(model.adapters)
    ]


def _text(model: ServedModel, number: int, name: str) -> str:
    """What an adapter's file says of its use."""
    metadata = model.adapter_headers[number].metadata
    return str(metadata.get(f"adapter.lora.{name}", ""))


def scales_to_come(fields: Fields) -> Handler:
    """A request that sets the scales of later answers; a scale that is left out becomes 0."""
    name = fields.text("model")
    if "lora" not in fields:
        fields.refuse("lora", 'Send a list: [{"id": 0, "scale": 0.5}].')
    scales = adapter_scales(fields)

    async def result(service: Service) -> dict[str, bool]:
        model = service.models.named(name)
        await model.loaded_or_not()
        await in_thread(partial(model.set_scales, scales))
        return {"success": True}

    return result
