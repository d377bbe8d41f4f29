"""Facts about a model's file before it is loaded."""

from __future__ import annotations

import math

from localspec.gguf_file.header import Header
from localspec.gguf_file.shape import ModelShape
from localspec.hub.hub_file import HubModel
from localspec.presets.preset import Preset


class ServedFile:
    """A model under its name. preset: which says more of it, if any.

    file_name: without its folders. created: Unix time of the file. num_trained: tokens of
    context that the model was trained for. width: numbers of a row. chat_template: its source,
    or "". pinned: sha256 of its files, if the preset states them.
    """

    def __init__(self, name: str, header: Header, preset: Preset | None) -> None:
        self.name = name
        info = header.path.stat()
        self.file_name = header.path.name
        self.created, self.size_bytes = int(info.st_mtime), info.st_size
        shape = ModelShape(header)
        self.architecture = header.architecture
        self.num_trained, self.width = shape.context_length, shape.width
        self.num_parameters = sum(math.prod(tensor.shape) for tensor in header.tensors)
        self.chat_template = str(header.metadata.get("tokenizer.chat_template", ""))
        target = None if preset is None else preset.target
        self.quantization = "" if target is None else target.quantization
        files = target.files if isinstance(target, HubModel) else ()
        self.pinned = [file.sha256 for file in files]

    def is_called(self, name: str | None) -> bool:
        """Whether the model has that name. Ollama's clients add a tag to each."""
        return name in (self.name, f"{self.name}:latest")
