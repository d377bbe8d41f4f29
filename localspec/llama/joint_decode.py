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
    except BaseException:
        for cache in list(_model(left[0]).handle.caches.values()):
            cache.keep(cache.num_cached)  # it may have left entries that are not recorded
        raise
    if status == 2:  # ended, but perhaps not by the wish of all
        _model(left[0]).handle.allow()
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
    works = sorted(works, key=lambda work: work.sequence)
    caches = _padded(leader.handle, works)
    if caches is None:
        caches, num_tokens = [_model(work)._cache for work in works], 0
    else:
        num_tokens = max(work.num_tokens for work in works)
    wanted = {work.sequence: work for work in works}
    parts = [_part(cache, wanted.get(cache.number), num_tokens) for cache in caches]
    for cache in caches:
        cache.begin_decode()
    context = leader.handle.context
    status: int = llama_cpp.llama_decode(context, leader._batch.joined(parts))
    leader.handle.num_decodes += 1
    if status == 0:
        _share_out(works, leader)
    for cache, part in zip(caches, parts, strict=True):
        if part.num_padding or status != 0:
            cache.keep(cache.num_cached)  # without what is not recorded
    return status


def _padded(handle: Handle, works: Sequence[Work]) -> list[Cache] | None:
    """The caches of all sequences from the first to the last, if each has room for padding."""
    size, caches = max(work.num_tokens for work in works), list[Cache]()
    most_cached = llama_cpp.llama_n_ctx_seq(handle.context)
    for number in range(works[0].sequence, works[-1].sequence + 1):
        cache = handle.caches.get(number)
        if cache is None or cache.num_cached + size > most_cached:
            return None
        caches.append(cache)
    return caches


def _part(cache: Cache, work: Work | None, num_tokens: int) -> TextPart:
    """What a sequence decodes: its tokens, and as many as it lacks of any others."""
    tokens = [0] if work is None else list(work.tokens)
    num_own, num_logits = (0, 0) if work is None else (len(tokens), work.num_logits)
    num_padding = max(num_tokens - num_own, 0)
    tokens += tokens[-1:] * (num_own + num_padding - len(tokens))
    return TextPart(cache.number, cache.position, tokens, num_logits, num_padding)


def _share_out(works: Sequence[Work], leader: _JoinedModel) -> None:
    """Give each its rows, which are in this order."""
    num_rows, first = sum(work.num_logits for work in works), 0
    rows = np.empty((0, leader.vocabulary.size), dtype=np.float32)
    if num_rows:
        given = llama_cpp.llama_get_logits(leader.handle.context)
        rows = np.ctypeslib.as_array(given, (num_rows, leader.vocabulary.size))
    for work in works:
        model = _model(work)
        model._keep_logits(rows[first : first + work.num_logits])
        model._cache.add(work.num_tokens)
        work.is_done = True
        first += work.num_logits


def _model(work: Work) -> _JoinedModel:
    return cast(_JoinedModel, work.model)
