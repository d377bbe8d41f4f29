"""The vocabulary of an engine in another process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from localspec.isolated.child import EngineFacts


class RemoteVocabulary:
    """A `Vocabulary`. ask: what one returns, by its name and arguments."""

    def __init__(self, ask: Callable[..., Any], facts: EngineFacts) -> None:
        self._ask = ask
        self.bos, self.eos, self.add_bos = facts.bos, facts.eos, facts.add_bos

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return str(self._ask("detokenize", list(tokens), special=special))

    def tokenize(
        self, text: str, *, parse_special: bool, after: int | None = None
    ) -> list[int]:
        keywords = {"parse_special": parse_special, "after": after}
        return list(self._ask("tokenize", text, **keywords))

    def text(self, token: int) -> str:
        return str(self._ask("text", token))

    def control_texts(self) -> list[str]:
        return list(self._ask("control_texts"))

    def is_control(self, token: int) -> bool:
        return bool(self._ask("is_control", token))

    def max_text_bytes(self, num_tokens: int) -> int:
        return int(self._ask("max_text_bytes", num_tokens))
