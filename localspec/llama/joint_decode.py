"""Decodes several texts of a context by one call of libllama."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.llama.batch import TextPart
from localspec.llama.handle import Handle
from localspec.llama.hidden_rows import OutputRows
from localspec.llama.joint_costs import RowTimes
from localspec.llama.kv_cache import Cache
from localspec.llama.library import llama_cpp
from localspec.llama.model import LlamaModel
from localspec.sampling.distribution import Logits


@dataclass(slots=True, eq=False)
class JointPart:
    """A text's part of a joint decode: the arguments of `LlamaModel.decode`, and its result."""

    model: LlamaModel
    """The model, or a head."""

    tokens: Sequence[int]
    num_logits: int

    rows: Logits | None = None
    """The rows of logits, after the decode."""

    error: BaseException | None = None
    """The error, if it failed."""

    def decode(self) -> None:
        """Decode this text alone, and set its rows or its error."""
        try:
            self.rows = self.model.decode(self.tokens, self.num_logits)
        except Exception as error:
            self.error = error

    @property
    def sequence(self) -> int:
        """The number of the text's sequence in the context."""
        return self.model.cache.number

    @property
    def takes_rows(self) -> bool:
        """Whether a head reads the hidden rows of this decode."""
        rows = self.model._rows
        return rows is not None and rows.wants(len(self.tokens), self.num_logits, 0)

    @property
    def may_be_joined(self) -> bool:
        """Whether other texts may share this decode.

        False if sharing could change exact rows, or saves no time: libllama decodes recurrent
        sequences one by one if all tokens have logits, as Medusa's heads need.
        """
        model = self.model
        if not isinstance(model, LlamaModel):  # a head
            return False
        asks_for_all = model.cache.is_recurrent and isinstance(model._rows, OutputRows)
        exactness = model.exactness
        return (exactness.joined or not exactness.holds) and not asks_for_all

    @property
    def may_pad(self) -> bool:
        """Whether padding can be cut from the cache, and costs no rows of logits."""
        return not (self.model.cache.is_recurrent or isinstance(self.model._rows, OutputRows))


def joinable(parts: Sequence[JointPart], times: RowTimes) -> tuple[list[JointPart], int]:
    """The parts to decode in one call, the first among them, and the number of rows computed.

    Args:
        parts: The parts of one context.
        times: Seconds that this context takes for a number of rows.
    """
    first = parts[0]
    chosen = [first]
    if not first.may_be_joined:
        return chosen, len(first.tokens)
    left = list(parts[1:])
    fitting = _fitting(chosen, left, times)
    while fitting is not None:
        left.remove(fitting)
        chosen.append(fitting)
        fitting = _fitting(chosen, left, times)
    return chosen, _block_rows(chosen)


def _fitting(
    chosen: Sequence[JointPart],
    left: Sequence[JointPart],
    times: RowTimes,
) -> JointPart | None:
    """The first part that can be joined to the chosen ones, if joining it pays."""
    for part in left:
        if _fits(part, chosen, times):
            return part
    return None


def _fits(part: JointPart, chosen: Sequence[JointPart], times: RowTimes) -> bool:
    """Whether a part can be joined to the chosen ones, and joining it pays."""
    first = chosen[0]
    if part.takes_rows != first.takes_rows or not part.may_be_joined:
        return False
    if part.model.scales != first.model.scales:  # a decode has one set of scales
        return False
    joined = [*chosen, part]
    num_rows = _block_rows(joined)
    # Several graphs would scatter a text's hidden rows, which a head reads side by side.
    if num_rows > part.model.handle.graph_size:
        return False
    num_tokens = sum(len(other.tokens) for other in joined)
    if num_rows == num_tokens:
        return True
    apart = [_block_rows(chosen), len(part.tokens)]
    return part.may_pad and times.pays(apart, num_rows)


def _block_rows(parts: Sequence[JointPart]) -> int:
    """The number of rows in the smallest block, sequences x tokens, that holds all parts."""
    numbers = [part.sequence for part in parts]
    num_sequences = max(numbers) - min(numbers) + 1
    most_tokens = max(len(part.tokens) for part in parts)
    return num_sequences * most_tokens


def decode_parts(parts: Sequence[JointPart]) -> None:
    """Decode the parts by one call if possible, else one by one.

    Afterwards each part has its rows, valid until the next decode, or its error.
    """
    if len(parts) == 1:
        parts[0].decode()
        return
    wanted = [part for part in parts if _may_be_tried(part)]
    if len(wanted) > 1 and _may_move_others(wanted):
        _try_together(wanted)
    for part in parts:
        if part.rows is not None or part.error is not None:
            continue
        part.decode()
        if part.rows is not None:
            part.rows = part.rows.copy()  # the next decode overwrites them


def _may_be_tried(part: JointPart) -> bool:
    """Whether a part is valid and not interrupted; sets the error of an invalid part."""
    try:
        part.model.check(part.tokens, part.num_logits)
    except Exception as error:
        part.error = error
    return part.error is None and not part.model.is_interrupted


def _may_move_others(parts: Sequence[JointPart]) -> bool:
    """Whether no other text still needs snapshots of its recurrent state.

    libllama puts the states of a joint decode side by side. It moves the states of other texts
    out of the way, but not their snapshots, which are lost.
    """
    caches = list(parts[0].model.handle.caches.values())
    numbers = {part.sequence for part in parts}
    return all(cache.lets_move() for cache in caches if cache.number not in numbers)


def _try_together(parts: Sequence[JointPart]) -> None:
    """Decode the parts by one call. A part without rows and error can be decoded again."""
    # In ascending order libllama puts as many sequences as possible into one graph.
    parts = sorted(parts, key=lambda part: part.sequence)
    leader = parts[0].model
    caches = _padded(leader.handle, parts)
    num_tokens = max(len(part.tokens) for part in parts)
    if caches is None:
        caches = [part.model.cache for part in parts]
        num_tokens = 0
    wanted = {part.sequence: part for part in parts}
    texts = [_text_part(cache, wanted.get(cache.number), num_tokens) for cache in caches]
    leader._set_up(len(parts[0].tokens))
    if leader._rows is not None:
        leader._rows.begin_decode(is_taken=parts[0].takes_rows)
    leader.handle.begin_decode([part.model._stop for part in parts])
    status = llama_cpp.llama_decode(leader.handle.context, leader._batch.joined(texts))
    leader.handle.num_decodes += 1
    begins = [part.model.num_cached for part in parts]
    if status == 0:
        _share_out(parts, texts)
    for cache, text in zip(caches, texts, strict=True):
        if status != 0:
            cache.begin_decode()  # a recurrent state is unknown
        if text.num_padding or status != 0:
            cache.keep(cache.num_cached)  # cut tokens that are not recorded
    for part, begin in zip(parts, begins, strict=True):
        if status != 0 and part.model.num_cached != begin:
            part.error = part.model.failed(status, len(part.tokens), part.model.num_cached)


def _padded(handle: Handle, parts: Sequence[JointPart]) -> list[Cache] | None:
    """The caches from the first part's to the last's; None if one is missing or too full."""
    size = max(len(part.tokens) for part in parts)
    caches = list[Cache]()
    most_cached = llama_cpp.llama_n_ctx_seq(handle.context)
    for number in range(parts[0].sequence, parts[-1].sequence + 1):
        cache = handle.caches.get(number)
        if cache is None or cache.num_cached + size > most_cached:
            return None
        caches.append(cache)
    return caches


def _text_part(cache: Cache, part: JointPart | None, num_tokens: int) -> TextPart:
    """A sequence's part of the batch: its tokens, and padding up to num_tokens."""
    if part is None:
        return TextPart(cache.number, cache.position, (), 0, num_tokens)
    num_padding = max(num_tokens - len(part.tokens), 0)
    return TextPart(cache.number, cache.position, part.tokens, part.num_logits, num_padding)


def _share_out(parts: Sequence[JointPart], texts: Sequence[TextPart]) -> None:
    """Give each part its rows, in the order of the batch, and count its tokens as cached."""
    begins = {}  # the first place of each sequence in the batch
    begin = 0
    for text in texts:
        begins[text.sequence] = begin
        begin += text.size
    num_rows = sum(part.num_logits for part in parts)
    first = 0
    rows = np.empty((0, 0), dtype=np.float32)
    if num_rows:
        rows = parts[0].model.given_logits(num_rows)
    for part in parts:
        model = part.model
        part.rows = rows[first : first + part.num_logits]
        if model._rows is not None and part.takes_rows:
            before = begins[part.sequence]
            model._rows.add(model.cache.num_cached, len(part.tokens), before)
        model.cache.begin_decode()
        model.cache.add(len(part.tokens))
        first += part.num_logits
