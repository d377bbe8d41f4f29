"""llama.cpp's own sampler chain, in its default order: the reference for our chain."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np

from localspec.sampling.distribution import Logits, Probs
from localspec.sampling.params import SamplingParams

TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


@contextmanager
def vocabulary_of(path: Path) -> Iterator[int]:
    """libllama's pointer to the vocabulary of a model file."""
    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    try:
        yield llama_cpp.llama_model_get_vocab(model)
    finally:
        llama_cpp.llama_model_free(model)


def chain_probs(
    logits: Logits, params: SamplingParams, history: Sequence[int], vocab: int
) -> Probs:
    """What the chain leaves of `logits` (vocab,), as probabilities, dense (vocab,)."""
    tokens = np.zeros(len(logits), dtype=TOKEN_DATA)
    tokens["id"] = np.arange(len(logits))
    tokens["logit"] = logits
    array = llama_cpp.llama_token_data_array(
        ctypes.cast(tokens.ctypes.data, llama_cpp.llama_token_data_p), len(tokens), -1, False
    )
    _apply(_before_typical(params, len(logits), vocab), array, history)
    if params.typical_p < 1.0:
        # A token of probability 0, in float32, makes llama.cpp's entropy NaN and its order
        # arbitrary.
        left = tokens[: array.size]
        possible = left[left["logit"] > left["logit"].max() - 100.0]
        tokens[: len(possible)] = possible
        array.size = len(possible)
    _apply(_from_typical(params), array, history)
    left = tokens[: array.size]
    probs = np.zeros(len(logits))
    weights = np.exp(left["logit"].astype(np.float64) - left["logit"].max())
    probs[left["id"]] = weights / weights.sum()
    return probs


def _before_typical(params: SamplingParams, size: int, vocab: int) -> list[int]:
    biases = [llama_cpp.llama_logit_bias(*pair) for pair in params.logit_bias.items()]
    breakers = [text.encode() for text in params.dry_sequence_breakers]
    return [
        llama_cpp.llama_sampler_init_logit_bias(
            size, len(biases), (llama_cpp.llama_logit_bias * len(biases))(*biases)
        ),
        llama_cpp.llama_sampler_init_penalties(
            size,
            params.penalty_last_n,
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        ),
        llama_cpp.llama_sampler_init_dry(
            vocab,
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            params.dry_penalty_last_n,
            (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        ),
        llama_cpp.llama_sampler_init_top_n_sigma(params.top_n_sigma),
        llama_cpp.llama_sampler_init_top_k(params.top_k),
    ]


def _from_typical(params: SamplingParams) -> list[int]:
    return [
        llama_cpp.llama_sampler_init_typical(params.typical_p, 0),
        llama_cpp.llama_sampler_init_top_p(params.top_p, 0),
        llama_cpp.llama_sampler_init_min_p(params.min_p, 0),
        llama_cpp.llama_sampler_init_temp(params.temperature),
    ]


def _apply(
    samplers: list[int], array: llama_cpp.llama_token_data_array, history: Sequence[int]
) -> None:
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for sampler in samplers:
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    for token in history:
        llama_cpp.llama_sampler_accept(chain, token)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    llama_cpp.llama_sampler_free(chain)
