"""The interface of a model's vocabulary, in parts: not every source knows all of it.

The header of a file is a `TokenTable`, an engine in another process has a `Vocabulary`, and
libllama has a `WholeVocabulary`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenTable(Protocol):
    """The entries of a vocabulary, and how a text starts."""

    kind: int
    """libllama's number of the tokenizer."""

    size: int
    """Number of ids."""

    bos: int
    """The token that starts a text, -1 for none."""

    add_bos: bool
    """Whether every text starts with bos."""

    def entries(self) -> list[bytes]:
        """The vocabulary's own entry for every id, in order: (size,)."""


class Vocabulary(Protocol):
    """Text to tokens and back."""

    bos: int
    """The token that starts a text."""

    eos: int
    """The token that ends an answer."""

    add_bos: bool

    def tokenize(
        self,
        text: str,
        *,
        parse_special: bool,
        after: int | None = None,
    ) -> list[int]:
        """Ids of `text` after a token; only with parse_special can it name control tokens."""

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; with special, also that of control tokens."""

    def piece(self, token: int) -> bytes:
        """Bytes of a token in an answer: none for a control token."""

    def text(self, token: int) -> str:
        """The vocabulary's entry for a token."""

    def control_texts(self) -> list[str]:
        """Texts that name control tokens."""

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token, which steers the model."""


def with_bos(tokens: list[int], vocabulary: Vocabulary) -> list[int]:
    """The tokens, with bos in front if every text starts with it."""
    if vocabulary.add_bos and tokens[:1] != [vocabulary.bos]:
        return [vocabulary.bos, *tokens]
    return tokens


class WholeVocabulary(TokenTable, Vocabulary, Protocol):
    """A vocabulary with its single tokens. Lists are (size,), in the order of the ids."""

    def spellings(self) -> list[bytes]:
        """Bytes of every token as a text of its own, control tokens spelled out."""

    def spelled_out(self) -> list[bytes]:
        """Bytes of every token in an answer, control tokens by their entries."""

    def control_ids(self) -> list[int]:
        """Tokens that steer the model."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends an answer."""

    def ends(self) -> list[int]:
        """Every token that ends an answer."""
