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
from localspec.llama.library import Llama, kernels, llama_cpp, stored_template
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
from localspec.pictures.cells import HIGHEST_CELL, cell_ranges
from localspec.sampling.distribution import Logits
from localspec.system.machine import OtherPrograms

# Put in the place of an adopted `Llama`'s first token: its next decode replaces it.
_UNUSED = -1


class LlamaModel(LlamaContext):
    """A model for one text: a sequence of a libllama context. Implements `model_api.Model`.

    Not thread-safe, except for `interrupt`. Open one with `open` or `adopt`; `sibling` makes a
    view for another text.
    """

    adapters: tuple[AdapterFile, ...] = ()
    """The LoRA adapters with which it was opened."""

    vision: Projector | None = None
    """The projector with which it reads pictures; None without one."""

    is_blind = False
    """Whether it skips the pictures of a text, as a draft beside a target that sees does."""

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
        """The most threads for a step: the number with which it was opened."""

        self.other_programs = OtherPrograms()
        """Measures how many cores other programs leave free."""

        self.num_free_cores = self.num_threads
        """Cores that other programs left free while it was loaded."""

        self.gpus = ""
        """How many layers are on which GPU, in words."""

        self.on_batch: Callable[[int], None] | None = None
        """Called with the number of cached tokens after each batch of a long decode but the
        last, each chunk of a prompt, and each picture."""

        context = handle.context
        model = handle.model
        self._setting = f"{self.num_threads} threads · {setting}"
        no_pooling = (
            llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED,
            llama_cpp.LLAMA_POOLING_TYPE_NONE,
        )
        if llama_cpp.llama_pooling_type(context) not in no_pooling:
            raise ModelFileError(
                f"{self.name} is an embedding model",
                "Choose a text generation model.",
            )
        vocab = llama_cpp.llama_model_get_vocab(model)
        self.vocabulary = LlamaVocabulary(vocab, handle.require_open, handle.in_use)
        self.chat_template = stored_template(model, None)
        self.tool_template = stored_template(model, b"tool_use")
        self.trained_context_length: int = llama_cpp.llama_model_n_ctx_train(model)
        self.context_length = min(context_length, int(llama_cpp.llama_n_ctx_seq(context)))
        self.max_outputs = max_outputs
        self.vocab_size = self.vocabulary.size
        self.num_weight_bytes: int = llama_cpp.llama_model_size(model)
        self.cache = Cache(handle)
        self._rows: TargetRows | OutputRows | None = None  # kept for a head; None without one
        self._adapter_digests: list[str] = []
        self._batch = TokenBatch(llama_cpp.llama_n_batch(context))

        self.max_rollback = self._probe_rollback()
        """The most tokens of the last decode that `truncate` can cut without losing others."""

    def sibling(self, number: int) -> LlamaModel:
        """A view of this model for another text, whose cache is the sequence `number`.

        It shares the weights and the context. Its cache, its rows for a head and its
        `interrupt` are its own.
        """
        other = copy.copy(self)
        other._stop = Stop()
        other.on_batch = None
        other.cache = Cache(self.handle, number)
        if self._rows is not None:
            other._rows = self._rows.sibling()
        return other

    @property
    def identity(self) -> str | None:
        """All that caches and costs depend on, in words; None if a file's hash is unknown."""
        return self.identity_under(self.scales)

    def identity_under(self, scales: Sequence[float]) -> str | None:
        """`identity` for other scales of the adapters than the model's own.

        If all scales are 0, it is the identity of the model without adapters.
        """
        if self.content is None:
            return None
        setting = self._setting + adapters_identity(self._adapter_digests, scales)
        return " · ".join((self.content, setting, kernels()))

    def identify_adapters(self, contents: Sequence[FileContent]) -> None:
        """Make the adapters' digests part of `identity`, which is None if one is unknown.

        Args:
            contents: The files of the adapters, noted before libllama read them. A digest is
                unknown if its file has changed since.
        """
        digests = []
        for content in contents:
            digest = content.digest()
            if digest is None:
                self.content = None
                return
            digests.append(digest)
        self._adapter_digests = digests

    def _probe_rollback(self) -> int:
        """The number for `max_rollback`: found by decoding two tokens and removing one.

        The decode also pages the weights in. Afterwards the cache is empty.
        """
        if self.context_length < 2:
            return 0
        token = max(self.vocabulary.bos, 0)  # any token, if there is no bos
        computed_apart(functools.partial(self.decode, [token, token], 0))
        max_rollback = self.cache.max_rollback(self.context_length)
        self.cache.clear()
        return max_rollback

    @classmethod
    def open(
        cls,
        path: Path,
        options: LlamaOptions,
        progress: Callable[[float], None] = lambda _fraction: None,
        adapters: Sequence[AdapterFile] = (),
    ) -> LlamaModel:
        """Load the model file at `path`, which `gguf_file.check` has checked.

        Args:
            path: The model's file.
            options: The settings with which libllama opens it.
            progress: Called with the loaded share, 0 … 1. An exception that it raises ends the
                load at once, as Ctrl-C does.
            adapters: The model's adapters, which `gguf_file.adapter` has checked.

        Raises:
            ModelFileError: If the model generates no text, or if libllama refuses a file, with
                libllama's reason.
            MemoryLimitError: If memory runs out, with libllama's reason.
            OptionError: For a GPU that does not exist, or a context that is too long.
            EngineError: In a fork of a process that has loaded libllama, or for an RPC server
                without a device.
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
        """Do the work of `open`. watch: gets the progress, and may end the load."""
        with loaded_weights(path, options, watch) as weights:
            has_encoder = llama_cpp.llama_model_has_encoder(weights)
            if has_encoder or llama_cpp.llama_model_is_diffusion(weights):
                raise ModelFileError(
                    f"{path} is not a causal language model",
                    "Choose a decoder-only text model.",
                )
            trained_length = llama_cpp.llama_model_n_ctx_train(weights)
            length = context_to_open(options.context_length, trained_length, path.name)
            adapter_pointers = loaded_adapters(weights, adapters)
            context = new_context(weights, path.name, context_params(options, length))
        handle = Handle(context, path.name, adapters=adapter_pointers)
        with handle.closed_on_failure():
            model = cls(handle, length, options.max_outputs, options.summary)
            # Only pictures need larger batches. Texts are read as fast with smaller ones.
            batch_size = min(model.batch_size, text_batch_size(options, length))
            model._batch = TokenBatch(batch_size)
            model.adapters = tuple(adapters)
            model.scales = tuple(adapter.scale for adapter in adapters)
            return model

    @classmethod
    def adopt(cls, llama: Llama, max_outputs: int) -> LlamaModel:
        """A model that works on an application's `Llama`, with the settings of that object.

        Its cache is emptied now, and again by `close`, which leaves the object open.

        Args:
            llama: The application's model.
            max_outputs: Rows of logits that a decode may return, as in `LlamaOptions`. More
                than the object's batch size counts as that size.

        Raises:
            ModelFileError: If the object computes embeddings or holds no weights.
            EngineError: If it is closed, another engine works on it, or this process is a fork.
        """
        handle = adopted_handle(llama)
        setting = f"GPU layers {llama.model_params.n_gpu_layers}, handed in"
        max_outputs = min(max_outputs, int(llama_cpp.llama_n_batch(llama.ctx)))
        with handle.closed_on_failure():
            return cls(handle, llama.n_ctx(), max_outputs, setting)

    def use_exactness(self, exactness: Exactness) -> None:
        """From now on, keep the sizes of decodes within the class, if it is bounded."""
        self.exactness = exactness
        if exactness.is_bounded:
            # After the last token there must be space for padding.
            num_cells = llama_cpp.llama_n_ctx_seq(self.handle.context)
            most_tokens = num_cells - (exactness.smallest_step - 1)
            self.context_length = min(self.context_length, most_tokens)
            self.max_outputs = min(self.max_outputs, exactness.largest_step)

    def make_ready(self) -> None:
        """Prepare for an answer: allow decodes again after `interrupt`.

        The cache is emptied if it differs from its record, or if the application has used an
        adopted `Llama` since the last answer. Raises EngineError as `require_open` does.
        """
        self.require_open()
        self._stop.is_wanted = False
        llama = self.handle.adopted_llama
        is_used = False
        if llama is not None:
            is_used = llama.n_tokens > 0 or llama.input_ids[0] != _UNUSED
        if is_used or not self.cache.is_unchanged:
            if llama is not None:
                llama.reset()
            self.cache.clear()
        if llama is not None:
            llama.input_ids[0] = _UNUSED
        self._forget_rows()

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        """Decode as `Model.decode` does, a long text in several batches.

        Raises ContextError, DecodeError, or Interrupted.
        """
        if min(tokens, default=0) <= HIGHEST_CELL:
            tokens = self._decode_through_pictures(tokens, num_logits)
            if not tokens:
                return np.empty((0, self.vocab_size), dtype=np.float32)
        self.check_decode(tokens, num_logits)
        while len(tokens) > self.batch_size:
            # The last batch must have all tokens whose logits are asked for.
            size = min(self.batch_size, len(tokens) - num_logits)
            self._decode_batch(tokens[:size], 0, len(tokens) - size)
            tokens = tokens[size:]
            self._finish_batch()
        return self._decode_batch(tokens, num_logits, 0)

    def prefill_chunk(self, tokens: Sequence[int], num_to_come: int) -> None:
        """Decode a chunk of a prompt, without logits. Raises as `decode` does.

        Args:
            tokens: The chunk, of at most `batch_size` tokens.
            num_to_come: Tokens of the prompt after the chunk.
        """
        if min(tokens) <= HIGHEST_CELL:
            tokens = self._decode_through_pictures(tokens, 0)
        if tokens:
            self.check_decode(tokens, 0)
            self._decode_batch(tokens, 0, num_to_come)
            self._finish_batch()

    def _finish_batch(self) -> None:
        """Take a checkpoint after a batch, so that a later error cannot lose it; report it."""
        self.checkpoint()
        if self.on_batch is not None:
            self.on_batch(self.num_cached)

    def _decode_through_pictures(
        self,
        tokens: Sequence[int],
        num_logits: int,
    ) -> Sequence[int]:
        """Decode tokens up to and with the last picture. Returns the tokens after it.

        A blind model passes over pictures. Raises as `decode` does.

        Args:
            tokens: Tokens and cells of at least one picture.
            num_logits: The logits that `decode` is to return; they must be those of tokens
                after the last picture.
        """
        vision = self.vision
        if vision is None and not self.is_blind:
            raise DecodeError(f"{self.name} was loaded without a projector for pictures")
        if len(tokens) > self.context_length - self.num_cached:
            raise self._too_long(tokens)
        part_ranges = list(cell_ranges(tokens))
        if num_logits > len(tokens) - part_ranges[-1].stop:
            raise DecodeError(f"asked for {num_logits} rows of logits, also within a picture")
        begin = 0
        for part_range in part_ranges:
            if begin < part_range.start:
                self.decode(tokens[begin : part_range.start], 0)
            begin = part_range.stop
            if vision is None:
                self.cache.add_picture(len(part_range), 0, -1)
            else:
                cells = tokens[part_range.start : part_range.stop]
                self._read_picture(vision.part(cells))
            self._finish_batch()
        return tokens[begin:]

    def _read_picture(self, part: PicturePart) -> None:
        """Decode a part of a picture and record it; after an error the cache has none of it."""
        cache = self.cache
        vision = self.vision
        assert vision is not None
        rows = vision.rows(part, lambda: self.is_interrupted)
        try:
            if self._rows is not None:
                # A head begins again after the picture, which has no tokens for it.
                self._rows.set_output(is_on=False)
            self._decode_picture(vision, part, rows)
            cache.add_picture(len(part.cells), part.num_positions, part.last)
        except BaseException:
            cache.cut_to(cache.num_cached)  # removes entries that are not recorded
            self._forget_rows()
            raise
        if self._rows is not None:
            self._rows.resume_at(self.num_cached)

    def _decode_picture(self, vision: Projector, part: PicturePart, rows: Rows) -> None:
        """Decode the rows of a picture's part in place of tokens.

        A projector without causal attention needs all cells in one batch: each cell attends to
        all others of its part.

        Args:
            vision: The projector that made the rows.
            part: The part, whose cells have positions.
            rows: (cells, width), the row of each cell.
        """
        cache = self.cache
        positions = part.positions(cache.position)
        num_cells = len(part.cells)
        context = self.handle.context
        batch_size = num_cells
        if vision.is_causal:
            batch_size = min(self.batch_size, num_cells)
        batch = TokenBatch(batch_size, vision.width, rows_alone=True)
        cache.begin_decode()
        try:
            llama_cpp.llama_set_causal_attn(context, vision.is_causal)
            for begin in range(0, num_cells, batch_size):
                end = min(begin + batch_size, num_cells)
                count = end - begin
                self._start_decode(count)
                batch.rows[:count] = rows[begin:end]
                c_batch = batch.filled_at(positions[:, begin:end], cache.number)
                status = llama_cpp.llama_decode(context, c_batch)
                self.handle.num_decodes += 1
                self._check_decoded(status, count, cache.num_cached)
        finally:
            llama_cpp.llama_set_causal_attn(context, True)

    def last_logits(self, num_rows: int) -> Logits:
        """(num_rows, vocab) logits of the context's last decode: a view, valid until the next.

        Args:
            num_rows: The number of rows that the decode was asked for.
        """
        rows = llama_cpp.llama_get_logits(self.handle.context)
        return np.ctypeslib.as_array(rows, (num_rows, self.vocabulary.size))

    def check_decode(self, tokens: Sequence[int], num_logits: int) -> None:
        """Raise the error of `decode` if its arguments are invalid, or the model is closed.

        Pictures among the tokens are invalid here.
        """
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
        """Decode a batch of at most `batch_size` tokens. Returns the last rows of logits.

        If only some sizes of decodes are exact, the batch is decoded in pieces of such sizes.
        After an error the cache has the tokens from before; after an interrupt it may also have
        tokens of the batch.

        Args:
            tokens: The batch.
            num_logits: Tokens at its end whose logits are returned.
            num_to_come: Tokens of the text that are to be decoded right after the batch.
        """
        num_cached_before = self.num_cached
        text_end = num_cached_before + len(tokens)
        begin = 0
        row_pieces = list[Logits]()
        try:
            while begin < len(tokens):
                piece_end = self.exactness.end_of_piece(num_cached_before + begin, text_end)
                end = piece_end - num_cached_before
                num_left = len(tokens) - end
                num_rows = max(min(num_logits - num_left, end - begin), 0)
                self._decode_piece(tokens[begin:end], num_rows, num_to_come + num_left)
                begin = end
                if num_rows:
                    rows = self.last_logits(num_rows)
                    if num_left:  # the next piece overwrites them
                        rows = rows.copy()
                    row_pieces.append(rows)
        except BaseException as error:
            if isinstance(error, Interrupted):
                self.cache.keep_decoded()
            else:
                self.cache.cut_to(num_cached_before)  # a failed batch may have left entries
            self._forget_rows()
            raise
        if not row_pieces:
            return np.empty((0, self.vocab_size), dtype=np.float32)
        if len(row_pieces) == 1:
            return row_pieces[0]
        return np.concatenate(row_pieces)

    def _decode_piece(self, tokens: Sequence[int], num_logits: int, num_to_come: int) -> None:
        """Decode tokens by one call of libllama, and record them in the cache.

        A piece smaller than the exact sizes is padded, and the padding is cut again. The rows
        of logits are those of `last_logits`. Arguments as for `_decode_batch`.
        """
        count = len(tokens)
        num_padding = max(self.exactness.smallest_step - count, 0)
        self._start_decode(count)
        cache = self.cache
        c_batch = self._batch.filled(
            tokens,
            cache.position,
            num_logits,
            cache.number,
            num_padding,
        )
        rows = self._rows
        takes_rows = rows is not None and rows.wants(count, num_logits, num_to_come)
        if rows is not None:
            rows.set_output(is_on=takes_rows)
        cache.begin_decode()
        status = llama_cpp.llama_decode(self.handle.context, c_batch)
        self.handle.num_decodes += 1
        self._check_decoded(status, count, self.num_cached)
        if rows is not None and takes_rows:
            rows.add(self.num_cached, count)
        end = cache.num_cached + count
        cache.add(count + num_padding)
        if num_padding:
            cache.cut_to(end)
            if cache.num_cached != end:
                raise DecodeError(f"{self.name} could not take back padding; leave exact out")

    @property
    def num_cached(self) -> int:
        """Cached tokens, including the cells of pictures."""
        return self.cache.num_cached

    @property
    def batch_size(self) -> int:
        """The most tokens that one call of libllama takes."""
        return self._batch.size

    def truncate(self, num_cached: int) -> None:
        """Cut the cache to its first num_cached tokens, as `Model.truncate` does.

        Raises CacheError if there are fewer tokens.
        """
        self.cache.truncate(num_cached)
        self._forget_rows()

    def _forget_rows(self) -> None:
        """Forget the hidden rows of tokens that are no longer cached."""
        if self._rows is not None:
            self._rows.truncate(self.num_cached)

    def keep_rows(self, rows: TargetRows | OutputRows) -> HiddenRows:
        """Copy hidden rows of the tokens decoded from now on into `rows`, and return `rows`.

        Raises EngineError for an adopted `Llama`, whose settings stay as they are.
        """
        if self.handle.adopted_llama is not None:
            raise EngineError(
                f"the Llama object of {self.name} keeps no rows for a head",
                "Name the model's file instead.",
            )
        self._rows = rows
        return rows

    @property
    def kept_rows(self) -> HiddenRows:
        """The hidden rows that are kept for a head. Only after `keep_rows`."""
        assert self._rows is not None
        return self._rows

    def checkpoint(self) -> None:
        """Remember the present recurrent state, to which the cache can be rolled back."""
        self.cache.checkpoint()

    def restore_state(self, state: CacheState) -> None:
        """Replace the cache by a saved state of the same model.

        Raises CacheError if libllama refuses it; the cache is empty then.
        """
        self.require_open()
        try:
            self.cache.restore_state(state)
        finally:
            if self._rows is not None:
                self._rows.resume_at(self.num_cached)
