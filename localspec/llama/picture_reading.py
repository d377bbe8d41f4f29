"""How a model reads a text with pictures, up to the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from localspec.errors import ContextError, DecodeError
from localspec.llama.batch import TokenBatch
from localspec.llama.cache import Cache
from localspec.llama.handle import Handle
from localspec.llama.hidden_rows import OutputRows, Rows, TargetRows
from localspec.llama.library import llama_cpp
from localspec.llama.projector import PicturePart, Projector
from localspec.pictures.cells import cell_rows
from localspec.sampling.distribution import Logits


class _ReadingModel(Protocol):
    """What is used here of a `LlamaModel`."""

    vision: Projector | None
    is_blind: bool
    name: str
    handle: Handle
    context_length: int
    on_batch: Callable[[int], None] | None
    _cache: Cache
    _rows: TargetRows | OutputRows | None

    @property
    def num_cached(self) -> int: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def is_interrupted(self) -> bool: ...

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits: ...

    def checkpoint(self) -> None: ...

    def _alone(
        self, num_tokens: int = 0, *, is_piece: bool = False
    ) -> AbstractContextManager[None]: ...

    def _forget_rows(self) -> None: ...

    def _start_decode(self, num_tokens: int) -> None: ...

    def _check_decoded(self, status: int, num_tokens: int, position: int) -> None: ...


def read_up_to_last_picture(
    model: _ReadingModel, tokens: Sequence[int], num_logits: int
) -> Sequence[int]:
    """Decode tokens and pictures; what is left is text behind the last picture.

    A model that sees nothing passes over pictures. Raises as `LlamaModel.decode`.
    """
    vision = model.vision
    if vision is None and not model.is_blind:
        raise DecodeError(f"{model.name} was loaded without a projector for pictures")
    if len(tokens) > model.context_length - model.num_cached:
        raise ContextError(
            f"{len(tokens)} tokens and cells to decode after {model.num_cached} cached ones; "
            f"the context of {model.name} holds {model.context_length}",
            "Shorten the text or load the model with a larger context.",
        )
    rows = list(cell_rows(tokens))
    if num_logits > len(tokens) - rows[-1].stop:
        raise DecodeError(f"asked for {num_logits} rows of logits, also within a picture")
    begin = 0
    for row in rows:
        if begin < row.start:
            model.decode(tokens[begin : row.start], 0)
        if vision is None:
            with model._alone():
                model._cache.add_picture(len(row), 0, -1)
        else:
            _read(model, vision.part(tokens[row.start : row.stop]))
        begin = row.stop
        model.checkpoint()
        if model.on_batch is not None:
            model.on_batch(model.num_cached)
    return tokens[begin:]


def _read(model: _ReadingModel, part: PicturePart) -> None:
    """Read a part of a picture, wholly or not at all."""
    count, cache, vision = len(part.cells), model._cache, model.vision
    assert vision is not None
    with model._alone(is_piece=True):  # which says nothing of what a prompt's tokens take
        rows = vision.rows(part, lambda: model.is_interrupted)
    try:
        with model._alone(count, is_piece=True):
            if model._rows is not None:
                # A head begins anew behind it: there are no tokens that it could read.
                model._rows.begin_decode(is_taken=False)
            _decode(model, vision, part, rows)
            cache.add_picture(count, part.num_positions, part.last)
    except BaseException:
        with model._alone():
            cache.keep(cache.num_cached)  # without what is not recorded
        model._forget_rows()
        raise
    if model._rows is not None:
        model._rows.go_on_at(model.num_cached)


def _decode(model: _ReadingModel, vision: Projector, part: PicturePart, rows: Rows) -> None:
    cache = model._cache
    positions, count = part.positions(cache.position), len(part.cells)
    context = model.handle.context
    size = min(model.batch_size, count) if vision.is_causal else count
    batch = TokenBatch(size, vision.width, rows_alone=True)
    cache.begin_decode()
    try:
        # Where it is not, each cell attends to all others of its part.
        llama_cpp.llama_set_causal_attn(context, vision.is_causal)
        for begin in range(0, count, size):
            end = min(begin + size, count)
            model._start_decode(end - begin)
            batch.rows[: end - begin] = rows[begin:end]
            filled = batch.filled_at(positions[:, begin:end], cache.number)
            status = llama_cpp.llama_decode(context, filled)
            model.handle.num_decodes += 1
            model._check_decoded(status, end - begin, cache.num_cached)
    finally:
        llama_cpp.llama_set_causal_attn(context, True)  # noqa: FBT003
