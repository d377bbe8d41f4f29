"""A model's tokens, as libllama knows them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any


class Vocabulary:
    """Token ids, their texts and bytes, and which of them end an answer.

    lib: the llama_cpp module. vocab: a pointer of libllama. require_open: raises EngineError
    once that points to nothing; asked before each use.
    """

    def __init__(self, lib: Any, vocab: int, require_open: Callable[[], None]) -> None:
        self._lib = lib
        self._vocab = vocab
        self._require_open = require_open
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self.size: int = self._lib.llama_vocab_n_tokens(vocab)
        self.kind: int = self._lib.llama_vocab_type(vocab)
        self.bos: int = self._lib.llama_vocab_bos(vocab)
        self.eos: int = self._lib.llama_vocab_eos(vocab)
        self.add_bos: bool = self._lib.llama_vocab_get_add_bos(vocab)

    def _pointer(self) -> int:
        self._require_open()
        return self._vocab

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        """Ids of `text`. Only with parse_special can its characters name a control token."""
        data = text.encode("utf-8", errors="replace")
        capacity = len(data) + 2
        while True:
            ids = (ctypes.c_int32 * capacity)()
            count = self._lib.llama_tokenize(
                self._pointer(), data, len(data), ids, capacity, False, parse_special
            )
            if count >= 0:
                return ids[:count]
            capacity = -count

    def piece(self, token: int) -> bytes:
        """Bytes of a token as they stand in an answer: none for a control token."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._render(token)
        return known

    def _render(self, token: int) -> bytes:
        capacity = 64
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            count = self._lib.llama_token_to_piece(
                self._pointer(), token, buffer, capacity, 0, False
            )
            if count >= 0:
                return buffer.raw[:count]
            capacity = -count

    def text(self, token: int) -> str:
        """The vocabulary's own entry for a token; empty for an id that is none."""
        if not 0 <= token < self.size:
            return ""
        entry: bytes = self._lib.llama_vocab_get_text(self._pointer(), token)
        return entry.decode("utf-8", errors="replace")

    def entries(self) -> list[bytes]:
        """The vocabulary's own entry for every id, in order: (size,)."""
        entry, vocab = self._lib.llama_vocab_get_text, self._pointer()
        return [entry(vocab, token) for token in range(self.size)]

    def spellings(self) -> list[bytes]:
        """Bytes of every token as a text of its own, control tokens spelled out: (size,)."""
        vocab = self._pointer()
        return [self._spelling(vocab, token) for token in range(self.size)]

    def _spelling(self, vocab: int, token: int) -> bytes:
        capacity = 64
        ids = (ctypes.c_int32 * 1)(token)
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            count = self._lib.llama_detokenize(vocab, ids, 1, buffer, capacity, False, True)
            if count >= 0:
                return buffer.raw[:count]
            capacity = -count

    def control_texts(self) -> list[str]:
        """Texts that the tokenizer turns into control tokens when it is told to."""
        special = self._lib.LLAMA_TOKEN_ATTR_CONTROL | self._lib.LLAMA_TOKEN_ATTR_UNKNOWN
        attributes, vocab = self._lib.llama_vocab_get_attr, self._pointer()
        texts = (self.text(i) for i in range(self.size) if attributes(vocab, i) & special)
        return [text for text in texts if text]

    def is_end(self, token: int) -> bool:
        """Whether the token ends an answer: one of a set, not just the eos token."""
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(
                self._lib.llama_vocab_is_eog(self._pointer(), token)
            )
        return known

    def ends(self) -> list[int]:
        """Every token that ends an answer."""
        is_end, vocab = self._lib.llama_vocab_is_eog, self._pointer()
        return [token for token in range(self.size) if is_end(vocab, token)]
