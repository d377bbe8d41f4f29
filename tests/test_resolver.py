"""Options that name tokens by text or by nature, on the demo pair's demo_vocabulary."""

from __future__ import annotations

import llama_cpp
import numpy as np
import pytest
from llama_chain import chain_probs

from localspec.errors import OptionError
from localspec.sampling.chain import Resolver, find_breakers
from localspec.sampling.params import SamplingParams

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.mark.parametrize(
    "breakers",
    [(), ("fox",), ("ox and",), ("d a",), ("d",), ("\n",), (" a fo", "and a"), ("|im_",)],
)
def test_breakers_are_those_of_llama_cpp(demo_vocab, demo_vocabulary, breakers):
    """After every beginning of a text that repeats itself DRY's distribution is llama.cpp's."""
    words = 'a fox and a dog: a fox and a "dog"\n* a fox and a dog: a'
    text = demo_vocabulary.tokenize(words, parse_special=False)
    params = SamplingParams(
        temperature=1, top_k=0, top_p=1, min_p=0,
        dry_multiplier=1.0, dry_allowed_length=1, dry_sequence_breakers=breakers,
    )  # fmt: skip
    row = np.random.default_rng(1).normal(size=demo_vocabulary.size).astype(np.float32)
    chain = Resolver(demo_vocabulary).chain(params, 0)
    num_penalised = 0
    for length in range(len(text) + 1):
        distribution = chain.distribution(row, text[:length])
        theirs = chain_probs(row, params, text[:length], demo_vocab)
        np.testing.assert_allclose(distribution.probs, theirs, rtol=1e-5)
        num_penalised += not np.allclose(theirs, chain_probs(row, OFF, [], demo_vocab))
    assert num_penalised > 0


def test_a_breaker_may_begin_inside_a_token(demo_vocabulary):
    """Heads are tokens that end in its beginning, tails what spells the rest."""
    breakers = find_breakers(("ox and",), demo_vocabulary)
    (fox,) = demo_vocabulary.tokenize(" fox", parse_special=False)
    (and_,) = demo_vocabulary.tokenize(" and", parse_special=False)
    assert (and_,) in breakers[fox]
    assert () not in breakers[fox]
    assert () in find_breakers(("ox",), demo_vocabulary)[fox]


def test_a_token_that_contains_a_breaker_is_one_by_itself(demo_vocabulary):
    """Whatever else its end might begin: "did" begins with the d it ends in."""
    (did,) = demo_vocabulary.tokenize(" did", parse_special=False)
    assert find_breakers(("did",), demo_vocabulary)[did] == [()]


def test_control_tokens_can_be_breakers(demo_vocabulary):
    """They are spelled out for this."""
    breakers = find_breakers(("<|im_end|>",), demo_vocabulary)
    assert [token for token, tails in breakers.items() if () in tails] == [demo_vocabulary.eos]


def test_a_bias_on_no_token_is_refused(demo_vocabulary):
    size = demo_vocabulary.size
    with pytest.raises(OptionError, match=f"token {size} of a vocabulary of {size}") as caught:
        Resolver(demo_vocabulary).chain(SamplingParams(logit_bias={size: 1.0}), 0)
    assert str(size - 1) in caught.value.hint


@pytest.mark.parametrize("setting", [{"ignore_eos": True}, {"min_tokens": 1}], ids=str)
def test_every_end_token_of_the_target_is_banned(demo_vocab, demo_vocabulary, setting):
    """The whole set, not just the eos token."""
    is_end = llama_cpp.llama_vocab_is_eog
    ends = [token for token in range(demo_vocabulary.size) if is_end(demo_vocab, token)]
    assert len(ends) > 1
    params = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, **setting)
    row = np.zeros(demo_vocabulary.size, dtype=np.float32)
    distribution = Resolver(demo_vocabulary).chain(params, 0).distribution(row, [])
    assert np.flatnonzero(distribution.probs == 0.0).tolist() == ends
