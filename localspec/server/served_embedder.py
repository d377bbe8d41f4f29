"""The model that turns texts into vectors: loaded when asked, closed when unused."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from localspec.engine.embedder import located_embedder
from localspec.errors import CrashedError
from localspec.gguf_file.check import check_embedder_file
from localspec.isolated.isolated_embedder import IsolatedEmbedder
from localspec.presets.presets import load_presets, stands_for
from localspec.server.event_loop import in_thread


class ServedEmbedder:
    """Such a model under its name. model: a preset, whose name it keeps, or as `load_embedder`.

    created: Unix time of the file. load_s: how long loading took the last time. Raises
    PresetError if it is not here, and ModelFileError.
    """

    def __init__(self, model: str) -> None:
        self.path = located_embedder(model)
        header = check_embedder_file(self.path)
        self.name = meant if (meant := stands_for(model)) in load_presets() else self.path.stem
        info = self.path.stat()
        self.created, self.size_bytes = int(info.st_mtime), info.st_size
        self.num_trained = header.number(f"{header.architecture}.context_length")
        self.load_s = 0.0
        self._isolated: IsolatedEmbedder | None = None
        self._in_use = asyncio.Lock()
        self._used_s = 0.0

    @property
    def isolated(self) -> IsolatedEmbedder | None:
        """The model while it is loaded."""
        return self._isolated

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """What a method of `Embedder` returns. Raises what it raises, and what loading does."""
        async with self._in_use:
            if self._isolated is None:
                started_s = time.monotonic()
                self._isolated = await in_thread(partial(IsolatedEmbedder, self.path))
                self.load_s = time.monotonic() - started_s
            try:
                return await in_thread(
                    partial(self._isolated.call, method, *arguments, **keywords)
                )
            except CrashedError:
                await self._end()
                raise
            finally:
                self._used_s = time.monotonic()

    async def close_unused(self, seconds: float) -> None:
        """Free it if nobody has asked for so long."""
        async with self._in_use:
            if time.monotonic() - self._used_s > seconds:
                await self._end()

    async def _end(self) -> None:
        isolated, self._isolated = self._isolated, None
        if isolated is not None:
            await asyncio.to_thread(isolated.close)
