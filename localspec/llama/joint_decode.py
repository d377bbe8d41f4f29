"""Decodes several texts of a context by one call of libllama."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np

from localspec.errors import Interrupted, LocalspecError
from localspec.exactness import Exactness
from localspec.llama.batch import TextPart, TokenBatch
from localspec.llama.cache import Cache
from localspec.llama.handle import Handle
from localspec.llama.hidden_rows import OutputRows, TargetRows
from localspec.llama.joint import LaneTime, Work
from localspec.llama.library import llama_cpp
from localspec.sampling.distribution import Logits

_FAILED = -3  # libllama's status of a decode that failed in its midst


class _JoinedModel(Protocol):
    """The part of `LlamaModel` that is used here."""

    handle: Handle
    lane: LaneTime
    exactness: Exactness
    _batch: TokenBatch
    _cache: Cache
    _rows: TargetRows | OutputRows | None

    @property
    def is_interrupted(self) -> bool: ...

    def _set_threads(self, num_tokens: int) -> None: ...

    def _given_logits(self, count: int) -> Logits: ...

    def _keep_logits(self, rows: Logits) -> None: ...

    def _check_decoded(self, status: int, num_tokens: int, position: int) -> None: ...

    def _cancelled(self) -> Interrupted: ...


def may_be_joined(model: _JoinedModel) -> bool:
    """Whether a model's decodes may be joined with other texts'.

    Not where that could change rows that are exact, and not where it gains nothing: libllama
    takes recurrent sequences one by one where all tokens have logits, as Medusa's heads ask.
    """
    exactness = model.exactness
    asks_for_all = model._cache.is_recurrent and isinstance(model._rows, OutputRows)
    return (exactness.joined or not exactness.all_sizes) and not asks_for_all


def work_of(
    model: _JoinedModel, tokens: Sequence[int], num_logits: int, num_to_come: int
) -> Work:
    """The decode of a model's tokens, with logits of the last, as others may have a part in it.

    It is padded only where that can be taken back, and costs no rows of logits. num_to_come: as
    in `TargetRows.wants`.
    """
    rows, cache, count = model._rows, model._cache, len(tokens)
    return Work(
        model,
        count,
        model.lane,
        decode_together,
        tokens,
        num_logits,
        cache.number,
        takes_rows=rows is not None and rows.wants(count, num_logits, num_to_come),
        is_piece=num_to_come > 0,
        may_pad=not (cache.is_recurrent or isinstance(rows, OutputRows)),
    )


def decode_together(works: Sequence[Work]) -> None:
    """Decode the tokens of them all, in the thread of the first.

    Each is done then, with an error if it was interrupted, or its tokens cannot be decoded:
    where a joint decode fails, each is tried by itself.
    """
    for work in works:
        if work.model.is_interrupted and not work.is_done:
            work.error, work.is_done = _model(work)._cancelled(), True
    left = [work for work in works if not work.is_done]
    if not left:
        return
    if len(left) > 1 and not _others_let_move(left):
        _decode_apart(left)
        return
    status = _tried(left)
    if status == 2:  # ended, but perhaps not by the wish of all
        _model(left[0]).handle.allow()
        decode_together(left)
    elif status != 0 and len(left) > 1:
        _decode_apart(left)
    elif status != 0 and not left[0].is_done:
        _refuse(left[0], status)


def _decode_apart(works: Sequence[Work]) -> None:
    for work in works:
        decode_together([work])


def _tried(works: Sequence[Work]) -> int:
    """Decode all parts at once; return libllama's status.

    Parts that cannot be tried again are marked as done, with an error.
    """
    begins = [_model(work)._cache.num_cached for work in works]
    status = _FAILED
    try:
        status = _decoded(works)
    finally:
        for work, begin in zip(works, begins, strict=True):
            num_cached = _model(work)._cache.num_cached
            if num_cached == begin + work.num_tokens:
                work.is_done = True  # also if an exception came before that was noted
            elif num_cached != begin:
                _refuse(work, status)  # a recurrent state was lost, and went back further
    return status


def _others_let_move(works: Sequence[Work]) -> bool:
    """Whether no other text's snapshots of a recurrent state are needed any more.

    libllama has the states of a joint decode side by side, and moves others' for that, of which
    it leaves the snapshots where they were.
    """
    caches = list(_model(works[0]).handle.caches.values())
    numbers = {work.sequence for work in works}
    return all(cache.lets_move() for cache in caches if cache.number not in numbers)


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
    ordered = sorted(works, key=lambda work: work.sequence)
    caches = _padded(leader.handle, ordered)
    if caches is None:
        caches, num_tokens = [_model(work)._cache for work in ordered], 0
    else:
        num_tokens = max(work.num_tokens for work in ordered)
    wanted = {work.sequence: work for work in ordered}
    parts = [_part(cache, wanted.get(cache.number), num_tokens) for cache in caches]
    if leader._rows is not None:
        leader._rows.begin_decode(is_taken=works[0].takes_rows)
    context, batch = leader.handle.context, leader._batch.joined(parts)
    given: list[int] = []
    try:
        # All in C: Ctrl-C, which waits for the end of a decode, comes behind its status.
        given.extend(map(llama_cpp.llama_decode, [context], [batch]))
        _record(given[0], ordered, leader, caches, parts)
    except BaseException:
        if given:  # again: Ctrl-C may have struck in the midst, and it is for others, too
            _record(given[0], ordered, leader, caches, parts)
        raise
    leader.handle.num_decodes += 1
    return given[0]


def _record(
    status: int,
    works: Sequence[Work],
    leader: _JoinedModel,
    caches: Sequence[Cache],
    parts: Sequence[TextPart],
) -> None:
    """Note what was decoded, and remove what is not wanted of it. May be called again."""
    if status == 0:
        _share_out(works, leader, parts)
    for cache, part in zip(caches, parts, strict=True):
        if status != 0:
            cache.begin_decode()  # its state is unknown
        if part.num_padding or status != 0:
            cache.keep(cache.num_cached)  # without what is not recorded


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
    """A sequence's part: its tokens, and padding up to num_tokens."""
    tokens = [0] if work is None else list(work.tokens)
    num_own, num_logits = (0, 0) if work is None else (len(tokens), work.num_logits)
    num_padding = max(num_tokens - num_own, 0)
    tokens += tokens[-1:] * (num_own + num_padding - len(tokens))
    return TextPart(cache.number, cache.position, tokens, num_logits, num_padding)


def _share_out(works: Sequence[Work], leader: _JoinedModel, parts: Sequence[TextPart]) -> None:
    """Give each its rows, which are in the order of the parts."""
    ends = itertools.accumulate(len(part.tokens) for part in parts)
    found = {part.sequence: (part, end) for part, end in zip(parts, ends, strict=True)}
    num_rows, first = sum(work.num_logits for work in works), 0
    rows = np.empty((0, 0), dtype=np.float32)
    if num_rows:
        rows = leader._given_logits(num_rows)
    for work in works:
        model, (part, end) = _model(work), found[work.sequence]
        if model._cache.position == part.position:  # not recorded yet
            if work.num_logits:
                model._keep_logits(rows[first : first + work.num_logits])
            if model._rows is not None and work.takes_rows:
                before = end - len(part.tokens)
                model._rows.add(model._cache.num_cached, work.num_tokens, before)
            model._cache.begin_decode()
            model._cache.add(work.num_tokens)
        work.is_done = True
        first += work.num_logits


def _model(work: Work) -> _JoinedModel:
    return cast(_JoinedModel, work.model)
