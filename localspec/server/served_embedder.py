"""The model that turns texts into vectors: loaded when asked, closed when unused."""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from typing import Any

import numpy as np

from localspec.engine.embedder import Embedded, located_embedder
from localspec.errors import CrashedError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.header import Header
from localspec.gguf_file.shape import ModelShape, context_to_open
from localspec.hub.hub_file import HubModel
from localspec.isolated.process import IsolatedEmbedder
from localspec.preflight.memory import embedder_bytes
from localspec.presets.preset import Preset
from localspec.presets.presets import load_presets, stands_for
from localspec.server.event_loop import in_thread
from localspec.server.refusal import stopping


class ServedFile:
    """A model under its name. preset: the model's, if it has one.

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


_MOST_TEXTS = 16  # in one call, for which other requests wait; as many as in one decode
_RANK = 4  # the pooling_type of a reranker, in llama.cpp's numbers


class ServedEmbedder(ServedFile):
    """An embedding model under its name. model: a preset, or as for `load_embedder`.

    context_length: tokens of a text. ranks: whether it is a reranker. needed_bytes: memory when
    loaded. load_s: seconds of the last loading. isolated: the model while it is loaded. Raises
    PresetError if it is not here, and ModelFileError.
    """

    def __init__(self, model: str) -> None:
        self.path = located_embedder(model)
        header = check_model_file(self.path, embeds=True)
        preset = load_presets().get(stands_for(model))
        super().__init__(self.path.stem if preset is None else preset.name, header, preset)
        self.context_length = context_to_open(None, self.num_trained, self.file_name)
        self.ranks = header.number(f"{self.architecture}.pooling_type") == _RANK
        self.needed_bytes = embedder_bytes(header, self.context_length)
        self.load_s = 0.0
        self.isolated: IsolatedEmbedder | None = None
        self._in_use = asyncio.Lock()
        self._used_s = 0.0
        self._is_stopped = False

    @property
    def idle_s(self) -> float:
        """Seconds since it was asked for the last time."""
        return 0.0 if self._in_use.locked() else time.monotonic() - self._used_s

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Embedded:
        """Call a method of `Embedder`, whose last argument is the texts.

        Other requests run between batches; a disconnect cancels the rest. Raises what the
        method and loading raise, and RequestError after `stop`.
        """
        *others, texts = arguments
        found = []
        for first in range(0, len(texts), _MOST_TEXTS):
            part = texts[first : first + _MOST_TEXTS]
            async with self._in_use:
                read = partial(self._read, method, *others, part, **keywords)
                found.append(await in_thread(read))
        values = np.concatenate([each.values for each in found])
        return Embedded(values, sum(each.num_tokens for each in found))

    def _read(self, method: str, *arguments: Any, **keywords: Any) -> Embedded:
        """Load the model if need be, and call the method; in a thread."""
        try:
            if self.isolated is None and not self._is_stopped:
                started_s = time.monotonic()
                self.isolated = IsolatedEmbedder(self.path)
                self.load_s = time.monotonic() - started_s
            if self.isolated is None or self._is_stopped:
                raise stopping()
            read: Embedded = self.isolated.call(method, *arguments, **keywords)
        except CrashedError as error:
            self._end()
            if self._is_stopped:
                raise stopping() from error
            raise
        finally:
            self._used_s = time.monotonic()
        return read

    async def close_unused(self, seconds: float) -> None:
        """Free it if nobody has asked for so long."""
        if not self._in_use.locked() and self.idle_s > seconds:
            async with self._in_use:
                await asyncio.to_thread(self._end)

    def stop(self) -> None:
        """End its work: whoever waits for it, or asks later, gets an error."""
        self._is_stopped = True
        if self.isolated is not None:
            self.isolated.kill()

    async def close(self) -> None:
        """Free it, whatever it does, for good."""
        self.stop()
        async with self._in_use:
            await asyncio.to_thread(self._end)

    def _end(self) -> None:
        process, self.isolated = self.isolated, None
        if process is not None:
            process.close()
