"""llama.cpp's own grammars, in GBNF: without another library, and slow.

A mask looks at every token of the vocabulary, 20 to 40 ms of a large one. libllama ends the
process where it is told of a token that a grammar forbids, so it is asked first.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec.constraints.gbnf import endless_rule
from localspec.errors import ConstraintError
from localspec.llama.library import llama_cpp
from localspec.llama.vocabulary import Vocabulary, on_deep_stack

if TYPE_CHECKING:
    from localspec.sampling.constraint import Mask

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_MAX_BYTES = 64 << 10
# libllama calls itself for a group in a group, and for a rule that begins with another.
_STACK_BYTES = 64 << 20


class LlamaGrammar:
    """See `Constraint`."""

    is_quick = False

    def __init__(self, vocabulary: Vocabulary, sampler: Any, num_logits: int) -> None:
        self._vocabulary = vocabulary
        self._num_logits = num_logits
        self._sampler = sampler
        self._has_ended = False
        weakref.finalize(self, llama_cpp.llama_sampler_free, sampler)

    @classmethod
    def parse(cls, vocabulary: Vocabulary, text: str, num_logits: int) -> LlamaGrammar:
        """One of a text in GBNF, whose first rule is called root. num_logits: width of a row.

        Raises ConstraintError for a text that is none.
        """
        data = text.encode()
        if len(data) > _MAX_BYTES:
            raise ConstraintError(
                f"the GBNF grammar has {len(data)} bytes; {_MAX_BYTES} are the most",
                "Shorten it.",
            )
        if b"\0" in data:
            raise ConstraintError("the GBNF grammar holds a NUL character", "Take it out.")
        endless = endless_rule(text)
        if endless is not None:
            raise ConstraintError(
                f"the rule {endless} of the GBNF grammar can begin with itself",
                "Let each way around begin with something: item list, not list item.",
            )

        def made() -> Any:
            with vocabulary.pointer() as vocab:
                return llama_cpp.llama_sampler_init_grammar(vocab, data, b"root")

        sampler = on_deep_stack(made, _STACK_BYTES)
        if not sampler:
            raise ConstraintError(
                "libllama cannot read the GBNF grammar, or its rules begin with themselves",
                "It says on stderr what it stumbled over; the first rule has to be root.",
            )
        return cls(vocabulary, sampler, num_logits)

    def copy(self) -> LlamaGrammar:
        """See `Constraint`."""
        with self._vocabulary.pointer():
            sampler = llama_cpp.llama_sampler_clone(self._sampler)
        other = LlamaGrammar(self._vocabulary, sampler, self._num_logits)
        other._has_ended = self._has_ended
        return other

    @property
    def is_done(self) -> bool:
        """See `Constraint`."""
        if self._has_ended:
            return True
        mask = self._allowed(np.arange(self._vocabulary.size))
        return all(self._vocabulary.is_end(int(token)) for token in mask.nonzero()[0])

    def mask(self) -> Mask | None:
        """See `Constraint`."""
        if self._has_ended:
            return None
        mask = np.zeros(self._num_logits, dtype=np.bool_)
        mask[: self._vocabulary.size] = self._allowed(np.arange(self._vocabulary.size))
        return mask

    def _allowed(self, tokens: np.ndarray[Any, Any]) -> Mask:
        """(len(tokens),) whether each may come next."""
        candidates = np.zeros(len(tokens), dtype=_CANDIDATE)
        candidates["id"] = tokens
        array = llama_cpp.llama_token_data_array(
            data=ctypes.cast(candidates.ctypes.data, llama_cpp.llama_token_data_p),
            size=len(tokens),
            selected=-1,
            sorted=False,
        )
        with self._vocabulary.pointer():
            llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))
        allowed: Mask = candidates["logit"] > -np.inf
        return allowed

    def _may_come(self, token: int) -> bool:
        is_id = 0 <= token < self._vocabulary.size
        return is_id and bool(self._allowed(np.array([token]))[0])

    def validate(self, tokens: Sequence[int]) -> int:
        """See `Constraint`."""
        state = self.copy()
        for index, token in enumerate(tokens):
            if state._has_ended:
                break
            if not state._may_come(token):
                return index
            state.commit([token])
        return len(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        """See `Constraint`."""
        for token in tokens:
            if self._has_ended:
                return
            if not self._may_come(token):
                raise ConstraintError(
                    f"token {token} is not what the grammar goes on with",
                    "Ask again: this answer has gone wrong.",
                )
            if self._vocabulary.is_end(token):
                self._has_ended = True
                return
            with self._vocabulary.pointer():
                llama_cpp.llama_sampler_accept(self._sampler, token)

    def forced(self) -> list[int]:
        """See `Constraint`. Finding out would take a mask."""
        return []
