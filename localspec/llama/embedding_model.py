"""A model that turns texts into vectors, or a query and a document into a score.

Both come from *pooling*: libllama turns the output rows of a text's tokens into one row, the
text's numbers.
"""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import ctypes
import math
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
from localspec.llama.library import llama_cpp, stored_template
from localspec.llama.model_options import LlamaOptions, embedding_batch_size
from localspec.llama.model_vocabulary import LlamaVocabulary
from localspec.llama.native import LoadWatch
from localspec.llama.opening import context_params, loaded_weights, new_context

_MOST_TEXTS = 16  # texts in one decode
_MOST_PROBED = 16  # tokens of one letter with the special tokens around it
_PAIR = b"rerank"  # the name of a reranker's template


class LlamaEmbedder(LlamaContext):
    """An embedding model or reranker, which pools as its file says. Made by `load`.

    Not thread-safe.

    Args:
        handle: The context's handle.
        context_length: The most tokens of a text.
        batch_size: The most tokens of a decode.
    """

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
        """The length of a text's vector, or the number of its scores, 1 or more."""

        # A reranker's template, with {query} and {document}; None without one.
        self._pair_template = stored_template(model, _PAIR)
        self._begin, self._end = self._special_tokens_around(vocab)
        self._eos = llama_cpp.llama_vocab_eos(vocab)
        self._sep = llama_cpp.llama_vocab_sep(vocab)

    def _special_tokens_around(self, vocab: int) -> tuple[list[int], list[int]]:
        """The special tokens that libllama puts before every text, and those after it.

        Found by tokenizing a letter with them and without; empty lists if that fails.

        Args:
            vocab: libllama's pointer to the vocabulary.
        """
        letter = "a"
        text = letter.encode()
        letter_tokens = self.vocabulary.tokenize(letter, parse_special=False)
        ids = (ctypes.c_int32 * _MOST_PROBED)()
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
        tokens = ids[: max(count, 0)]  # the count is negative if they did not fit
        for begin in range(len(tokens)):
            end = begin + len(letter_tokens)
            if tokens[begin:end] == letter_tokens:
                return tokens[:begin], tokens[end:]
        return [], []

    @classmethod
    def load(cls, header: Header, options: LlamaOptions, watch: LoadWatch) -> LlamaEmbedder:
        """Load a model file.

        Raises as `LlamaModel.open` does, but ModelFileError for a model that does not pool
        instead of one that generates no text.

        Args:
            header: The file's header, which `check_embedder_file` has checked.
            options: The settings.
            watch: Gets the progress, and may end the load.
        """
        path = header.path
        states = FileContent(header).states
        with loaded_weights(path, options, watch) as model:
            trained_length = llama_cpp.llama_model_n_ctx_train(model)
            length = context_to_open(options.context_length, trained_length, path.name)
            batch_size = embedding_batch_size(header, length)
            params = context_params(options, length)
            most_texts = min(_MOST_TEXTS, batch_size)
            params.n_seq_max = most_texts
            # libllama plans an equal share of the batch for each text, and asserts that all
            # shares fit. So the batch is rounded up to a multiple of the texts.
            share = math.ceil(batch_size / most_texts)
            params.n_batch = share * most_texts
            params.n_ubatch = params.n_batch
            params.n_outputs_max = params.n_batch
            params.kv_unified = True
            params.embeddings = True
            context = new_context(model, path.name, params)
        handle = Handle(context, path.name)
        with handle.closed_on_failure():
            embedder = cls(handle, length, batch_size)
            embedder.mapped = states
            return embedder

    def text_tokens(self, text: str) -> list[int]:
        """The tokens of a text, with the special tokens that the model wants around it."""
        tokens = self.vocabulary.tokenize(text, parse_special=False)
        return [*self._begin, *tokens, *self._end]

    def pair_tokens(self, query: str, document: str) -> list[int]:
        """The tokens of a query and a document together, to which a reranker gives a score.

        In the reranker's template. Without a template, separated as llama.cpp's server does.
        """
        tokenize = self.vocabulary.tokenize
        query_tokens = tokenize(query, parse_special=False)
        document_tokens = tokenize(document, parse_special=False)
        if self._pair_template is not None:
            before, _, after_query = self._pair_template.partition("{query}")
            between, _, after = after_query.partition("{document}")
            return [
                *tokenize(before, parse_special=True),
                *query_tokens,
                *tokenize(between, parse_special=True),
                *document_tokens,
                *tokenize(after, parse_special=True),
            ]
        end = self._sep
        if self._eos >= 0:
            end = self._eos
        separators = [token for token in (end, self._sep) if token >= 0]
        last = separators[:1]  # the first of them ends the document, too
        return [*self._begin, *query_tokens, *separators, *document_tokens, *last]

    def pool(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """(texts, width) float32: the pooled numbers of each text.

        Raises ModelFileError if the file was written to, DecodeError, and Interrupted after
        `interrupt`.

        Args:
            texts: The tokens of each text: 1 … context_length.
        """
        require_unwritten(self.mapped)
        pooled = np.zeros((len(texts), self.width), dtype=np.float32)
        most_texts = min(_MOST_TEXTS, self._batch_size)
        begin = 0
        while begin < len(texts):
            # As many texts as fit the context together.
            end = begin + 1
            last_end = min(len(texts), begin + most_texts)
            room = self.context_length - len(texts[begin])
            while end < last_end and len(texts[end]) <= room:
                room -= len(texts[end])
                end += 1
            self._pool_together(texts[begin:end], pooled[begin:end])
            begin = end
        return pooled

    def _pool_together(
        self,
        texts: Sequence[Sequence[int]],
        out: NDArray[np.float32],
    ) -> None:
        """Fill `out` (texts, width) with the numbers of texts that fit the context together."""
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
                is_complete = part.position + part.size == len(texts[number])
                if is_complete:
                    pointer = llama_cpp.llama_get_embeddings_seq(context, number)
                    out[number] = np.ctypeslib.as_array(pointer, (self.width,))


def _batches(texts: Sequence[Sequence[int]], size: int) -> Iterator[list[TextPart]]:
    """All tokens of the texts, in batches of at most `size` tokens.

    A text that does not fit into a batch as a whole continues in the next one. The number of a
    part's sequence is the index of its text.
    """
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
