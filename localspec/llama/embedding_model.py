"""A model that turns texts into vectors, or a query and a document into a score."""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.errors import ModelFileError
from localspec.gguf_file.file_content import FileContent, require_unwritten
from localspec.gguf_file.header import Header
from localspec.gguf_file.shape import context_to_open
from localspec.llama.batch import TextPart, TokenBatch
from localspec.llama.context import LlamaContext
from localspec.llama.handle import Handle
from localspec.llama.library import llama_cpp
from localspec.llama.model_options import LlamaOptions, embedding_batch_size
from localspec.llama.model_vocabulary import LlamaVocabulary
from localspec.llama.native import LoadWatch
from localspec.llama.opening import context_params, loaded_weights, new_context

_MOST_TEXTS = 16  # texts in one decode
_PAIR = b"rerank"  # the name of a reranker's template


class LlamaEmbedder(LlamaContext):
    """A context that pools each text as its file says. Not thread-safe. Made by `load`."""

    def __init__(self, handle: Handle, context_length: int, batch_size: int) -> None:
        super().__init__(handle)
        self._batch_size = batch_size
        self._batch = TokenBatch(batch_size)
        model = handle.model
        vocab = llama_cpp.llama_model_get_vocab(model)
        self.vocabulary = LlamaVocabulary(vocab, handle.require_open, handle.in_use)
        self.context_length = context_length
        pooling = llama_cpp.llama_pooling_type(handle.context)
        if pooling == llama_cpp.LLAMA_POOLING_TYPE_NONE:
            raise ModelFileError(
                f"{self.name} does not say how a text becomes one vector",
                "Choose an embedding model, whose file has a pooling_type.",
            )

        self.ranks = pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK
        """Whether it gives a score to a query and a document."""

        if self.ranks:
            width = llama_cpp.llama_model_n_cls_out(model)
        else:
            width = llama_cpp.llama_model_n_embd_out(model)
        self.width = int(width)
        """How many numbers a text gets."""

        self._pair: str | None = None  # the template of a query and a document
        template: bytes | None = llama_cpp.llama_model_chat_template(model, _PAIR)
        if template is not None:
            self._pair = template.decode("utf-8", "replace")
        self._begin, self._end = self._tokens_around(vocab)
        self._eos = llama_cpp.llama_vocab_eos(vocab)
        self._sep = llama_cpp.llama_vocab_sep(vocab)

    def _tokens_around(self, vocab: int) -> tuple[list[int], list[int]]:
        """The special tokens that libllama puts before and after every text.

        Found by tokenizing a letter with them and without. vocab: libllama's vocabulary.
        """
        letter = "a"
        text = letter.encode()
        inner = self.vocabulary.tokenize(letter, parse_special=False)
        ids = (ctypes.c_int32 * 16)()
        add_special = True
        parse_special = False
        count = llama_cpp.llama_tokenize(
            vocab,
            text,
            len(text),
            ids,
            len(ids),
            add_special,
            parse_special,
        )
        whole = ids[: max(count, 0)]  # the count is negative if they did not fit
        for begin in range(len(whole)):
            end = begin + len(inner)
            if whole[begin:end] == inner:
                return whole[:begin], whole[end:]
        return [], []

    @classmethod
    def load(cls, header: Header, options: LlamaOptions, watch: LoadWatch) -> LlamaEmbedder:
        """Load the file of that header, which `check_embedder_file` has checked.

        Raises as `LlamaModel.open` does.
        """
        path = header.path
        states = FileContent(header).states
        with loaded_weights(path, options, watch) as model:
            trained = llama_cpp.llama_model_n_ctx_train(model)
            length = context_to_open(options.context_length, trained, path.name)
            batch_size = embedding_batch_size(header, length)
            params = context_params(options, length)
            params.n_seq_max = min(_MOST_TEXTS, batch_size)
            # Rounded up to a multiple: libllama plans equal shares for all texts, and asserts
            # that they fit.
            size = -(-batch_size // params.n_seq_max) * params.n_seq_max
            params.n_batch = size
            params.n_ubatch = size
            params.n_outputs_max = size
            params.kv_unified = True
            params.embeddings = True
            context = new_context(model, path.name, params)
        handle = Handle(context, path.name)
        with handle.closed_on_failure():
            made = cls(handle, length, batch_size)
            made.mapped = states
            return made

    def tokens_of(self, text: str) -> list[int]:
        """The tokens of a text, with the tokens that the model wants around it."""
        inner = self.vocabulary.tokenize(text, parse_special=False)
        return [*self._begin, *inner, *self._end]

    def tokens_of_pair(self, query: str, document: str) -> list[int]:
        """The tokens of a query and a document, for a score."""
        if self._pair is not None:
            before, _, rest = self._pair.partition("{query}")
            between, _, after = rest.partition("{document}")
            tokenize = self.vocabulary.tokenize
            return [
                *tokenize(before, parse_special=True),
                *tokenize(query, parse_special=False),
                *tokenize(between, parse_special=True),
                *tokenize(document, parse_special=False),
                *tokenize(after, parse_special=True),
            ]
        end = self._sep
        if self._eos >= 0:
            end = self._eos
        separator = [token for token in (end, self._sep) if token >= 0]
        first = self.vocabulary.tokenize(query, parse_special=False)
        second = self.vocabulary.tokenize(document, parse_special=False)
        return [*self._begin, *first, *separator, *second, *separator[:1]]

    def pooled(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The numbers of each text: (texts, width). Each has 1 … context_length tokens.

        Raises DecodeError, and Interrupted after `interrupt`.
        """
        require_unwritten(self.mapped)
        pooled = np.zeros((len(texts), self.width), dtype=np.float32)
        most = min(_MOST_TEXTS, self._batch_size)
        begin = 0
        while begin < len(texts):
            # As many texts as fit the context together.
            end = begin + 1
            room = self.context_length - len(texts[begin])
            while end < min(len(texts), begin + most) and len(texts[end]) <= room:
                room -= len(texts[end])
                end += 1
            self._pool(texts[begin:end], pooled[begin:end])
            begin = end
        return pooled

    def _pool(self, texts: Sequence[Sequence[int]], out: NDArray[np.float32]) -> None:
        """Fill `out` (texts, width) with the numbers of texts that fit together."""
        self.require_open()
        context = self.handle.context
        if self.handle.memory is not None:
            llama_cpp.llama_memory_clear(self.handle.memory, True)  # noqa: FBT003
        for parts in _batches(texts, self._batch_size):
            count = sum(part.size for part in parts)
            self._start_decode(count)
            status = llama_cpp.llama_decode(context, self._batch.joined(parts))
            self._check_decoded(status, count, 0)
            for part in parts:
                number = part.sequence
                if part.position + part.size == len(texts[number]):
                    pointer = llama_cpp.llama_get_embeddings_seq(context, number)
                    out[number] = np.ctypeslib.as_array(pointer, (self.width,))


def _batches(texts: Sequence[Sequence[int]], size: int) -> Iterator[list[TextPart]]:
    """The texts in batches of `size` tokens; one that does not fit is split."""
    parts: list[TextPart] = []
    room = size
    for number, tokens in enumerate(texts):
        begin = 0
        while begin < len(tokens):
            piece = tokens[begin : begin + room]
            parts.append(TextPart(number, begin, piece, len(piece)))
            begin += len(piece)
            room -= len(piece)
            if room == 0:
                yield parts
                parts = []
                room = size
    if parts:
        yield parts
