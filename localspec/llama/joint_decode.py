"""Joint decodes: tokens of several texts of a context, decoded by one call of libllama.

`joinable` chooses the texts that should share a decode, and `decode_parts` decodes them.
"""

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
    """(num_logits, vocab) logits; None before the decode and after an error."""

    error: BaseException | None = None
    """The error of the decode, if it failed."""

    def decode(self) -> None:
        """Decode this text alone, and set `rows` or `error`."""
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
        """Whether this decode has to give hidden rows for a head."""
        rows = self.model._rows
        return rows is not None and rows.wants(len(self.tokens), self.num_logits, 0)

    @property
    def may_be_joined(self) -> bool:
        """Whether other texts may share this decode.

        False for a head, or if sharing could change rows that are exact, or if it saves no
        time: libllama decodes recurrent sequences one by one if all tokens have logits, as
        Medusa's heads need.
        """
        model = self.model
        if not isinstance(model, LlamaModel):  # a head
            return False
        if model.exactness.holds and not model.exactness.joined:
            return False
        return not (model.cache.is_recurrent and isinstance(model._rows, OutputRows))

    @property
    def may_be_padded(self) -> bool:
        """Whether padding can be cut from the cache again, and needs no logits."""
        return not (self.model.cache.is_recurrent or isinstance(self.model._rows, OutputRows))


def joinable(parts: Sequence[JointPart], times: RowTimes) -> tuple[list[JointPart], int]:
    """Choose the parts that should share a decode with the first one.

    Args:
        parts: The parts of one context, at least one.
        times: Seconds that this context takes for a number of rows.

    Returns:
        The chosen parts, beginning with the first of all; and the number of tokens that the
        decode then computes, with padding.
    """
    first = parts[0]
    chosen = [first]
    if not first.may_be_joined:
        return chosen, len(first.tokens)
    candidates = list(parts[1:])
    joined = _first_joinable(candidates, chosen, times)
    while joined is not None:
        candidates.remove(joined)
        chosen.append(joined)
        joined = _first_joinable(candidates, chosen, times)
    return chosen, _block_rows(chosen)


def _first_joinable(
    candidates: Sequence[JointPart],
    chosen: Sequence[JointPart],
    times: RowTimes,
) -> JointPart | None:
    """The first candidate that should be joined to the chosen parts; None if there is none."""
    for part in candidates:
        if _should_join(part, chosen, times):
            return part
    return None


def _should_join(part: JointPart, chosen: Sequence[JointPart], times: RowTimes) -> bool:
    """Whether a part can share the decode of the chosen parts, and sharing saves time."""
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
    needs_padding = num_rows > num_tokens
    if not needs_padding:
        return True
    separate_rows = [_block_rows(chosen), len(part.tokens)]
    return part.may_be_padded and times.pays(separate_rows, num_rows)


def _block_rows(parts: Sequence[JointPart]) -> int:
    """The rows that a joint decode of the parts computes, one for each token and padding.

    libllama computes a block: all sequences from the parts' lowest to their highest number,
    each with as many tokens as the longest part.
    """
    numbers = [part.sequence for part in parts]
    num_sequences = max(numbers) - min(numbers) + 1
    most_tokens = max(len(part.tokens) for part in parts)
    return num_sequences * most_tokens


def decode_parts(parts: Sequence[JointPart]) -> None:
    """Decode the parts by one call of libllama if possible, else one by one.

    Afterwards each part has its rows of logits, valid until the next decode, or its error.
    """
    if len(parts) == 1:
        parts[0].decode()
        return
    valid = [part for part in parts if _check_part(part)]
    if len(valid) > 1 and _release_other_snapshots(valid):
        _decode_together(valid)
    for part in parts:
        if part.rows is not None or part.error is not None:
            continue
        part.decode()
        if part.rows is not None:
            part.rows = part.rows.copy()  # the next part's decode overwrites them


def _check_part(part: JointPart) -> bool:
    """Set the error of an invalid part. Returns whether it is valid and not interrupted."""
    try:
        part.model.check_decode(part.tokens, part.num_logits)
    except Exception as error:
        part.error = error
    return part.error is None and not part.model.is_interrupted


def _release_other_snapshots(parts: Sequence[JointPart]) -> bool:
    """Have texts outside the parts give up snapshots that they do not need.

    libllama puts the recurrent states of a joint decode side by side. It moves the states of
    other texts out of the way, but loses their snapshots.

    Returns:
        Whether no other text still needs snapshots.
    """
    caches = list(parts[0].model.handle.caches.values())
    numbers = {part.sequence for part in parts}
    others = [cache for cache in caches if cache.number not in numbers]
    return all(cache.release_snapshots() for cache in others)


def _decode_together(parts: Sequence[JointPart]) -> None:
    """Decode the parts by one call of libllama, and set their rows, or the errors of some.

    A part that has neither afterwards is as before, and can be decoded alone.
    """
    # In ascending order libllama puts as many sequences as possible into one graph.
    parts = sorted(parts, key=lambda part: part.sequence)
    model = parts[0].model  # whose batch serves all texts
    handle = model.handle
    num_tokens = max(len(part.tokens) for part in parts)  # of each text, with padding
    caches = _block_caches(handle, parts, num_tokens)
    if caches is None:
        caches = [part.model.cache for part in parts]
        num_tokens = 0  # no padding
    parts_by_number = {part.sequence: part for part in parts}
    texts = []
    for cache in caches:
        texts.append(_text_part(cache, parts_by_number.get(cache.number), num_tokens))
    # The threads of a step, as each part is, however many tokens they have together.
    model._set_threads_and_scales(len(parts[0].tokens))
    if model._rows is not None:
        model._rows.set_output(is_on=parts[0].takes_rows)
    handle.begin_decode([part.model._stop for part in parts])
    status = llama_cpp.llama_decode(handle.context, model._batch.joined(texts))
    handle.num_decodes += 1
    if status == 0:
        _share_out(parts, texts)
        for cache, text in zip(caches, texts, strict=True):
            if text.num_padding:
                cache.cut_to(cache.num_cached)  # removes the padding
        return
    counts_before = [part.model.num_cached for part in parts]
    for cache in caches:
        cache.begin_decode()  # a recurrent state is unknown
        cache.cut_to(cache.num_cached)  # removes entries of the failed decode
    for part, count_before in zip(parts, counts_before, strict=True):
        num_cached = part.model.num_cached
        if num_cached != count_before:  # tokens were lost
            part.error = part.model.decode_error(status, len(part.tokens), num_cached)


def _block_caches(
    handle: Handle,
    parts: Sequence[JointPart],
    num_tokens: int,
) -> list[Cache] | None:
    """The caches of a padded block: of all sequences from the first part's to the last's.

    Args:
        handle: The context's handle.
        parts: The parts, in ascending order of their sequences.
        num_tokens: The tokens of each sequence in the block.

    Returns:
        None if a sequence has no cache, or no room for the block's tokens.
    """
    caches = list[Cache]()
    most_cached = llama_cpp.llama_n_ctx_seq(handle.context)
    for number in range(parts[0].sequence, parts[-1].sequence + 1):
        cache = handle.caches.get(number)
        if cache is None or cache.num_cached + num_tokens > most_cached:
            return None
        caches.append(cache)
    return caches


def _text_part(cache: Cache, part: JointPart | None, num_tokens: int) -> TextPart:
    """A sequence's part of the batch: its tokens, and padding up to num_tokens.

    Args:
        cache: The sequence's cache.
        part: The sequence's tokens; None for a sequence that is padding alone.
        num_tokens: The number of tokens up to which it is padded.
    """
    if part is None:
        return TextPart(cache.number, cache.position, (), 0, num_tokens)
    num_padding = max(num_tokens - len(part.tokens), 0)
    return TextPart(cache.number, cache.position, part.tokens, part.num_logits, num_padding)


def _share_out(parts: Sequence[JointPart], texts: Sequence[TextPart]) -> None:
    """After a joint decode, set each part's rows of logits, and record its tokens as cached.

    Args:
        parts: The parts, in the order of the batch.
        texts: All texts of the batch, with those that are padding alone.
    """
    begins = {}  # by sequence, the index of its first token in the batch
    num_before = 0
    for text in texts:
        begins[text.sequence] = num_before
        num_before += text.size
    num_rows = sum(part.num_logits for part in parts)
    rows = np.empty((0, 0), dtype=np.float32)
    if num_rows:
        rows = parts[0].model.last_logits(num_rows)
    first_row = 0
    for part in parts:
        model = part.model
        end_row = first_row + part.num_logits
        part.rows = rows[first_row:end_row]
        first_row = end_row
        if model._rows is not None and part.takes_rows:
            begin = begins[part.sequence]
            model._rows.add(model.cache.num_cached, len(part.tokens), begin)
        model.cache.begin_decode()  # otherwise the cache would count as cut after this decode
        model.cache.add(len(part.tokens))
