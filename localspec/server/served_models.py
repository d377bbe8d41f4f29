"""The models of a server: loaded when they are asked for, closed when they are unused."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from localspec._version import __version__
from localspec.engine.base import with_scales
from localspec.engine.open_models import CacheDisk
from localspec.engine.sources import named_sources
from localspec.errors import LocalspecError, MemoryLimitError, RpcError
from localspec.gguf_file.check import check_embedder_file, check_model_file
from localspec.gguf_file.header import Header
from localspec.gguf_file.header_vocabulary import fim_tokens
from localspec.gguf_file.projector_facts import NO_PROJECTOR, projector_beside
from localspec.gguf_file.shape import ModelShape, context_to_open
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.isolated.process import IsolatedEmbedder
from localspec.planning.free_memory import PairMemory
from localspec.planning.memory import embedder_bytes
from localspec.planning.plan import served_kept_bytes, target_context_length
from localspec.presets.located import adapter_files, locate_model
from localspec.presets.model_names import resolve
from localspec.presets.presets import (
    Adapter,
    AnyAdapter,
    LocalModel,
    Preset,
    checked_adapters,
    common_servers,
)
from localspec.sampling.params import SamplingParams
from localspec.server.refusal import RequestError
from localspec.streaming.answer_options import scales_of
from localspec.system.machine import memory_here

_Opened = TypeVar("_Opened", IsolatedEngine, IsolatedEmbedder)


class ServedFile(abc.ABC, Generic[_Opened]):
    """A model of the server: the facts about its file, and its engine while it is loaded.

    Args:
        name: the model's name for clients.
        header: the header of its file.
        preset: its preset, if it has one.
    """

    context_length: int
    """The tokens of context that the model has on this server."""

    needed_bytes = 0
    """The memory that the model takes while it is loaded; 0 if it is not known yet."""

    gpu_bytes: int | None = None
    """The part of `needed_bytes` on GPUs; None if it is not known."""

    device = ""
    """The device that computes, and why, in words; "" before the model is loaded."""

    def __init__(self, name: str, header: Header, preset: Preset | None) -> None:
        self.name = name
        info = header.path.stat()
        self.file_name = header.path.name
        """The name of its file, without folders."""

        self.created = int(info.st_mtime)
        """When the file was last changed, in Unix time."""

        self.size_bytes = info.st_size
        shape = ModelShape(header)
        self.architecture = header.architecture
        self.num_trained = shape.context_length
        """The tokens of context that the model was trained for."""

        self.width = shape.width
        """The size of its embedding vectors."""

        self.num_weights = header.num_weights
        self.size_label = header.size_label
        """See `Header`."""

        self.chat_template = str(header.metadata.get("tokenizer.chat_template", ""))
        """The source of its chat template; "" if it has none."""

        self.tool_template = str(header.metadata.get("tokenizer.chat_template.tool_use", ""))
        """The source of its chat template for tools; "" if it has none."""

        self.quantization = ""
        """The quantization of its weights, as its preset names it; "" without a preset."""

        if preset is not None and preset.target is not None:
            self.quantization = preset.target.quantization
        self.keep_s: float | None = None
        """Seconds that it stays loaded without a request; None for the server's default."""

        self._load_s = 0.0  # how long the last load took
        self._loaded_s = 0.0  # when the last load ended, by `time.monotonic`
        self.engine: _Opened | None = None
        """The engine; None while the model is not loaded."""

        self.loading: asyncio.Task[_Opened] | None = None
        """The load that is under way; None if there is none."""

        self.num_users = 0
        """The number of requests that use the engine now."""

        self.used_s = 0.0
        """When a request last used the engine, by `time.monotonic`."""

    @property
    def fingerprint(self) -> str:
        """A short text that is different for another file, name or version of localspec."""
        facts = f"{__version__} {self.name} {self.size_bytes} {self.created}"
        digest = hashlib.sha256(facts.encode("utf-8", "replace")).hexdigest()
        return f"fp_{digest[:10]}"

    def is_called(self, name: str | None) -> bool:
        """Whether a name is the model's, perhaps with the tag that Ollama's clients add."""
        return name in (self.name, f"{self.name}:latest")

    @abc.abstractmethod
    def load(self) -> _Opened:
        """Load the model, and return its engine. Raises what loading raises."""

    def timed_load(self) -> _Opened:
        """Load the model by `load`, and note how long that takes. Returns its engine."""
        started_s = time.monotonic()
        engine = self.load()
        self._loaded_s = time.monotonic()
        self.used_s = self._loaded_s
        self._load_s = self._loaded_s - started_s
        return engine

    def loading_s(self, since_s: float) -> float:
        """Seconds that the last load took; 0 if it ended before `since_s`.

        Args:
            since_s: a time, by `time.monotonic`.
        """
        if self._loaded_s >= since_s:
            return self._load_s
        return 0.0

    def left_s(self, unload_s: float) -> float:
        """Seconds until the model may be closed if no request comes; below 0 if overdue.

        While a request uses it, the seconds do not run yet.

        Args:
            unload_s: the server's default for `keep_s`.
        """
        limit_s = self.keep_s
        if limit_s is None:
            limit_s = unload_s
        if self.num_users > 0:
            return limit_s
        unused_s = time.monotonic() - self.used_s
        return limit_s - unused_s


class ServedModel(ServedFile[IsolatedEngine]):
    """A model of the server that answers questions.

    Its name is the name of its preset or of the hub's model, or the file's name without .gguf.

    Args:
        model: as for `localspec.load`: a preset or its name, a file, or a model of the hub.
        context_length: tokens of context; None for the preset's number, or else the model's.
        rpc: the RPC servers that hold layers of the model; None for those of the preset.
        device: as for `load`.
        exact: as for `load`.
        mmproj: as for `load`.
        adapters: as for `load`. Their scales are those of answers that set none.

    Raises:
        PresetError: the model's files are not on this machine.
        OptionError: an argument is wrong.
        ModelFileError: a file is damaged, or of the wrong kind.
    """

    def __init__(  # noqa: PLR0913  arguments of `load`
        self,
        model: Preset | str,
        context_length: int | None,
        rpc: Sequence[str] | None = None,
        *,
        device: str | None = None,
        exact: bool | None = None,
        mmproj: str | None = None,
        adapters: Sequence[AnyAdapter] | None = None,
    ) -> None:
        sources, preset = named_sources(model, {"mmproj": mmproj})
        path = sources["target"]
        assert isinstance(path, Path)
        header = check_model_file(path)
        name = str(model)
        if preset is not None:
            name = preset.name
        elif isinstance(resolve(name).model, LocalModel):
            name = path.stem
        super().__init__(name, header, preset)
        self.is_on_servers = bool(common_servers(rpc, preset))
        """Whether RPC servers hold layers of it."""

        self.sampling = SamplingParams()
        """The sampling options of a request that sets none."""

        chosen_adapters: tuple[Adapter, ...] = ()
        if preset is not None:
            self.sampling = preset.sampling
            chosen_adapters = preset.adapters
            context_length = context_length or preset.context_length
        if adapters is not None:
            chosen_adapters = checked_adapters(adapters)
        files = adapter_files(chosen_adapters, header)
        self.adapters = tuple(Adapter(str(file.path), file.scale) for file in files)
        self.adapter_headers = tuple(file.header for file in files)
        """The headers of the adapters' files."""

        self.end_texts = [_token_text(header, role) for role in ("bos", "eos")]
        """The texts of its begin and end tokens; "" for one that it lacks."""

        self.fim = fim_tokens(header)
        """Its tokens for filling in a gap (fill in the middle); None if it has none."""

        projector = sources.get("mmproj") or projector_beside(header)
        self._may_see = projector is not None and mmproj != NO_PROJECTOR
        self.context_length = target_context_length(header, context_length)
        self._open_engine = partial(
            IsolatedEngine,
            model,
            context_length=self.context_length,
            device=device,
            rpc=rpc,
            exact=exact,
            mmproj=mmproj,
        )
        self.kept_bytes = 0
        """Bytes of memory for the caches of parked texts."""

        self.parallel = 1
        """The number of answers at once, as for `load`."""

        self.cache_disk = CacheDisk(0)
        """How much of its caches may be kept on disk, and for which clients."""

        self.remembers = True
        """Whether answers that repeat an earlier text are drafted from it."""

        self.memory: PairMemory | None = None
        """The planned memory of the model and its draft; None before it is loaded."""

        self.token_s: float | None = None
        """The seconds that a token of the last long prompt took; None before there was one."""

        self.kept_s = 0.0
        """The value of `used_s` when its caches were last written to disk."""

    def load(self) -> IsolatedEngine:
        """Load the model, and note its memory and device. Raises what loading raises."""
        engine = self._open_engine(
            kept_bytes=self.kept_bytes,
            parallel=self.parallel,
            memory=self.remembers,
            cache_disk=self.cache_disk,
            adapters=self.adapters,
        )
        try:
            self.memory = engine.memory().models
        except BaseException:
            engine.close()
            raise
        if self.memory is not None:
            self.needed_bytes = self.memory.needed_bytes
            self.gpu_bytes = sum(self.memory.gpu_bytes)
        self.device = engine.device
        return engine

    async def wait_for_load(self) -> None:
        """Wait until a load that is under way has ended, even if it fails."""
        if self.loading is not None:
            await asyncio.wait([self.loading])

    def set_scales(self, scales: Mapping[int, float]) -> None:
        """Set the scales that the LoRA adapters have in later answers.

        Args:
            scales: the scales by the adapters' numbers. An adapter that is left out gets 0.

        Raises:
            OptionError: there is no adapter of that number.
        """
        self.adapters = with_scales(self.adapters, scales_of(scales))
        if self.engine is not None:
            self.engine.adapter_scales = [adapter.scale for adapter in self.adapters]

    @property
    def sees(self) -> bool:
        """Whether the model reads images; before it is loaded, whether it has a projector."""
        if self.engine is None:
            return self._may_see
        return self.engine.vision is not None

    @property
    def num_at_once(self) -> int:
        """How many answers the model can give at once now.

        1 while it is not loaded: other requests wait until the first one has loaded it.
        """
        if self.engine is None:
            return 1
        return self.engine.parallel

    @property
    def num_slots(self) -> int:
        """The number of answers at once; before the model is loaded, the number to be tried."""
        if self.engine is None:
            return self.parallel
        return self.engine.parallel


_RERANKER_POOLING = 4  # the pooling_type of a reranker, LLAMA_POOLING_TYPE_RANK


class ServedEmbedder(ServedFile[IsolatedEmbedder]):
    """The model of the server that makes embeddings, or ranks documents.

    Args:
        model: the name of a preset, or as for `load_embedder`.

    Raises:
        PresetError: the model's file is not on this machine.
        ModelFileError: its file is damaged, or of the wrong kind.
    """

    def __init__(self, model: str) -> None:
        self._path = locate_model(model)
        header = check_embedder_file(self._path)
        preset = resolve(model).preset
        name = self._path.stem
        if preset is not None:
            name = preset.name
        super().__init__(name, header, preset)
        self.context_length = context_to_open(None, self.num_trained, self.file_name)
        pooling = header.number(f"{self.architecture}.pooling_type")
        self.is_reranker = pooling == _RERANKER_POOLING
        """Whether it ranks documents, and makes no embeddings."""

        self.needed_bytes = embedder_bytes(header, self.context_length)
        self.turn = asyncio.Lock()
        """Held by the request whose texts the model reads."""

    def load(self) -> IsolatedEmbedder:
        return IsolatedEmbedder(self._path)


def _token_text(header: Header, role: str) -> str:
    """The text of a model's token by its role, such as "bos"; "" if there is none."""
    token = header.metadata.get(f"tokenizer.ggml.{role}_token_id")
    if not isinstance(token, int) or not 0 <= token < len(header.tokens):
        return ""
    return header.tokens[token].decode("utf-8", "replace")


def _unknown_model(name: str, names: Sequence[str]) -> RequestError:
    """The error for a name that no model has.

    Args:
        name: the name.
        names: the names to choose from.
    """
    return RequestError(
        f"there is no model {name!r:.80}",
        f"Choose one of: {', '.join(names)}.",
        code="model_not_found",
        param="model",
    )


def _last_use_s(model: ServedFile[Any]) -> float:
    """When a request last used a model: the key for `max` and `min`."""
    return model.used_s


def _is_idle(model: ServedFile[Any]) -> bool:
    """Whether a model is loaded, and no request uses it."""
    return model.engine is not None and model.num_users == 0


class ServedModels:
    """The models of a server: finds them by their names, loads and closes them.

    Args:
        models: the models that answer. The first is the default.
        takes_any_name: whether a request with an unknown name gets one of these models.
        embedder: the model for embeddings, if there is one.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        *,
        takes_any_name: bool,
        embedder: ServedEmbedder | None = None,
    ) -> None:
        self.all = tuple(models)
        """The models that answer."""

        self.embedder = embedder
        self.listed: tuple[ServedModel | ServedEmbedder, ...] = self.all
        """The models that answer, and the embedder at the end."""

        if embedder is not None:
            self.listed = (*self.all, embedder)
        total_bytes = memory_here().total_bytes
        for model in self.all:
            model.kept_bytes = served_kept_bytes(total_bytes, len(self.all))
        self._takes_any_name = takes_any_name

    def named(self, name: str | None) -> ServedModel:
        """The model that answers a request, see `listed_named`.

        Raises:
            RequestError: no model has the name, or the embedder has it.
        """
        model = self.listed_named(name)
        if isinstance(model, ServedEmbedder):
            raise RequestError(
                f"{name} is the model for embeddings and cannot answer questions",
                f"Choose one of: {', '.join(self._names)}.",
                param="model",
            )
        return model

    @property
    def _names(self) -> list[str]:
        return [model.name for model in self.all]

    def embedder_named(self, name: str | None) -> ServedEmbedder:
        """The embedder, for None and for its name; for any name where any name is taken.

        Raises:
            RequestError: there is no embedder, or the name is another.
        """
        if self.embedder is None:
            raise RequestError(
                "there is no model for embeddings here",
                "Start the server with --embeddings MODEL.",
                code="model_not_found",
            )
        if name is None or self._takes_any_name or self.embedder.is_called(name):
            return self.embedder
        raise _unknown_model(name, [self.embedder.name])

    def listed_named(self, name: str | None) -> ServedModel | ServedEmbedder:
        """The model or embedder of a name.

        Args:
            name: the name in a request. For None, and for an unknown name where any name is
                taken, it is the loaded model that was used last, or else the default.

        Raises:
            RequestError: no model has the name.
        """
        for model in self.listed:
            if model.is_called(name):
                return model
        if name is not None and not self._takes_any_name:
            raise _unknown_model(name, self._names)
        loaded = [model for model in self.all if model.engine is not None]
        if loaded:
            return max(loaded, key=_last_use_s)
        return self.all[0]

    def open_first(self) -> None:
        """Load the default model before the server starts. Raises what loading raises."""
        default = self.all[0]
        default.engine = default.timed_load()

    @contextlib.asynccontextmanager
    async def opened(self, model: ServedFile[_Opened]) -> AsyncGenerator[_Opened, None]:
        """Give the engine of a model, which stays open until the context is left.

        The model is loaded if it is not. For that, unused models are closed if memory is short,
        or if an RPC server holds layers of another model, since it serves one at a time. Only a
        request whose turn has come, or that has the embedder's `turn`, may have a model loaded.
        Raises what loading raises.
        """
        model.num_users += 1
        try:
            if model.engine is None:
                await self._load(model)
            assert model.engine is not None
            yield model.engine
        finally:
            model.num_users -= 1
            model.used_s = time.monotonic()

    async def _load(self, model: ServedFile[_Opened]) -> None:
        """Load a model, and close unused models until it fits. Raises what loading raises."""
        while model.engine is None:
            # They are of the embedder, or of clients that have left. Two loads at a time might
            # not fit into memory.
            other_loads = list(self._other_loads(model))
            if other_loads:
                await asyncio.wait(other_loads)
                continue
            if model.loading is None:
                model.loading = asyncio.create_task(self._open(model))
            try:
                # Shielded: if the client leaves, the next request can use the model.
                await asyncio.shield(model.loading)
            except (MemoryLimitError, RpcError):  # closing another model may help
                idle_models = [other for other in self.listed if _is_idle(other)]
                if not idle_models:
                    raise
                await self.close_one(min(idle_models, key=_last_use_s))

    def _other_loads(self, model: ServedFile[Any]) -> Iterator[asyncio.Task[Any]]:
        """The loads of other models that are under way."""
        for other in self.listed:
            if other is not model and other.loading is not None:
                yield other.loading

    async def _open(self, model: ServedFile[_Opened]) -> _Opened:
        """Load a model in a thread. It is the task `loading` of the model."""
        try:
            model.engine = await asyncio.to_thread(model.timed_load)
            return model.engine
        finally:
            model.loading = None

    async def close_unused(self, seconds: float) -> None:
        """Close the models that have been unused for too long.

        No other request may be answered meanwhile: the caller has the only turn.

        Args:
            seconds: how long a model may be unused that has no `keep_s` of its own.
        """
        for model in self.listed:
            if _is_idle(model) and model.left_s(seconds) <= 0:
                await self.close_one(model)

    async def keep_unused(self, seconds: float) -> None:
        """Write to disk, where allowed, the caches of models that have been unused for a while.

        They are not written again before a request has used the model.

        Args:
            seconds: for how long a model has to be unused.
        """
        for model in self.all:
            engine = model.engine
            if engine is None or model.num_users > 0:
                continue
            if time.monotonic() - model.used_s < seconds:
                continue
            is_kept = model.kept_s == model.used_s
            if model.cache_disk.num_bytes > 0 and not is_kept:
                model.kept_s = model.used_s
                with contextlib.suppress(LocalspecError):  # the next question raises it again
                    await asyncio.to_thread(engine._keep_on_disk)

    async def close_one(self, model: ServedFile[Any]) -> None:
        """Close a model, and forget its `keep_s`. The next request loads it again."""
        engine = model.engine
        model.engine = None
        model.keep_s = None
        if engine is not None:
            await asyncio.to_thread(engine.close)

    def stop_embedding(self) -> None:
        """Kill the embedder's process, even if it reads texts now."""
        if self.embedder is not None and self.embedder.engine is not None:
            self.embedder.engine.kill()

    async def close(self) -> None:
        """Close all models, also one that is being loaded."""
        self.stop_embedding()
        for model in self.listed:
            if model.loading is not None:
                await asyncio.wait([model.loading])
            with contextlib.suppress(LocalspecError):  # its process ends with this one
                await self.close_one(model)
