"""A model that turns texts into vectors, or a query and a document into a score."""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import ctypes
import itertools
import operator
from collections.abc import Sequence

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

_MOST_TEXTS = 16  # in one decode
_PAIR = b"rerank"  # the name of a reranker's template


class LlamaEmbedder(LlamaContext):
    """A context that pools each text as its file says. Not thread-safe. Made by `load`.

    ranks: whether it gives a query and a document a score. width: numbers of a text.
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
        count = (
            llama_cpp.llama_model_n_cls_out if self.ranks else llama_cpp.llama_model_n_embd_out
        )
        self.width = int(count(model))
        template: bytes | None = llama_cpp.llama_model_chat_template(model, _PAIR)
        self._pair = None if template is None else template.decode("utf-8", "replace")
        # What libllama puts around a text of this vocabulary, as around this one.
        inner = self.vocabulary.tokenize("a", parse_special=False)
        ids = (ctypes.c_int32 * 16)()
        add_special = True
        parse_special = False
        count = llama_cpp.llama_tokenize(vocab, b"a", 1, ids, 16, add_special, parse_special)
        whole = ids[: max(count, 0)]
        starts = [at for at in range(len(whole)) if whole[at : at + len(inner)] == inner]
        self._begin = whole[: starts[0]] if starts else []
        self._end = whole[starts[0] + len(inner) :] if starts else []
        self._eos = llama_cpp.llama_vocab_eos(vocab)
        self._sep = llama_cpp.llama_vocab_sep(vocab)

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
            # A multiple: libllama plans equal shares for all texts, and asserts that they fit.
            whole = -(-batch_size // params.n_seq_max) * params.n_seq_max
            params.n_batch = params.n_ubatch = params.n_outputs_max = whole
            params.kv_unified = params.embeddings = True
            context = new_context(model, path.name, params)
        handle = Handle(context, path.name)
        with handle.closed_on_failure():
            made = cls(handle, length, batch_size)
            made.mapped = states
            return made

    def tokens_of(self, text: str) -> list[int]:
        """The tokens of a text, with those that the model wants around it."""
        inner = self.vocabulary.tokenize(text, parse_special=False)
        return [*self._begin, *inner, *self._end]

    def tokens_of_pair(self, query: str, document: str) -> list[int]:
        """The tokens of a query and a document, for a score."""
        if self._pair is not None:
            before, _, rest = self._pair.partition("{query}")
            between, _, behind = rest.partition("{document}")
            parts = ((before, True), (query, False), (between, True), (document, False))
            return [
                token
                for text, special in (*parts, (behind, True))
                for token in self.vocabulary.tokenize(text, parse_special=special)
            ]
        end = self._eos if self._eos >= 0 else self._sep
        separator = [token for token in (end, self._sep) if token >= 0]
        first = self.vocabulary.tokenize(query, parse_special=False)
        second = self.vocabulary.tokenize(document, parse_special=False)
        return [*self._begin, *first, *separator, *second, *separator[:1]]

    def pooled(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The numbers of each text: (texts, width). Each has 1 … context_length tokens.

        Raises DecodeError, and Interrupted after `interrupt`.
        """
        require_unwritten(self.mapped)
        found = np.zeros((len(texts), self.width), dtype=np.float32)
        most = min(_MOST_TEXTS, self._batch_size)
        first = 0
        while first < len(texts):
            last = first + 1
            left = self.context_length - len(texts[first])
            while last < min(len(texts), first + most) and len(texts[last]) <= left:
                last, left = last + 1, left - len(texts[last])
            self._pool(texts[first:last], found[first:last])
            first = last
        return found

    def _pool(self, texts: Sequence[Sequence[int]], out: NDArray[np.float32]) -> None:
        """Fill `out` (texts, width) with the numbers of texts that fit together."""
        self.require_open()
        if self.handle.memory is not None:
            llama_cpp.llama_memory_clear(self.handle.memory, True)  # noqa: FBT003
        rows = [(text, at) for text, tokens in enumerate(texts) for at in range(len(tokens))]
        for begin in range(0, len(rows), self._batch_size):
            some = rows[begin : begin + self._batch_size]
            parts = []
            for number, group in itertools.groupby(some, key=operator.itemgetter(0)):
                positions = [at for _, at in group]
                tokens = texts[number][positions[0] : positions[-1] + 1]
                parts.append(TextPart(number, positions[0], tokens, len(tokens), 0))
            self._start_decode(len(some))
            status = llama_cpp.llama_decode(self.handle.context, self._batch.joined(parts))
            self._check_decoded(status, len(some), 0)
            for number, at in some:
                if at == len(texts[number]) - 1:
                    pointer = llama_cpp.llama_get_embeddings_seq(self.handle.context, number)
                    out[number] = np.ctypeslib.as_array(pointer, (self.width,))
