"""The model that turns texts into vectors: loaded when asked, closed when unused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from localspec.engine.embedder import Embedded, located_embedder
from localspec.errors import CrashedError
from localspec.gguf_file.check import check_embedder_file
from localspec.gguf_file.shape import context_to_open
from localspec.isolated.isolated_embedder import IsolatedEmbedder
from localspec.preflight.embedder_memory import embedder_bytes
from localspec.presets.presets import load_presets, stands_for
from localspec.server.event_loop import in_thread
from localspec.server.refusal import stopping
from localspec.server.served_file import ServedFile

# Of what is read in one go, for which others wait. As many texts as one decode takes.
_MOST_TEXTS, _MOST_CHARACTERS = 16, 4000
_CHARACTERS_PER_TOKEN = 4  # about
_RANK = 4  # the pooling_type of a reranker, in llama.cpp's numbers


class ServedEmbedder(ServedFile):
    """Such a model under its name. model: a preset, whose name it keeps, or as `load_embedder`.

    context_length: tokens of a text. ranks: whether it is a reranker. needed_bytes: memory once
    it works. load_s: how long loading took the last time. Raises PresetError if it is not here,
    and ModelFileError.
    """

    def __init__(self, model: str) -> None:
        self.path = located_embedder(model)
        header = check_embedder_file(self.path)
        preset = load_presets().get(stands_for(model))
        super().__init__(self.path.stem if preset is None else preset.name, header, preset)
        self.context_length = context_to_open(None, self.num_trained, self.file_name)
        self.ranks = header.number(f"{self.architecture}.pooling_type") == _RANK
        self.needed_bytes = embedder_bytes(header, self.context_length)
        self.load_s = 0.0
        self._process: IsolatedEmbedder | None = None
        self._loading: asyncio.Task[None] | None = None
        self._in_use = asyncio.Lock()
        self._used_s = 0.0
        self._is_stopped = False

    @property
    def isolated(self) -> IsolatedEmbedder | None:
        """The model while it is loaded."""
        return None if self._loading is not None else self._process

    @property
    def idle_s(self) -> float:
        """Seconds since it was asked for the last time."""
        return 0.0 if self._in_use.locked() else time.monotonic() - self._used_s

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Embedded:
        """What a method of `Embedder` returns. The last argument is the texts.

        They are read a few at a time: between them others have theirs, and who has left ends
        it. Raises what the method raises, what loading does, and RequestError after `stop`.
        """
        *others, texts = arguments
        found = []
        for part in _parts(texts):
            async with self._in_use:
                try:
                    found.append(await self._read(method, *others, part, **keywords))
                except CrashedError as error:
                    if self._is_stopped:
                        raise stopping() from error
                    raise
        values = np.concatenate([each.values for each in found])
        return Embedded(values, sum(each.num_tokens for each in found))

    async def _read(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if self._is_stopped:
            raise stopping()
        if self._loading is None and self._process is None:
            self._loading = asyncio.create_task(self._load())
        if self._loading is not None:
            # Shielded: if the client gives up, the next one can use it.
            await asyncio.shield(self._loading)
        assert self._process is not None
        try:
            return await in_thread(partial(self._process.call, method, *arguments, **keywords))
        except CrashedError:
            await self._end()
            raise
        finally:
            self._used_s = time.monotonic()

    async def _load(self) -> None:
        started_s = time.monotonic()
        try:
            self._process = await asyncio.to_thread(IsolatedEmbedder, self.path)
            if self._is_stopped:
                self._process.kill()
            await asyncio.to_thread(self._process.wait)
        except BaseException:
            self._process = None
            raise
        finally:
            self._loading = None
            self._used_s = time.monotonic()
        self.load_s = self._used_s - started_s

    async def close_unused(self, seconds: float) -> None:
        """Free it if nobody has asked for so long."""
        is_free = self._loading is None and not self._in_use.locked()
        if is_free and self.idle_s > seconds:
            async with self._in_use:
                await self._end()

    def stop(self) -> None:
        """End what it does, for whoever waits for it or asks later, with an error."""
        self._is_stopped = True
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """Free it, whatever it does, for good."""
        self.stop()
        if self._loading is not None:
            await asyncio.wait([self._loading])
        async with self._in_use:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.close)


def _parts(texts: Sequence[str | Sequence[int]]) -> Iterator[list[str | Sequence[int]]]:
    """The texts, as many at a time as are read in one go, at least one."""
    part: list[str | Sequence[int]] = []
    room = 0
    for text in texts:
        size = len(text) * (1 if isinstance(text, str) else _CHARACTERS_PER_TOKEN)
        if part and (len(part) == _MOST_TEXTS or size > room):
            yield part
            part = []
        room = (room if part else _MOST_CHARACTERS) - size
        part.append(text)
    yield part
