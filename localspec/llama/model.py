"""A model that libllama has opened.

Models are opened through the C functions rather than through `llama_cpp.Llama`, which
allocates a row of logits for every position of the context and runs the output layer on
every prompt token. An application's own `Llama` can be adopted nevertheless.

Arguments are checked before each call: a failed assertion in C ends the process.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localspec.errors import ContextError, DecodeError, EngineError, Interrupted, ModelFileError
from localspec.exactness import Exactness
from localspec.gguf_file.adapter import AdapterFile, adapters_identity
from localspec.gguf_file.file_content import FileContent
from localspec.gguf_file.shape import context_to_open
from localspec.llama.batch import TokenBatch
from localspec.llama.cache_state import CacheState
from localspec.llama.context import LlamaContext
from localspec.llama.handle import Handle, Stop
from localspec.llama.hidden_rows import HiddenRows, OutputRows, Rows, TargetRows
from localspec.llama.kv_cache import Cache
from localspec.llama.library import Llama, kernels, llama_cpp
from localspec.llama.model_options import LlamaOptions, text_batch_size
from localspec.llama.model_vocabulary import LlamaVocabulary
from localspec.llama.native import LoadWatch
from localspec.llama.opening import (
    adopted_handle,
    context_params,
    loaded_adapters,
    loaded_weights,
    new_context,
    open_watched,
)
from localspec.llama.projector import PicturePart, Projector
from localspec.llama.quirks.spinning import computed_apart
from localspec.pictures.cells import LAST_CELL, cell_rows
from localspec.sampling.distribution import Logits
from localspec.system.machine import OtherPrograms

_UNUSED = -1  # the first token of an adopted `Llama`, until its owner decodes


class LlamaModel(LlamaContext):
    """A sequence of a llama_cpp context: an implementation of `model_api.Model`.

    Not thread-safe, except for `interrupt`. Open one with `open` or `adopt`.
    """

    adapters: tuple[AdapterFile, ...] = ()
    """The adapters with which it was opened."""

    vision: Projector | None = None
    """The projector with which it reads pictures; None without one."""

    is_blind = False
    """Whether it passes over pictures."""

    def __init__(
        self,
        handle: Handle,
        context_length: int,
        max_outputs: int,
        setting: str,
    ) -> None:
        super().__init__(handle)
        self.exactness = Exactness()

        self.may_change_threads = False
        """Whether the user left the number of threads to localspec."""

        self.most_threads = self.num_threads
        """The number of threads with which it was opened."""

        self.others = OtherPrograms()
        """Measures how many cores other programs leave free."""

        self.num_free_cores = self.num_threads
        """Cores that other programs left free while it was loaded."""

        self.gpus = ""
        """How many layers are on which GPU, in words."""

        self.on_batch: Callable[[int], None] | None = None
        """Called between the batches of a long decode with the number of cached tokens."""

        context = handle.context
        model = handle.model
        self._setting = f"{self.num_threads} threads · {setting}"
        no_pooling = llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED, llama_cpp.LLAMA_POOLING_TYPE_NONE
        if llama_cpp.llama_pooling_type(context) not in no_pooling:
            raise ModelFileError(
                f"{self.name} is an embedding model",
                "Choose a text generation model.",
            )
        vocab = llama_cpp.llama_model_get_vocab(model)
        self.vocabulary = LlamaVocabulary(vocab, handle.require_open, handle.in_use)
        self.chat_template = _template(model, None)
        self.tool_template = _template(model, b"tool_use")
        self.trained_context_length: int = llama_cpp.llama_model_n_ctx_train(model)
        self.context_length = min(context_length, int(llama_cpp.llama_n_ctx_seq(context)))
        self.max_outputs = max_outputs
        self.vocab_size = self.vocabulary.size
        self.num_weight_bytes: int = llama_cpp.llama_model_size(model)
        self.cache = Cache(handle)
        self._rows: TargetRows | OutputRows | None = None  # rows for a head
        self._adapter_contents: list[str] = []
        self._batch = TokenBatch(llama_cpp.llama_n_batch(context))
        self.max_rollback = self._probe_rollback()

    def sibling(self, number: int) -> LlamaModel:
        """A view of this model at another sequence, for another text."""
        other = copy.copy(self)
        other._stop = Stop()
        other.on_batch = None
        other.cache = Cache(self.handle, number)
        if self._rows is not None:
            other._rows = self._rows.sibling()
        return other

    @property
    def identity(self) -> str | None:
        """All that caches and costs depend on, in words; None if the content is unknown."""
        return self.identity_under(self.scales)

    def identity_under(self, scales: Sequence[float]) -> str | None:
        """The identity of the model with these scales of its adapters.

        If all scales are 0, it is the identity of the model without adapters.
        """
        if self.content is None:
            return None
        setting = self._setting + adapters_identity(self._adapter_contents, scales)
        return " · ".join((self.content, setting, kernels()))

    def know_adapters(self, contents: Sequence[FileContent]) -> None:
        """Identify the adapters by their files, as they were before libllama read them."""
        digests = []
        for content in contents:
            digest = content.digest()
            if digest is None:  # the file has changed, so its content is not known
                self.content = None
                return
            digests.append(digest)
        self._adapter_contents = digests

    def _probe_rollback(self) -> int:
        """Decode two tokens, which pages the weights in; try how far the cache rolls back."""
        if self.context_length < 2:
            return 0
        token = max(self.vocabulary.bos, 0)
        computed_apart(functools.partial(self.decode, [token, token], 0))
        most = self.cache.max_rollback(self.context_length)
        self.cache.clear()
        return most

    @classmethod
    def open(
        cls,
        path: Path,
        options: LlamaOptions,
        progress: Callable[[float], None] = lambda _fraction: None,
        adapters: Sequence[AdapterFile] = (),
    ) -> LlamaModel:
        """Load the model file at `path`, which `gguf_file.check` has checked.

        Raises, with libllama's own words, ModelFileError if it refuses the file and
        MemoryLimitError if memory runs out; OptionError for a GPU that does not exist;
        EngineError in a fork of a process that has loaded libllama.

        Args:
            path: The file.
            options: The settings.
            progress: Called with the loaded share, 0 … 1; what it raises ends the load at once,
                as Ctrl-C does.
            adapters: The model's adapters, as `gguf_file.adapter` has checked them.
        """
        return open_watched(progress, functools.partial(cls._load, path, options, adapters))

    @classmethod
    def _load(
        cls,
        path: Path,
        options: LlamaOptions,
        adapters: Sequence[AdapterFile],
        watch: LoadWatch,
    ) -> LlamaModel:
        with loaded_weights(path, options, watch) as weights:
            has_encoder = llama_cpp.llama_model_has_encoder(weights)
            if has_encoder or llama_cpp.llama_model_is_diffusion(weights):
                raise ModelFileError(
                    f"{path} is not a causal language model",
                    "Choose a decoder-only text model.",
                )
            trained = llama_cpp.llama_model_n_ctx_train(weights)
            length = context_to_open(options.context_length, trained, path.name)
            pointers = loaded_adapters(weights, adapters)
            context = new_context(weights, path.name, context_params(options, length))
        handle = Handle(context, path.name, adapters=pointers)
        with handle.closed_on_failure():
            model = cls(handle, length, options.max_outputs, options.summary)
            # Only pictures need larger batches. Texts are read as fast with smaller ones.
            size = min(model.batch_size, text_batch_size(options, length))
            model._batch = TokenBatch(size)
            model.adapters = tuple(adapters)
            model.scales = tuple(adapter.scale for adapter in adapters)
            return model

    @classmethod
    def adopt(cls, llama: Llama, max_outputs: int) -> LlamaModel:
        """Work on an application's `Llama`, with its settings. `close` returns it, emptied.

        Raises ModelFileError if it computes embeddings or holds no weights, EngineError if it
        is closed, another engine works on it, or this is a fork.

        Args:
            llama: The application's model.
            max_outputs: Rows that a decode may return, as in `LlamaOptions`, at most its batch;
                rows for a whole batch take 300 MB.
        """
        handle = adopted_handle(llama)
        setting = f"GPU layers {llama.model_params.n_gpu_layers}, handed in"
        max_outputs = min(max_outputs, int(llama_cpp.llama_n_batch(llama.ctx)))
        with handle.closed_on_failure():
            return cls(handle, llama.n_ctx(), max_outputs, setting)

    def keep_to(self, exactness: Exactness) -> None:
        """Keep the sizes of all decodes from now on within a class."""
        self.exactness = exactness
        if exactness.is_bounded:
            # After the last token there must be space for padding.
            most = llama_cpp.llama_n_ctx_seq(self.handle.context) - exactness.smallest_step + 1
            self.context_length = min(self.context_length, most)
            self.max_outputs = min(self.max_outputs, exactness.largest_step)

    def make_ready(self) -> None:
        """Prepare for an answer: allow decodes again after `interrupt`.

        The cache is emptied if it differs from its record, or if the owner of an adopted
        `Llama` has used it in the meantime. Raises EngineError if it was closed.
        """
        self.require_open()
        self._stop.is_wanted = False
        llama = self.handle.owner
        is_used = llama is not None and (llama.n_tokens or llama.input_ids[0] != _UNUSED)
        if is_used or not self.cache.is_unchanged:
            if llama is not None:
                llama.reset()
            self.cache.clear()
        if llama is not None:
            llama.input_ids[0] = _UNUSED
        self._forget_rows()

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        """Decode as `Model.decode` does. Raises ContextError, DecodeError, or Interrupted."""
        if min(tokens, default=0) <= LAST_CELL:
            tokens = self._up_to_last_picture(tokens, num_logits)
            if not tokens:
                return np.empty((0, self.vocab_size), dtype=np.float32)
        self.check(tokens, num_logits)
        while len(tokens) > self.batch_size:
            # The last batch must have all rows that are asked for.
            size = min(self.batch_size, len(tokens) - num_logits)
            self._decode_batch(tokens[:size], 0, len(tokens) - size)
            tokens = tokens[size:]
            self._has_read()
        return self._decode_batch(tokens, num_logits, 0)

    def prefill_chunk(self, tokens: Sequence[int], num_to_come: int) -> None:
        """Decode a chunk of a prompt. Raises as `decode`.

        Args:
            tokens: The chunk.
            num_to_come: Tokens of the text after it.
        """
        if min(tokens) <= LAST_CELL:
            tokens = self._up_to_last_picture(tokens, 0)
        if tokens:
            self.check(tokens, 0)
            self._decode_batch(tokens, 0, num_to_come)
            self._has_read()

    def _has_read(self) -> None:
        """Keep a batch that was decoded whole: after an error, decoding continues there."""
        self.checkpoint()
        if self.on_batch is not None:
            self.on_batch(self.num_cached)

    def _up_to_last_picture(self, tokens: Sequence[int], num_logits: int) -> Sequence[int]:
        """Decode tokens and pictures, and return the tokens after the last picture.

        A blind model passes over pictures. Raises as `LlamaModel.decode`.
        """
        vision = self.vision
        if vision is None and not self.is_blind:
            raise DecodeError(f"{self.name} was loaded without a projector for pictures")
        if len(tokens) > self.context_length - self.num_cached:
            raise self._too_long(tokens)
        rows = list(cell_rows(tokens))
        if num_logits > len(tokens) - rows[-1].stop:
            raise DecodeError(f"asked for {num_logits} rows of logits, also within a picture")
        begin = 0
        for row in rows:
            if begin < row.start:
                self.decode(tokens[begin : row.start], 0)
            if vision is None:
                self.cache.add_picture(len(row), 0, -1)
            else:
                self._read_picture(vision.part(tokens[row.start : row.stop]))
            begin = row.stop
            self._has_read()
        return tokens[begin:]

    def _read_picture(self, part: PicturePart) -> None:
        """Read a part of a picture, completely or not at all."""
        count = len(part.cells)
        cache = self.cache
        vision = self.vision
        assert vision is not None
        rows = vision.rows(part, lambda: self.is_interrupted)
        try:
            if self._rows is not None:
                # A head begins again after the picture, which has no tokens for it.
                self._rows.begin_decode(is_taken=False)
            self._decode_picture(vision, part, rows)
            cache.add_picture(count, part.num_positions, part.last)
        except BaseException:
            cache.keep(cache.num_cached)  # removes entries that are not recorded
            self._forget_rows()
            raise
        if self._rows is not None:
            self._rows.resume_at(self.num_cached)

    def _decode_picture(self, vision: Projector, part: PicturePart, rows: Rows) -> None:
        cache = self.cache
        positions = part.positions(cache.position)
        count = len(part.cells)
        context = self.handle.context
        size = count
        if vision.is_causal:
            size = min(self.batch_size, count)
        batch = TokenBatch(size, vision.width, rows_alone=True)
        cache.begin_decode()
        try:
            # Without causal attention, each cell attends to all others of its part.
            llama_cpp.llama_set_causal_attn(context, vision.is_causal)
            for begin in range(0, count, size):
                end = min(begin + size, count)
                self._start_decode(end - begin)
                batch.rows[: end - begin] = rows[begin:end]
                filled = batch.filled_at(positions[:, begin:end], cache.number)
                status = llama_cpp.llama_decode(context, filled)
                self.handle.num_decodes += 1
                self._check_decoded(status, end - begin, cache.num_cached)
        finally:
            llama_cpp.llama_set_causal_attn(context, True)

    def given_logits(self, count: int) -> Logits:
        """The rows of logits of the last decode of its context: a view until the next."""
        rows = llama_cpp.llama_get_logits(self.handle.context)
        return np.ctypeslib.as_array(rows, (count, self.vocabulary.size))

    def check(self, tokens: Sequence[int], num_logits: int) -> None:
        """Raise the error of `decode` if its arguments are invalid, or the model is closed."""
        self.require_open()
        if not 0 < len(tokens) <= self.context_length - self.num_cached:
            raise self._too_long(tokens)
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

    def _too_long(self, tokens: Sequence[int]) -> ContextError:
        return ContextError(
            f"{len(tokens)} tokens to decode after {self.num_cached} cached ones; "
            f"the context of {self.name} holds {self.context_length}",
            "Shorten the text or load the model with a larger context.",
        )

    def _decode_batch(self, tokens: Sequence[int], num_logits: int, num_to_come: int) -> Logits:
        """Decode a batch, which num_to_come tokens follow in the same call of `decode`.

        If an exact class bounds the sizes, it is decoded in pieces.
        """
        before = self.num_cached
        begin = 0
        pieces = list[Logits]()
        try:
            while begin < len(tokens):
                start = before + begin
                size = self.exactness.end_of_piece(start, before + len(tokens)) - start
                left = len(tokens) - begin - size
                num_rows = max(min(num_logits - left, size), 0)
                self._try_batch(tokens[begin : begin + size], num_rows, num_to_come + left)
                begin += size
                if num_rows:
                    rows = self.given_logits(num_rows)
                    if left:  # the next piece overwrites them
                        rows = rows.copy()
                    pieces.append(rows)
        except BaseException as error:
            if isinstance(error, Interrupted):
                self.cache.keep_decoded()
            else:
                self.cache.keep(before)  # a failed batch may have left entries
            self._forget_rows()
            raise
        if not pieces:
            return np.empty((0, self.vocab_size), dtype=np.float32)
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces)

    def _try_batch(self, tokens: Sequence[int], num_logits: int, num_to_come: int) -> None:
        count = len(tokens)
        num_padding = max(self.exactness.smallest_step - count, 0)
        self._start_decode(count)
        cache = self.cache
        batch = self._batch.filled(
            tokens,
            cache.position,
            num_logits,
            cache.number,
            num_padding,
        )
        rows = self._rows
        takes_rows = rows is not None and rows.wants(count, num_logits, num_to_come)
        if rows is not None:
            rows.begin_decode(is_taken=takes_rows)
        cache.begin_decode()
        status = llama_cpp.llama_decode(self.handle.context, batch)
        self.handle.num_decodes += 1
        self._check_decoded(status, count, self.num_cached)
        if rows is not None and takes_rows:
            rows.add(self.num_cached, count)
        end = cache.num_cached + count
        cache.add(count + num_padding)
        if num_padding:
            cache.keep(end)
            if cache.num_cached != end:
                raise DecodeError(f"{self.name} could not take back padding; leave exact out")

    @property
    def num_cached(self) -> int:
        return self.cache.num_cached

    @property
    def batch_size(self) -> int:
        """Tokens that one call of libllama takes."""
        return self._batch.size

    def truncate(self, num_cached: int) -> None:
        """Cut as `Model.truncate` does. Raises CacheError for more tokens than there are."""
        self.cache.truncate(num_cached)
        self._forget_rows()

    def _forget_rows(self) -> None:
        """Forget the hidden rows of tokens that are no longer cached."""
        if self._rows is not None:
            self._rows.truncate(self.num_cached)

    def keep_rows(self, rows: TargetRows | OutputRows) -> HiddenRows:
        """Keep the hidden rows of the latest tokens from now on, for a head that reads them.

        Raises EngineError for an adopted `Llama`, whose settings stay as they are.
        """
        if self.handle.owner is not None:
            raise EngineError(
                f"the Llama object of {self.name} keeps no rows for a head",
                "Name the model's file instead.",
            )
        self._rows = rows
        return rows

    @property
    def kept_rows(self) -> HiddenRows:
        """The hidden rows kept for the head."""
        assert self._rows is not None
        return self._rows

    def checkpoint(self) -> None:
        self.cache.checkpoint()

    def restore_state(self, state: CacheState) -> None:
        """Put a state of this very model into the cache.

        Raises CacheError if libllama refuses it; the cache is empty then.
        """
        self.require_open()
        try:
            self.cache.restore_state(state)
        finally:
            if self._rows is not None:
                self._rows.resume_at(self.num_cached)


def _template(model: Any, name: bytes | None) -> str | None:
    """A chat template in the model's file. name: its name, None for the default template."""
    template: bytes | None = llama_cpp.llama_model_chat_template(model, name)
    if template:
        return template.decode("utf-8", errors="replace")
    return None
