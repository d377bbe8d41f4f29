"""libllama behind `Model`.

Models are opened through the C functions rather than through `llama_cpp.Llama`, which
allocates a row of logits for every position of the context and runs the output head on
every prompt token. An application's own `Llama` can be handed in all the same.

What a caller can get wrong is checked before the call: an assertion in C ends the process.
"""

from __future__ import annotations

import functools
import platform
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from localspec.errors import (
    ClosedError,
    ContextError,
    DecodeError,
    EngineError,
    Interrupted,
    ModelFileError,
)
from localspec.gguf_file.shape import context_to_open
from localspec.llama import params as llama_params
from localspec.llama.batch import TokenBatch
from localspec.llama.cache import Cache
from localspec.llama.cache_state import CacheState
from localspec.llama.handle import Handle
from localspec.llama.hidden_rows import HiddenRows, OutputRows, TargetRows
from localspec.llama.library import (
    Llama,
    complaints,
    llama_cpp,
    own_process,
    stop_callback,
    system_info,
)
from localspec.llama.native import LoadWatch
from localspec.llama.opening import load_weights, new_context, open_watched
from localspec.llama.options import LlamaOptions
from localspec.llama.thread_count import ThreadCount
from localspec.llama.vocabulary import LlamaVocabulary
from localspec.sampling.distribution import Logits

_adopted: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
_UNUSED = -1  # in place of the first token that the owner of an adopted `Llama` decodes


class LlamaModel:
    """One llama_cpp context with one cached sequence: an implementation of `model.Model`.

    Not thread-safe, but for `interrupt`. Open one with `open` or `adopt`.
    """

    def __init__(
        self,
        handle: Handle,
        name: str,
        context_length: int,
        max_outputs: int,
        setting: str,
    ) -> None:
        self.handle = handle
        self.content: str | None = None  # see `content`; None if nobody knows what it is
        self.may_change_threads = False  # whether their number was left to us
        # Called between the batches of a long decode with the number of tokens that are cached.
        self.on_batch: Callable[[int], None] | None = None
        self.num_decodes = 0  # that libllama has been asked for
        self.name = name
        context, model = handle.context, handle.model
        self._threads = ThreadCount(llama_cpp, handle)
        self._setting = f"{self._threads.of_steps} threads · {setting}"
        llama_params.check_pools_nothing(llama_cpp, context, name)
        vocab = llama_cpp.llama_model_get_vocab(model)
        self.vocabulary = LlamaVocabulary(llama_cpp, vocab, handle.require_open, handle.in_use)
        template: bytes | None = llama_cpp.llama_model_chat_template(model, None)
        self.chat_template = template.decode("utf-8", errors="replace") if template else None
        self.trained_context_length: int = llama_cpp.llama_model_n_ctx_train(model)
        self.context_length = min(context_length, int(llama_cpp.llama_n_ctx_seq(context)))
        self.max_outputs = max_outputs
        self.vocab_size = self.vocabulary.size
        self.num_weight_bytes: int = llama_cpp.llama_model_size(model)
        self._cache = Cache(handle, name)
        self._rows: TargetRows | OutputRows | None = None  # of what is cached, for a head
        self._batch = TokenBatch(llama_cpp, llama_cpp.llama_n_batch(context))
        self.max_rollback = self._probe_rollback()

    @property
    def identity(self) -> str | None:
        """All that changes caches and costs, in words; None if the content is not known."""
        if self.content is None:
            return None
        build = f"llama-cpp-python {llama_cpp.__version__}, {system_info()}"
        processor = platform.processor() or platform.machine()
        return " · ".join((self.content, self._setting, build, processor))

    @property
    def num_threads(self) -> int:
        """Threads of a step's decode. May be set between two; a prompt's keep their number."""
        self.require_open()
        return self._threads.of_steps

    @num_threads.setter
    def num_threads(self, count: int) -> None:
        self.require_open()
        self._threads.use(count)

    def _probe_rollback(self) -> int:
        """The most tokens of a decode that the cache can lose again: see `Cache`.

        The trial also pages the weights in, which the first answer would have to do.
        """
        first = self.vocabulary.bos if self.vocabulary.bos >= 0 else 0
        if self.context_length < 2:
            return 0
        self.decode([first, first], 0)
        most = self._cache.max_rollback(self.context_length)
        self._cache.clear()
        return most

    @classmethod
    def open(
        cls,
        path: Path,
        options: LlamaOptions,
        progress: Callable[[float], None] = lambda _fraction: None,
    ) -> LlamaModel:
        """Load the model file at `path`, already checked by `gguf_file.check`.

        progress: called with the loaded share, 0 … 1; what it raises ends the load at once,
        as Ctrl-C does. Raises, with libllama's own words, ModelFileError if it refuses the
        file and MemoryLimitError if memory runs out; OptionError for a GPU that is not there;
        EngineError in a fork of a process that has loaded libllama.
        """
        return open_watched(progress, functools.partial(cls._load, path, options))

    @classmethod
    def _load(cls, path: Path, options: LlamaOptions, watch: LoadWatch) -> LlamaModel:
        model = load_weights(path, options, watch)
        try:
            llama_params.check_generates(llama_cpp, model, path)
            trained = llama_cpp.llama_model_n_ctx_train(model)
            length = context_to_open(options.context_length, trained, path.name)
            params = llama_params.context_params(llama_cpp, options, length)
            context = new_context(model, path.name, params)
        except BaseException:
            llama_cpp.llama_model_free(model)
            raise
        handle = Handle(llama_cpp, context, path.name, stop_callback)
        return cls._on(handle, path.name, length, options.max_outputs, options.summary)

    @classmethod
    def _on(
        cls, handle: Handle, name: str, length: int, max_outputs: int, setting: str
    ) -> LlamaModel:
        """The model of a handle, which is closed if that fails."""
        try:
            return cls(handle, name, length, max_outputs, setting)
        except BaseException:
            handle.close()
            raise

    @classmethod
    def adopt(cls, llama: Llama, max_outputs: int) -> LlamaModel:
        """Work on an application's `Llama`, with its settings. `close` gives it back, emptied.

        max_outputs: as in `LlamaOptions`, within a batch of its own; those of a whole batch
        take 300 MB. Raises ModelFileError if it computes embeddings or holds no weights,
        EngineError if it is closed, another engine works on it, or this is a fork.
        """
        own_process.require("libllama")
        if llama.ctx is None:
            raise ClosedError("the Llama object is closed", "Create it again.")
        if llama.context_params.embeddings or llama.model_params.vocab_only:
            raise ModelFileError(
                f"the Llama object of {llama.model_path} computes embeddings or has no weights",
                "Create it without embedding=True and vocab_only=True.",
            )
        other = _adopted.get(llama.ctx)
        if other is not None and other.context is not None:
            raise EngineError(
                f"the Llama object of {llama.model_path} is in another engine",
                "Close that engine first; one object holds one text.",
            )
        llama.reset()  # type: ignore[no-untyped-call]
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llama.ctx), True)
        name = Path(llama.model_path).name
        handle = Handle(llama_cpp, llama.ctx, name, stop_callback, owner=llama)
        _adopted[llama.ctx] = handle
        setting = f"GPU layers {llama.model_params.n_gpu_layers}, handed in"
        max_outputs = min(max_outputs, int(llama_cpp.llama_n_batch(llama.ctx)))
        return cls._on(handle, name, llama.n_ctx(), max_outputs, setting)

    def begin(self) -> None:
        """Get ready for an answer: allow decodes again after `interrupt`.

        An adopted `Llama` may have been used by its owner meanwhile; what the cache then
        holds is dropped, as is what libllama has otherwise than it is thought to have. Raises
        EngineError if it was closed.
        """
        self.require_open()
        self.handle.allow()
        llama = self.handle.owner
        is_used = llama is not None and (llama.n_tokens or llama.input_ids[0] != _UNUSED)
        if is_used or not self._cache.is_unchanged:
            if llama is not None:
                llama.reset()
            self._cache.clear()
        if llama is not None:
            llama.input_ids[0] = _UNUSED
        self._forget_rows()

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        """See `Model.decode`. Raises ContextError, DecodeError, or Interrupted."""
        self._check(tokens, num_logits)
        before = self.num_cached
        try:
            while len(tokens) > self._batch.size:
                # The last batch must be long enough to hold every row that is asked for.
                size = min(self._batch.size, len(tokens) - num_logits)
                self._decode_batch(tokens[:size], 0, len(tokens) - size)
                tokens = tokens[size:]
                before = self.num_cached  # a whole batch stays: who asks again goes on there
                if self.on_batch is not None:
                    self.on_batch(self.num_cached)
            self._decode_batch(tokens, num_logits, 0)
        except BaseException:
            self._cache.keep(before)  # an aborted batch leaves some of its entries behind
            self._forget_rows()
            raise
        if num_logits == 0:
            return np.empty((0, self.vocab_size), dtype=np.float32)
        rows = llama_cpp.llama_get_logits(self.handle.context)
        return np.ctypeslib.as_array(rows, (num_logits, self.vocab_size))

    def require_open(self) -> None:
        """Raise EngineError if the model was freed, by us or its owner, or forked."""
        self.handle.require_open()

    def _check(self, tokens: Sequence[int], num_logits: int) -> None:
        self.require_open()
        if not 0 < len(tokens) <= self.context_length - self.num_cached:
            raise ContextError(
                f"{len(tokens)} tokens to decode after {self.num_cached} cached ones; "
                f"the context of {self.name} holds {self.context_length}",
                "Shorten the text or load the model with a larger context.",
            )
        if not 0 <= num_logits <= min(self.max_outputs, len(tokens)):
            raise DecodeError(
                f"asked for {num_logits} rows of logits from {len(tokens)} tokens; "
                f"{self.name} was opened for {self.max_outputs}"
            )
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise DecodeError(
                f"token ids {min(tokens)} to {max(tokens)} do not fit a vocabulary of "
                f"{self.vocab_size}"
            )

    def _decode_batch(self, tokens: Sequence[int], num_logits: int, num_to_come: int) -> None:
        """Decode them, num_to_come others following in the same call of `decode`."""
        if self.handle.is_interrupted:
            raise Interrupted(f"a decode of {self.name} was cancelled")
        count = len(tokens)
        self._threads.get_ready(count)
        batch = self._batch.filled(tokens, self.num_cached, num_logits)
        if self._rows is not None:
            self._rows.begin_decode(count, num_logits, num_to_come)
        self._cache.begin_decode()
        status = llama_cpp.llama_decode(self.handle.context, batch)
        self.num_decodes += 1
        if status == 2:
            raise Interrupted(f"a decode of {self.name} was cancelled")
        if status != 0:
            raise DecodeError(
                f"libllama could not decode {count} tokens after {self.num_cached} "
                f"(status {status}){complaints.because()}",
                "Out of memory? Try a smaller context or fewer GPU layers.",
            )
        if self._rows is not None:
            self._rows.add(self.num_cached, count)
        self._cache.add(count)

    @property
    def num_cached(self) -> int:
        return self._cache.num_cached

    def truncate(self, num_cached: int) -> None:
        """See `Model.truncate`. Raises CacheError for more tokens than there are."""
        self._cache.truncate(num_cached)
        self._forget_rows()

    def _forget_rows(self) -> None:
        """Forget the hidden rows of tokens that are no longer cached."""
        if self._rows is not None:
            self._rows.truncate(self.num_cached)

    def keep_rows(self, layers: tuple[int, ...]) -> HiddenRows:
        """Keep the hidden rows of the latest tokens from now on, for a head that reads them.

        layers: see `TargetRows`.

        Raises EngineError for an adopted `Llama`, whose settings stay as they are.
        """
        self._require_own_settings()
        self._rows = TargetRows(self.handle, layers)
        return self._rows

    def keep_output_rows(self) -> HiddenRows:
        """Keep what the output layer reads at the latest tokens, as `keep_rows` does."""
        self._require_own_settings()
        self._rows = OutputRows(self.handle)
        return self._rows

    def _require_own_settings(self) -> None:
        if self.handle.owner is not None:
            raise EngineError(
                f"the Llama object of {self.name} keeps no rows for a head",
                "Name the model's file instead.",
            )

    def checkpoint(self) -> None:
        self._cache.checkpoint()

    def state_bytes(self) -> int:
        """Bytes that `save_state` would copy now; 0 if nothing is cached."""
        self.require_open()
        return self._cache.state_bytes()

    def save_state(self) -> CacheState:
        """A copy of what is cached. Raises CacheError if libllama fails to give it."""
        self.require_open()
        return self._cache.save_state()

    def reach(self, state: CacheState, num_tokens: int) -> int:
        """How many tokens are left of a state that is restored and cut to num_tokens."""
        return self._cache.reach(state, num_tokens)

    def restore_state(self, state: CacheState) -> None:
        """Make a state of this very model what is cached.

        Raises CacheError if libllama refuses it; the cache is empty then.
        """
        self.require_open()
        try:
            self._cache.restore_state(state)
        finally:
            if self._rows is not None:
                self._rows.go_on_at(self.num_cached)

    def interrupt(self) -> None:
        """End a running decode, and refuse new ones until `begin`. From any thread."""
        self.handle.interrupt()

    @property
    def is_interrupted(self) -> bool:
        """Whether `interrupt` was called since `begin`."""
        return self.handle.is_interrupted

    def close(self) -> None:
        """Free the model, or give an adopted `Llama` back. Idempotent.

        So does dropping the last reference, and the interpreter's end.
        """
        self.handle.close()
