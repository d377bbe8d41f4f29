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
    """A model under its name, with its engine while it is loaded.

    Args:
        name: the model's name for clients.
        header: the header of its file.
        preset: its preset, if it has one.
    """

    context_length: int
    """Tokens of context that it has here."""

    needed_bytes = 0
    """The memory that it takes while it is loaded."""

    gpu_bytes: int | None = None
    """The part of that memory on GPUs; None if it is not known here."""

    device = ""
    """Where it computes, and why, in words, while it is loaded."""

    def __init__(self, name: str, header: Header, preset: Preset | None) -> None:
        self.name = name
        info = header.path.stat()
        self.file_name = header.path.name
        """The name of its file, without folders."""

        self.created = int(info.st_mtime)
        """The file's Unix time."""

        self.size_bytes = info.st_size
        shape = ModelShape(header)
        self.architecture = header.architecture
        self.num_trained = shape.context_length
        """Tokens of context that the model was trained for."""

        self.width = shape.width
        """Numbers of a row."""

        self.num_weights = header.num_weights
        self.size_label = header.size_label
        """See `Header`."""

        self.chat_template = str(header.metadata.get("tokenizer.chat_template", ""))
        """The source of its template, or ""."""

        self.tool_template = str(header.metadata.get("tokenizer.chat_template.tool_use", ""))
        """The source of its template for tools, or ""."""

        self.quantization = ""
        """What the preset says of it."""

        if preset is not None and preset.target is not None:
            self.quantization = preset.target.quantization
        self.keep_s: float | None = None
        """Seconds that it stays loaded without a request; None is the server's default."""

        self._load_s = 0.0  # how long loading took
        self._loaded_s = 0.0  # when loading ended
        self.engine: _Opened | None = None
        self.loading: asyncio.Task[_Opened] | None = None
        self.num_users = 0
        """The number of requests that use the engine now."""

        self.used_s = 0.0
        """When it was last used."""

    @property
    def fingerprint(self) -> str:
        """A text that changes with the model's file and with localspec's version."""
        facts = f"{__version__} {self.name} {self.size_bytes} {self.created}"
        digest = hashlib.sha256(facts.encode("utf-8", "replace")).hexdigest()
        return f"fp_{digest[:10]}"

    def is_called(self, name: str | None) -> bool:
        """Whether the model has that name. Ollama's clients add a tag to a name."""
        return name in (self.name, f"{self.name}:latest")

    @abc.abstractmethod
    def load(self) -> _Opened:
        """Open the engine. Raises what loading raises."""

    def timed_load(self) -> _Opened:
        """Open the engine by `load`, and note how long that takes."""
        started_s = time.monotonic()
        engine = self.load()
        self._loaded_s = time.monotonic()
        self.used_s = self._loaded_s
        self._load_s = self._loaded_s - started_s
        return engine

    def loading_s(self, since_s: float) -> float:
        """Seconds that loading took, if that ended after `since_s`; else 0."""
        if self._loaded_s >= since_s:
            return self._load_s
        return 0.0

    def left_s(self, unload_s: float) -> float:
        """Seconds until it may be closed.

        Args:
            unload_s: the server's default for `keep_s`.
        """
        limit_s = self.keep_s
        if limit_s is None:
            limit_s = unload_s
        if self.num_users > 0:
            return limit_s
        return limit_s - (time.monotonic() - self.used_s)


class ServedModel(ServedFile[IsolatedEngine]):
    """A model that answers, under its name, with its engine while it is loaded.

    Its name is the preset's, a file's without its ending, or a hub model's own.

    Args:
        model: as for `localspec.load`: a preset or its name, a file, or a model of the hub.
        context_length: tokens of context; None for the preset's, or the model's own.
        rpc: RPC servers that hold layers of it, in place of the preset's.
        device: as for `load`.
        exact: as for `load`.
        mmproj: as for `load`.
        adapters: as for `load`, with the scales of answers that set none.

    Raises:
        PresetError: its files are not here.
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
        found, preset = named_sources(model, {"mmproj": mmproj})
        path = found["target"]
        assert isinstance(path, Path)
        header = check_model_file(path)
        name = str(model) if preset is None else preset.name
        if preset is None and isinstance(resolve(name).model, LocalModel):
            name = path.stem
        super().__init__(name, header, preset)
        self.is_on_servers = bool(common_servers(rpc, preset))
        """Whether RPC servers hold layers of it."""

        self.sampling = SamplingParams()
        """How answers are sampled that do not set it."""

        wanted: tuple[Adapter, ...] = ()
        if preset is not None:
            self.sampling = preset.sampling
            wanted = preset.adapters
            context_length = context_length or preset.context_length
        if adapters is not None:
            wanted = checked_adapters(adapters)
        files = adapter_files(wanted, header)
        self.adapters = tuple(Adapter(str(file.path), file.scale) for file in files)
        self.adapter_headers = tuple(file.header for file in files)
        """The headers of the adapters' files."""

        self.end_texts = [_token_text(header, role) for role in ("bos", "eos")]
        """The texts of its begin and end tokens, or ""."""

        self.fim = fim_tokens(header)
        """Its fill-in-the-middle tokens."""

        projector = found.get("mmproj") or projector_beside(header)
        self._may_see = projector is not None and mmproj != NO_PROJECTOR
        self.context_length = target_context_length(header, context_length)
        self._load = partial(
            IsolatedEngine,
            model,
            context_length=self.context_length,
            device=device,
            rpc=rpc,
            exact=exact,
            mmproj=mmproj,
        )
        self.kept_bytes = 0
        """Memory for the caches of parked texts."""

        self.parallel = 1
        """As for `load`."""

        self.cache_disk = CacheDisk(0)
        """What may be kept on disk of texts, and of whose."""

        self.remembers = True
        """As `memory` for `load`."""

        self.memory: PairMemory | None = None
        """The memory of the models, once it was loaded."""

        self.token_s: float | None = None
        """Seconds per token of the last long prompt, or None."""

        self.kept_s = 0.0
        """The value of `used_s` when its texts were last written to disk."""

    def load(self) -> IsolatedEngine:
        engine = self._load(
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

    async def loaded_or_not(self) -> None:
        """Wait while it is being loaded."""
        if self.loading is not None:
            await asyncio.wait([self.loading])

    def set_scales(self, scales: Mapping[int, float]) -> None:
        """Set the adapters' scales in later answers.

        Args:
            scales: the scales by the adapters' numbers; an adapter without one gets 0.

        Raises:
            OptionError: there is no adapter of that number.
        """
        self.adapters = with_scales(self.adapters, scales_of(scales))
        if self.engine is not None:
            self.engine.adapter_scales = [adapter.scale for adapter in self.adapters]

    @property
    def sees(self) -> bool:
        """Whether the model sees images; before it is loaded, whether there is a projector."""
        if self.engine is None:
            return self._may_see
        return self.engine.vision is not None

    @property
    def num_at_once(self) -> int:
        """Concurrent answers. 1 while the model is not loaded: the first request loads it."""
        if self.engine is None:
            return 1
        return self.engine.parallel

    @property
    def num_slots(self) -> int:
        """Concurrent answers of the loaded model; before, the number that was asked for."""
        if self.engine is None:
            return self.parallel
        return self.engine.parallel


_RANK = 4  # the pooling_type of a reranker, in llama.cpp's numbers


class ServedEmbedder(ServedFile[IsolatedEmbedder]):
    """A model for vectors, under its name.

    Args:
        model: a preset, or as for `load_embedder`.

    Raises:
        PresetError: it is not here.
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
        self.ranks = header.number(f"{self.architecture}.pooling_type") == _RANK
        """Whether it is a reranker."""

        self.needed_bytes = embedder_bytes(header, self.context_length)
        self.turn = asyncio.Lock()
        """Held by the request whose texts it reads."""

    def load(self) -> IsolatedEmbedder:
        return IsolatedEmbedder(self._path)


def _token_text(header: Header, role: str) -> str:
    token = header.metadata.get(f"tokenizer.ggml.{role}_token_id")
    if not isinstance(token, int) or not 0 <= token < len(header.tokens):
        return ""
    return header.tokens[token].decode("utf-8", "replace")


def _unknown(name: str, names: Sequence[str]) -> RequestError:
    return RequestError(
        f"there is no model {name!r:.80}",
        f"Choose one of: {', '.join(names)}.",
        code="model_not_found",
        param="model",
    )


def _last_use_s(model: ServedFile[Any]) -> float:
    return model.used_s


def _is_idle(model: ServedFile[Any]) -> bool:
    """Whether a model is loaded, and no request uses it."""
    return model.engine is not None and model.num_users == 0


class ServedModels:
    """The models of a server.

    Args:
        models: the models that answer, the default first.
        takes_any_name: whether an unknown name means a model that is here.
        embedder: the model for vectors, if there is one.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        *,
        takes_any_name: bool,
        embedder: ServedEmbedder | None = None,
    ) -> None:
        self.all = tuple(models)
        self.embedder = embedder
        self.listed: tuple[ServedModel | ServedEmbedder, ...] = self.all
        """All models, with the embedder."""

        if embedder is not None:
            self.listed = (*self.all, embedder)
        for model in self.all:
            model.kept_bytes = served_kept_bytes(memory_here().total_bytes, len(self.all))
        self._takes_any_name = takes_any_name

    def named(self, name: str | None) -> ServedModel:
        """The model of that name; for an unknown name perhaps the loaded model used last.

        Raises RequestError, also for the name of the embedder.
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
        """The embedder. Raises RequestError if there is none, or it has another name."""
        if self.embedder is None:
            raise RequestError(
                "there is no model for embeddings here",
                "Start the server with --embeddings MODEL.",
                code="model_not_found",
            )
        if name is None or self._takes_any_name or self.embedder.is_called(name):
            return self.embedder
        raise _unknown(name, [self.embedder.name])

    def listed_named(self, name: str | None) -> ServedModel | ServedEmbedder:
        """The model of `named`, or the embedder if the name is its own. Raises RequestError."""
        for model in self.listed:
            if model.is_called(name):
                return model
        if name is not None and not self._takes_any_name:
            raise _unknown(name, self._names)
        loaded = [model for model in self.all if model.engine is not None]
        if loaded:
            return max(loaded, key=_last_use_s)
        return self.all[0]

    def open_first(self) -> None:
        """Load the default before the server starts. Raises what loading raises."""
        default = self.all[0]
        default.engine = default.timed_load()

    @contextlib.asynccontextmanager
    async def opened(self, model: ServedFile[_Opened]) -> AsyncGenerator[_Opened, None]:
        """The engine of a model, open until the context is left, for a request that may begin.

        The model is loaded if need be. Other models are closed for it where memory is short,
        or where an RPC server, which serves one model at a time, is taken. Raises what loading
        raises.
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
        while model.engine is None:
            others = list(self._other_loads(model))
            if others:  # for a client that gave up; two at a time might not fit
                await asyncio.wait(others)
                continue
            if model.loading is None:
                model.loading = asyncio.create_task(self._open(model))
            try:
                # Shielded: if the client gives up, the next one can use it.
                await asyncio.shield(model.loading)
            except (MemoryLimitError, RpcError):  # an RPC server may serve another model
                idle = [other for other in self.listed if _is_idle(other)]
                if not idle:
                    raise
                await self.close_one(min(idle, key=_last_use_s))

    def _other_loads(self, model: ServedFile[Any]) -> Iterator[asyncio.Task[Any]]:
        """The loads of other models that are under way."""
        for other in self.listed:
            if other is not model and other.loading is not None:
                yield other.loading

    async def _open(self, model: ServedFile[_Opened]) -> _Opened:
        try:
            model.engine = await asyncio.to_thread(model.timed_load)
            return model.engine
        finally:
            model.loading = None

    async def close_unused(self, seconds: float) -> None:
        """Close the models that were unused for that long, or for their own `keep_s`.

        The caller is alone in the line.
        """
        for model in self.listed:
            if _is_idle(model) and model.left_s(seconds) <= 0:
                await self.close_one(model)

    async def keep_unused(self, seconds: float) -> None:
        """Write the texts of the models that were unused for that long to disk."""
        for model in self.all:
            engine = model.engine
            if engine is None or model.num_users > 0:
                continue
            if time.monotonic() - model.used_s < seconds:
                continue
            if model.cache_disk.num_bytes > 0 and model.kept_s != model.used_s:
                model.kept_s = model.used_s
                with contextlib.suppress(LocalspecError):  # the next question meets the error
                    await asyncio.to_thread(engine._keep_on_disk)

    async def close_one(self, model: ServedFile[Any]) -> None:
        """Free a model. The next request loads it again."""
        engine = model.engine
        model.engine = None
        model.keep_s = None
        if engine is not None:
            await asyncio.to_thread(engine.close)

    def stop_embedding(self) -> None:
        """End the embedder in the middle of its work."""
        if self.embedder is not None and self.embedder.engine is not None:
            self.embedder.engine.kill()

    async def close(self) -> None:
        """Free all models, including one that is being loaded."""
        self.stop_embedding()
        for model in self.listed:
            if model.loading is not None:
                await asyncio.wait([model.loading])
            with contextlib.suppress(LocalspecError):  # then it ends with this process
                await self.close_one(model)
