"""Turns sampling options that name tokens by text or kind into ids of one vocabulary."""

from __future__ import annotations

from functools import cached_property

from localspec.errors import OptionError
from localspec.sampling.chain import SamplerChain
from localspec.sampling.constraint import Constraint
from localspec.sampling.params import SamplingParams
from localspec.sampling.penalties import Breakers
from localspec.vocabulary import WholeVocabulary

_LONGEST_TAIL = 20  # tokens of a breaker after its first; llama.cpp's bound


class Resolver:
    """Resolves options against the target's vocabulary, and caches what takes a scan."""

    def __init__(self, vocabulary: WholeVocabulary) -> None:
        self._vocabulary = vocabulary
        # Only the last ones, since each answer may have others.
        self._breakers: tuple[tuple[str, ...], Breakers] = ((), {})

    def chain(
        self,
        params: SamplingParams,
        num_prompt_tokens: int,
        constraint: Constraint | None = None,
        num_said: int = 0,
    ) -> SamplerChain:
        """The chain of an answer.

        Raises OptionError for a bias on no token, or a constrained answer that is not to end
        where its constraint does.
        """
        if constraint is not None and (params.ignore_eos or params.min_tokens):
            name = "ignore_eos" if params.ignore_eos else "min_tokens"
            raise OptionError(
                f"{name} is set for an answer that is to end where its constraint does",
                "Leave out one of the two.",
            )
        size = self._vocabulary.size
        unknown = [token for token in params.logit_bias if token >= size]
        if unknown:
            raise OptionError(
                f"logit_bias names token {unknown[0]} of a vocabulary of {size}",
                f"Token ids are 0 to {size - 1}.",
            )
        return SamplerChain(
            params,
            num_prompt_tokens=num_prompt_tokens,
            num_said=num_said,
            ends=self._ends if params.ignore_eos or params.min_tokens else (),
            breakers=self._breakers_for(params),
            constraint=constraint,
        )

    @cached_property
    def _ends(self) -> list[int]:
        return self._vocabulary.ends()

    def _breakers_for(self, params: SamplingParams) -> Breakers:
        texts = params.dry_sequence_breakers
        if params.dry_multiplier == 0.0 or not texts:
            return {}
        if texts != self._breakers[0]:
            self._breakers = (texts, find_breakers(texts, self._vocabulary))
        return self._breakers[1]


def find_breakers(texts: tuple[str, ...], vocabulary: WholeVocabulary) -> Breakers:
    """Every way in which tokens can spell one of `texts`, perhaps with other text around it.

    After llama.cpp: a token that contains the text is a breaker by itself; one that ends in
    its beginning is a breaker if the tokens of the rest follow.
    """
    breakers: dict[int, set[tuple[int, ...]]] = {}
    spellings = list(enumerate(vocabulary.spellings()))
    for text in texts:
        whole = text.encode()
        for token, spelling in spellings:
            if whole in spelling:
                breakers.setdefault(token, set()).add(())
        for cut in range(1, len(text)):
            head = text[:cut].encode()
            rest = vocabulary.tokenize(text[cut:], parse_special=False)
            for token, spelling in spellings:
                if spelling.endswith(head) and whole not in spelling:
                    breakers.setdefault(token, set()).add(tuple(rest[:_LONGEST_TAIL]))
    return {token: sorted(tails) for token, tails in breakers.items()}
