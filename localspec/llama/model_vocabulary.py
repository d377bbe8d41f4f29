"""A model's vocabulary, as libllama has it: tokenizing, and what each token stands for.

A token's *entry* is its text in the vocabulary, in the tokenizer's own spelling ("▁the"). Its
*piece* is the bytes that it adds to the text of an answer (" the").
"""

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
# character of a run: 320 bytes of stack each, measured. So a long text is tokenised in a thread
# of our own, whose stack is large enough. All sizes in bytes.
_STACK_PER_BYTE = 1024
_BASE_STACK = 1 << 20
_STACK_UNIT = 1 << 16  # the largest page of any system
_SAFE_BYTES = 512  # a text of at most this size is tokenised on the caller's stack
_MAX_TEXT_BYTES = 8 << 20
_MAX_STACK = 1 << 34
if os.name == "nt":
    _MAX_STACK = 1 << 28  # the most that Python takes there
# Attributes of tokens that steer the model, and of those that libllama cuts out of a text
# before it splits the other text.
_STEERING = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
_CUT_OUT = _STEERING | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
Result = TypeVar("Result")

# A character for private use: vocabularies have no entry in which another character follows it.
_NEVER_MERGED = "\ue000"
# HTML that Gemma 2 and 3 have as entries of their own, for the text of web pages.
_HTML_TAG = re.compile(
    r"</?(?:a|b|blockquote|br|caption|code|dd|div|dl|dt|em|h[1-6]|hr|i|img|li|ol|p|pre|span|"
    r"strong|sub|sup|table|tbody|td|tfoot|th|thead|tr|u|ul)>"
)


class LlamaVocabulary:
    """Token ids, their texts and bytes, and which of them end an answer.

    Implements `WholeVocabulary`. May be used from any thread. Each method raises EngineError
    once the model is closed.

    Args:
        vocab: libllama's pointer to the vocabulary.
        require_open: Called before each use of the pointer; raises EngineError once it is gone.
        in_use: The lock that is held while the pointer is freed.
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
        # Results of `piece`, `is_end` and `control_ids`, kept since libllama takes time.
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self._controls: list[int] | None = None
        self.size: int = llama_cpp.llama_vocab_n_tokens(vocab)
        self.kind: int = llama_cpp.llama_vocab_type(vocab)
        self.bos: int = llama_cpp.llama_vocab_bos(vocab)
        self.eos: int = llama_cpp.llama_vocab_eos(vocab)
        self.add_bos: bool = llama_cpp.llama_vocab_get_add_bos(vocab)

    @contextlib.contextmanager
    def pointer(self) -> Iterator[int]:
        """A block with libllama's pointer, which is not freed while the block runs.

        For this package only. Raises EngineError once the pointer is freed.
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
        """The token ids of a text.

        Args:
            text: The text.
            parse_special: Whether the entry of a control token in the text becomes that token.
                If not, it is spelled by ordinary tokens.
            after: The token before the text, if the text was cut out of a longer one; None for
                a text of its own. Some tokenizers put a space before a text of its own.

        Raises:
            ContextError: For more text than any model reads, or if memory runs out.
            OptionError: If the text is no str.
        """
        if not isinstance(text, str):
            raise OptionError(f"the text to tokenise is {text!r}", "Give a str.")
        data = text.encode("utf-8", errors="replace")
        # After a token that it cuts out, libllama treats what follows as a text of its own.
        is_text_start = after is None or self._attributes(after) & _CUT_OUT
        if self.kind != llama_cpp.LLAMA_VOCAB_TYPE_SPM or is_text_start:
            return self._tokenize(data, parse_special=parse_special)
        # With a character in front the text gets no space. Its tokens are taken off again.
        mark = _NEVER_MERGED.encode()
        mark_tokens = self._tokenize(mark, parse_special=parse_special)
        tokens = self._tokenize(mark + data, parse_special=parse_special)
        return tokens[len(mark_tokens) :]

    def _tokenize(self, data: bytes, *, parse_special: bool) -> list[int]:
        """The token ids of a text of its own in UTF-8, on a stack that is large enough."""
        if len(data) > _MAX_TEXT_BYTES:
            raise ContextError(
                f"a text has {len(data)} bytes; {_MAX_TEXT_BYTES} can be tokenised",
                "Shorten it.",
            )
        if len(data) <= _SAFE_BYTES:
            return self._tokenize_here(data, parse_special=parse_special)
        num_units = len(data) * _STACK_PER_BYTE // _STACK_UNIT
        stack_bytes = min(_BASE_STACK + num_units * _STACK_UNIT, _MAX_STACK)
        tokenize = functools.partial(self._tokenize_here, data, parse_special=parse_special)
        try:
            return on_deep_stack(tokenize, stack_bytes)
        except MemoryError as error:
            raise ContextError(
                f"not enough memory for a text of {len(data)} bytes: {error}",
                "Shorten it.",
            ) from error

    def _tokenize_here(self, data: bytes, *, parse_special: bool) -> list[int]:
        """The token ids of a text of its own in UTF-8, on the stack of this thread."""
        capacity = len(data) + 2  # almost always enough
        add_special = False  # no bos or eos around the text
        while True:
            ids = (ctypes.c_int32 * capacity)()
            with self.pointer() as vocab:
                count = llama_cpp.llama_tokenize(
                    vocab,
                    data,
                    len(data),
                    ids,
                    capacity,
                    add_special,
                    parse_special,
                )
            if count >= 0:
                return ids[:count]
            capacity = -count  # the number of tokens, which did not fit

    def piece(self, token: int) -> bytes:
        """The bytes of a token in the text of an answer; empty for a control token.

        Raises OptionError for an invalid id.
        """
        if not self._is_id(token):
            raise OptionError(
                f"token id {token!r} is not in this vocabulary",
                f"Give 0 to {self.size - 1}.",
            )
        piece = self._pieces.get(token)
        if piece is None:
            to_piece = llama_cpp.llama_token_to_piece
            with self.pointer() as vocab:
                piece = _bytes_from(
                    lambda buffer, size: to_piece(vocab, token, buffer, size, 0, False)
                )
            self._pieces[token] = piece
        return piece

    def _is_id(self, token: int) -> bool:
        """Whether a token is an id of this vocabulary. libllama ends the process for others."""
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
        return self._for_all_ids(llama_cpp.llama_vocab_get_text)

    def _for_all_ids(self, function: Callable[[int, int], Result]) -> list[Result]:
        """(size,) the results of a function of libllama's pointer and a token, for each id."""
        with self.pointer() as vocab:
            return [function(vocab, token) for token in range(self.size)]

    def spellings(self) -> list[bytes]:
        """(size,) the bytes of every token as a text of its own.

        libllama may drop a space at the beginning of such a text. Control tokens are spelled
        out.
        """
        return self._for_all_ids(_spelling)

    def spelled_out(self) -> list[bytes]:
        """(size,) the piece of every token; of control tokens the entry instead."""
        # A piece is not longer than the token's entry.
        longest = max(len(entry) for entry in self.entries())
        buffer = ctypes.create_string_buffer(max(64, longest))
        to_piece = llama_cpp.llama_token_to_piece

        def piece(vocab: int, token: int) -> bytes:
            size = to_piece(vocab, token, buffer, len(buffer), 0, True)
            return ctypes.string_at(buffer, max(size, 0))

        return self._for_all_ids(piece)

    def control_ids(self) -> list[int]:
        """The tokens for which `is_control` is True, ascending."""
        if self._controls is None:  # among 150 000 tokens this takes 0.2 s
            controls = []
            attributes_of_all = self._for_all_ids(llama_cpp.llama_vocab_get_attr)
            for token, attributes in enumerate(attributes_of_all):
                if self._steers(token, attributes):
                    controls.append(token)
            self._controls = controls
        return list(self._controls)

    def control_texts(self) -> list[str]:
        """Texts that the tokenizer turns into control tokens with parse_special."""
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
        """`is_control` for a token whose libllama attributes are known."""
        if attributes & _STEERING:
            return True
        if not attributes & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED:
            return False
        return self.is_end(token) or not is_ordinary_text(self.text(token))

    def _attributes(self, token: int) -> int:
        """libllama's attributes of a token, as bits; 0 for an invalid id."""
        if not self._is_id(token):
            return 0
        with self.pointer() as vocab:
            attributes: int = llama_cpp.llama_vocab_get_attr(vocab, token)
        return attributes

    def is_end(self, token: int) -> bool:
        """Whether the token ends an answer: the eos token, or one of several others.

        False for an invalid id.
        """
        if not self._is_id(token):
            return False
        is_end = self._ends.get(token)
        if is_end is None:
            with self.pointer() as vocab:
                is_end = bool(llama_cpp.llama_vocab_is_eog(vocab, token))
            self._ends[token] = is_end
        return is_end

    def ends(self) -> list[int]:
        """Every token that ends an answer, ascending."""
        is_end_of_all = self._for_all_ids(llama_cpp.llama_vocab_is_eog)
        return [token for token, is_end in enumerate(is_end_of_all) if is_end]


def _spelling(vocab: int, token: int) -> bytes:
    """The bytes of a token as a text of its own, a control token spelled out."""
    ids = (ctypes.c_int32 * 1)(token)
    detokenize = llama_cpp.llama_detokenize
    return _bytes_from(
        lambda buffer, size: detokenize(vocab, ids, 1, buffer, size, False, True)
    )


def _bytes_from(write: Callable[[Any, int], int]) -> bytes:
    """The bytes that a C function writes to a buffer, which grows until they fit.

    Args:
        write: Called with a buffer and its size. It returns the number of bytes written, or, if
            the buffer is too small, the negative number of bytes needed.
    """
    size = 64
    while True:
        buffer = ctypes.create_string_buffer(size)
        count = write(buffer, size)
        if count >= 0:
            return buffer.raw[:count]
        size = -count


def is_ordinary_text(entry: str) -> bool:
    """Whether a user-defined entry is ordinary text, rather than a mark that steers the model.

    Blanks, words, single characters and HTML tags are ordinary. Other entries have signs that
    people do not write, as in "<|user|>", so they count as marks. If one is ordinary after all,
    its text in a prompt is only spelled by several tokens.
    """
    if len(entry) == 1 or _HTML_TAG.fullmatch(entry):
        return True
    return all(_is_word_character(character) for character in entry)


def _is_word_character(character: str) -> bool:
    """Whether a character is a blank, or a letter, combining mark or number in Unicode."""
    if character.isspace() or character == "▁":
        return True
    return unicodedata.category(character)[0] in "LMN"
