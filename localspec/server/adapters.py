"""llama-server's endpoint for a model's LoRA adapters: lists them, and sets their scales."""

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
    """The adapters of a model, with the scales of answers that set none."""
    adapters = []
    for number, adapter in enumerate(model.adapters):
        metadata = model.adapter_headers[number].metadata
        adapters.append(
            {
                "id": number,
                "path": str(adapter.file),
                "scale": adapter.scale,
                "task_name": str(metadata.get("adapter.lora.task_name", "")),
                "prompt_prefix": str(metadata.get("adapter.lora.prompt_prefix", "")),
            }
        )
    return adapters


def adapter_scales_handler(fields: Fields) -> Handler:
    """The handler of a request that sets the adapters' scales in later answers.

    An adapter that is left out gets the scale 0.
    """
    name = fields.text("model")
    if "lora" not in fields:
        fields.refuse("lora", 'Send a list: [{"id": 0, "scale": 0.5}].')
    scales = adapter_scales(fields)

    async def respond(service: Service) -> dict[str, bool]:
        model = service.models.named(name)
        await model.wait_for_load()
        await in_thread(partial(model.set_scales, scales))
        return {"success": True}

    return respond
