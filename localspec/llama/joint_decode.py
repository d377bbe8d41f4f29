"""One decode of libllama for several texts of a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np

from localspec.errors import Interrupted, LocalspecError
from localspec.llama.batch import TextPart, TokenBatch
from localspec.llama.cache import Cache
from localspec.llama.handle import Handle
from localspec.llama.joint import Work
from localspec.llama.library import llama_cpp
from localspec.sampling.distribution import Logits
from localspec.vocabulary import TokenTable


class _JoinedModel(Protocol):
    """What is used here of a `LlamaModel`."""

    handle: Handle
    vocabulary: TokenTable
    _batch: TokenBatch
    _cache: Cache

    def _set_threads(self, num_tokens: int) -> None: ...

    def _keep_logits(self, rows: Logits) -> None: ...

    def _check_decoded(self, status: int, num_tokens: int, position: int) -> None: ...

    def _cancelled(self) -> Interrupted: ...


def decode_together(works: Sequence[Work]) -> None:
    """Decode the tokens of them all, in the thread of the first.

    Each is done then, with an error if it was interrupted, or its tokens cannot be decoded:
    where a joint decode fails, each is tried by itself.
    """
    for work in works:
        if work.model.is_interrupted:
            work.error, work.is_done = _model(work)._cancelled(), True
    left = [work for work in works if not work.is_done]
    if not left:
        return
    try:
        status = _decoded(left)
    finally:
        for cache in [_model(work)._cache for work in left if not work.is_done]:
            cache.keep(cache.num_cached)  # it may have left entries that are not recorded
    if status == 2:  # ended, but perhaps not by the wish of all
        left[0].model.handle.allow()
        decode_together(left)
    elif status != 0 and len(left) > 1:
        for work in left:
            decode_together([work])
    elif status != 0:
        _refuse(left[0], status)


def _refuse(work: Work, status: int) -> None:
    """Note the error of a decode that failed."""
    model = _model(work)
    try:
        model._check_decoded(status, work.num_tokens, model._cache.num_cached)
    except LocalspecError as error:
        work.error, work.is_done = error, True


def _decoded(works: Sequence[Work]) -> int:
    """libllama's status of a decode of all, which are done if it is 0."""
    leader = _model(works[0])
    leader._set_threads(works[0].num_tokens)
    # In this order libllama has as many of them as it can in one graph.
    works = sorted(works, key=lambda work: _model(work)._cache.number)
    models = [_model(work) for work in works]
    batch = leader._batch.joined(
        [
            TextPart(model._cache.number, model._cache.num_cached, work.tokens, work.num_logits)
            for model, work in zip(models, works, strict=True)
        ]
    )
    for model in models:
        model._cache.begin_decode()
    context = leader.handle.context
    status: int = llama_cpp.llama_decode(context, batch)
    leader.handle.num_decodes += 1
    if status != 0:
        return status
    num_rows, first = sum(work.num_logits for work in works), 0
    rows = np.empty((0, leader.vocabulary.size), dtype=np.float32)
    if num_rows:
        given = llama_cpp.llama_get_logits(context)
        rows = np.ctypeslib.as_array(given, (num_rows, leader.vocabulary.size))
    for model, work in zip(models, works, strict=True):
        model._keep_logits(rows[first : first + work.num_logits])
        model._cache.add(work.num_tokens)
        work.is_done = True
        first += work.num_logits
    return status


def _model(work: Work) -> _JoinedModel:
    return cast(_JoinedModel, work.model)
