"""A model's vocabulary, by libllama."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from localspec.errors import ContextError, OptionError
from localspec.llama.library import llama_cpp
from localspec.system.call_thread import on_deep_stack

# libllama splits text with std::regex, whose matcher in libstdc++ calls itself for every
# character of a run: 320 bytes of stack each, measured. A thread of our own has enough.
_STACK_PER_BYTE = 1024
_BASE_STACK = 1 << 20
_STACK_UNIT = 1 << 16  # the largest page of any system
_SAFE_BYTES = 512  # a text of at most that many bytes is tokenised on the caller's stack
_MAX_TEXT_BYTES = 8 << 20
_MAX_STACK = 1 << 28 if os.name == "nt" else 1 << 34  # Windows: all that Python will ask for
_STEERING = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
_CUT_OUT = _STEERING | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
Result = TypeVar("Result")

_NEVER_MERGED = "\ue000"  # a private character: no entry of a vocabulary continues after it
# HTML that Gemma 2 and 3 have as entries of their own, for the text of web pages.
_HTML_TAG = re.compile(
    r"</?(?:a|b|blockquote|br|caption|code|dd|div|dl|dt|em|h[1-6]|hr|i|img|li|ol|p|pre|span|"
    r"strong|sub|sup|table|tbody|td|tfoot|th|thead|tr|u|ul)>"
)


class LlamaVocabulary:
    """Token ids, their texts and bytes, and which of them end an answer.

    A `WholeVocabulary`, from any thread.

    Args:
        vocab: A pointer of libllama.
        require_open: Called before each use; raises EngineError once the pointer is freed.
        in_use: A lock that has to be held while the pointer is freed.
    """

    def __init__(
        self,
        vocab: int,
        require_open: Callable[[], None],
        in_use: threading.Lock,
    ) -> None:
        self._vocab = vocab
        self._require_open = require_open
        self._in_use = in_use
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self._controls: list[int] | None = None  # None until they are asked for
        self.size: int = llama_cpp.llama_vocab_n_tokens(vocab)
        self.kind: int = llama_cpp.llama_vocab_type(vocab)
        self.bos: int = llama_cpp.llama_vocab_bos(vocab)
        self.eos: int = llama_cpp.llama_vocab_eos(vocab)
        self.add_bos: bool = llama_cpp.llama_vocab_get_add_bos(vocab)

    @contextlib.contextmanager
    def pointer(self) -> Iterator[int]:
        """libllama's pointer, which is not freed while the block runs. For this package only.

        Raises EngineError once it is freed.
        """
        self._require_open()  # in a fork, the lock's copy may be locked for ever
        with self._in_use:
            self._require_open()
            yield self._vocab

    def tokenize(
        self,
        text: str,
        *,
        parse_special: bool,
        after: int | None = None,
    ) -> list[int]:
        """Ids of `text`. Only with parse_special can its characters name a control token.

        Raises ContextError for more text than any model reads.

        Args:
            text: The text.
            parse_special: Whether the texts of control tokens in it name these.
            after: The token before the text, if it was cut out of a longer text. Some
                tokenizers put a space before a text, which is wrong in the middle of one.
        """
        if not isinstance(text, str):
            raise OptionError(f"the text to tokenise is {text!r}", "Give a str.")
        data = text.encode("utf-8", errors="replace")
        # A text starts at the very beginning, or after a token that libllama cuts out.
        starts = after is None or self._attributes(after) & _CUT_OUT
        if self.kind != llama_cpp.LLAMA_VOCAB_TYPE_SPM or starts:
            return self._tokenize(data, parse_special=parse_special)
        mark = _NEVER_MERGED.encode()
        before = self._tokenize(mark, parse_special=parse_special)
        tokens = self._tokenize(mark + data, parse_special=parse_special)
        return tokens[len(before) :]

    def _tokenize(self, data: bytes, *, parse_special: bool) -> list[int]:
        if len(data) > _MAX_TEXT_BYTES:
            raise ContextError(
                f"a text has {len(data)} bytes; {_MAX_TEXT_BYTES} can be tokenised",
                "Shorten it.",
            )
        if len(data) <= _SAFE_BYTES:
            return self._tokenize_here(data, parse_special=parse_special)
        num_units = len(data) * _STACK_PER_BYTE // _STACK_UNIT
        stack = min(_BASE_STACK + num_units * _STACK_UNIT, _MAX_STACK)
        tokenize = functools.partial(self._tokenize_here, data, parse_special=parse_special)
        try:
            return on_deep_stack(tokenize, stack)
        except MemoryError as error:
            raise ContextError(
                f"not enough memory for a text of {len(data)} bytes: {error}",
                "Shorten it.",
            ) from error

    def _tokenize_here(self, data: bytes, *, parse_special: bool) -> list[int]:
        capacity = len(data) + 2
        while True:
            ids = (ctypes.c_int32 * capacity)()
            with self.pointer() as vocab:
                count = llama_cpp.llama_tokenize(
                    vocab,
                    data,
                    len(data),
                    ids,
                    capacity,
                    False,
                    parse_special,
                )
            if count >= 0:
                return ids[:count]
            capacity = -count

    def piece(self, token: int) -> bytes:
        """Bytes of a token in the text of an answer: none for a control token.

        Raises OptionError for an invalid id.
        """
        if not self._is_id(token):
            raise OptionError(
                f"token id {token!r} is not in this vocabulary",
                f"Give 0 to {self.size - 1}.",
            )
        known = self._pieces.get(token)
        if known is None:
            to_piece = llama_cpp.llama_token_to_piece
            with self.pointer() as vocab:
                known = _bytes_from(
                    lambda buffer, size: to_piece(vocab, token, buffer, size, 0, False)
                )
            self._pieces[token] = known
        return known

    def _is_id(self, token: int) -> bool:
        """Whether libllama may be asked about a token: an invalid id ends the process."""
        return isinstance(token, int | np.integer) and 0 <= token < self.size

    def text(self, token: int) -> str:
        """The vocabulary's own entry for a token; empty for an invalid id."""
        if not self._is_id(token):
            return ""
        with self.pointer() as vocab:
            entry: bytes = llama_cpp.llama_vocab_get_text(vocab, token)
        return entry.decode("utf-8", errors="replace")

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; U+FFFD stands for bytes that are not a whole character.

        Args:
            tokens: The ids.
            special: Whether to include the entries of control tokens.

        Raises:
            OptionError: For an invalid id.
        """
        pieces = []
        for token in tokens:
            piece = self.piece(token)
            if special and not piece:
                piece = self.text(token).encode()
            pieces.append(piece)
        return b"".join(pieces).decode("utf-8", errors="replace")

    def entries(self) -> list[bytes]:
        """The vocabulary's own entry for every id, in order: (size,)."""
        return self._of_all(llama_cpp.llama_vocab_get_text)

    def _of_all(self, ask: Callable[[int, int], Result]) -> list[Result]:
        with self.pointer() as vocab:
            return [ask(vocab, token) for token in range(self.size)]

    def spellings(self) -> list[bytes]:
        """Bytes of every token as a text of its own, control tokens spelled out: (size,)."""
        return self._of_all(_spelling)

    def spelled_out(self) -> list[bytes]:
        """Bytes of every token in the text of an answer, control tokens by their entries.

        (size,), in order.
        """
        # No entry is shorter than the bytes for which it stands.
        longest = max(len(entry) for entry in self.entries())
        buffer = ctypes.create_string_buffer(max(64, longest))
        to_piece = llama_cpp.llama_token_to_piece

        def piece(vocab: int, token: int) -> bytes:
            size = to_piece(vocab, token, buffer, len(buffer), 0, True)
            return ctypes.string_at(buffer, max(size, 0))

        return self._of_all(piece)

    def control_ids(self) -> list[int]:
        """Tokens that steer the model, in order."""
        if self._controls is None:  # among 150 000 tokens this takes 0.2 s
            controls = []
            for token, attributes in enumerate(self._of_all(llama_cpp.llama_vocab_get_attr)):
                if self._steers(token, attributes):
                    controls.append(token)
            self._controls = controls
        return list(self._controls)

    def control_texts(self) -> list[str]:
        """Texts that the tokenizer turns into control tokens, if it may."""
        texts = [self.text(token) for token in self.control_ids()]
        return [text for text in texts if text]

    def is_control(self, token: int) -> bool:
        """Whether the token steers the model rather than spelling text.

        libllama cuts two kinds of tokens out of a text before it splits the other text. Control
        tokens steer, and are cut out on request. User-defined tokens are always cut out: most
        vocabularies use them for ordinary text, such as runs of blanks, but some also for marks
        of turns, thoughts and tools. `is_ordinary_text` tells these uses apart.
        """
        return self._steers(token, self._attributes(token))

    def _steers(self, token: int, attributes: int) -> bool:
        if attributes & _STEERING:
            return True
        if not attributes & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED:
            return False
        return self.is_end(token) or not is_ordinary_text(self.text(token))

    def _attributes(self, token: int) -> int:
        if not self._is_id(token):
            return 0
        with self.pointer() as vocab:
            attributes: int = llama_cpp.llama_vocab_get_attr(vocab, token)
        return attributes

    def is_end(self, token: int) -> bool:
        """Whether the token ends an answer: one of a set, not just the eos token."""
        if not self._is_id(token):
            return False
        known = self._ends.get(token)
        if known is None:
            with self.pointer() as vocab:
                known = bool(llama_cpp.llama_vocab_is_eog(vocab, token))
            self._ends[token] = known
        return known

    def ends(self) -> list[int]:
        """Every token that ends an answer."""
        of_all = self._of_all(llama_cpp.llama_vocab_is_eog)
        return [token for token, is_end in enumerate(of_all) if is_end]


def _spelling(vocab: int, token: int) -> bytes:
    """Bytes of a token as a text of its own, a control token spelled out."""
    ids = (ctypes.c_int32 * 1)(token)
    spell = llama_cpp.llama_detokenize
    return _bytes_from(lambda buffer, size: spell(vocab, ids, 1, buffer, size, False, True))


def _bytes_from(write: Callable[[Any, int], int]) -> bytes:
    """Bytes that a function of C writes to a buffer, which grows until they fit."""
    size = 64
    while True:
        buffer = ctypes.create_string_buffer(size)
        count = write(buffer, size)
        if count >= 0:
            return buffer.raw[:count]
        size = -count


def is_ordinary_text(entry: str) -> bool:
    """Whether a user-defined entry is ordinary text, rather than a mark.

    Blanks, words, single characters and HTML tags are ordinary. Other entries have signs around
    them that were chosen because people do not write them, so they count as marks. At worst,
    harmless text is spelled by several tokens.
    """
    if len(entry) == 1 or _HTML_TAG.fullmatch(entry):
        return True
    return all(_is_of_word(character) for character in entry)


def _is_of_word(character: str) -> bool:
    """Whether a character is a blank, a letter, a mark of one, or a number."""
    if character.isspace() or character == "▁":
        return True
    return unicodedata.category(character)[0] in "LMN"
