"""Medusa heads (arXiv 2401.10774, section 2.1), computed here: libllama does not support them.

They are trained on a frozen target (Medusa-1). The loop's rules verify their proposals, not the
paper's "typical acceptance", which changes the distribution.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from localspec.gguf_file.file_content import FileStates
from localspec.gguf_file.head_facts import OWN_TOKENS, medusa_names
from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.tensor_types import BF16, F16, F32, INT64
from localspec.llama.hidden_rows import HiddenRows, OutputRows, products
from localspec.llama.model import LlamaModel
from localspec.sampling.distribution import Logits

# NumPy's types by GGUF's numbers. NumPy has no bfloat16, so its 16 bits are read as integers.
_NUMPY_TYPES = {F32: "<f4", F16: "<f2", BF16: "<u2", INT64: "<i8"}


class MedusaHeads:
    """The Medusa heads of a target: head k drafts the token at index k of a draft.

    All heads read one hidden row, that of the last token that the target has decoded.
    Implements `heads.BlockModel`, without a cache.

    Args:
        header: The header of the heads' file, whose weights are copied into memory.
        target: The target, which keeps its hidden rows from now on.
    """

    # See `heads.BlockModel` and `heads.RowReader`.
    is_block = False
    begins_at = 0
    num_cached = 0
    read_size = 0

    def __init__(self, header: Header, target: LlamaModel) -> None:
        self.name = header.path.name  # of the file
        self.content: str | None = None  # a hash of the file; None if it is not known
        self.mapped: FileStates = {}  # none: the weights are copied
        self._target = target
        self.num_sequences = target.num_sequences
        self.context_length = target.context_length
        self._heads, self._tokens = _weights(header)
        self.max_draft_tokens = len(self._heads)
        self._rows: HiddenRows = target.keep_rows(OutputRows(target.handle))
        self._row = np.empty((1, self._rows.width), dtype=np.float32)  # which the heads read
        self._logits: Logits = np.empty(target.vocab_size, dtype=np.float32)
        self.num_threads = 1  # unused, but an attribute of all models

        self.num_weight_bytes = sum(weight.nbytes for weight in self._heads[0])
        """Bytes of weights that are read to draft one token."""

    @property
    def identity(self) -> str | None:
        """A hash of the heads' file; None if it is not known."""
        return self.content

    @property
    def readable(self) -> range:
        """Positions of the text at which a draft can begin: after each token with a row."""
        rows = self._rows
        return range(rows.first + 1, rows.end + 1)

    def read_from(self, position: int) -> None:
        """Forget everything, and continue at that position of the text."""
        self.begins_at = position
        self.num_cached = 0

    def truncate(self, num_cached: int) -> None:
        """Count only the first num_cached tokens as read."""
        self.num_cached = num_cached

    def decode_block(self, tokens: Sequence[int], num_tokens: int) -> None:
        """Prepare `row`: copy the hidden row of the text's last token but one.

        The target drew the last token from that row, and has not decoded it yet.

        Args:
            tokens: Tokens of the text that are not read yet.
            num_tokens: Unused: the tokens to draft.
        """
        self.require_open()
        self.num_cached += len(tokens) - 1
        self._rows.copy_to(self._row, self.begins_at + self.num_cached - 1)

    def row(self, drafted: Sequence[int]) -> Logits:
        """(vocab,) logits of the token after `drafted`, by the head of its index.

        Each block of a head adds SiLU(W · row + b) to the row; an output layer follows. A view
        that may be written to, valid until the next call.
        """
        *block_weights, output = self._heads[len(drafted)]
        weights = block_weights[::2]
        biases = block_weights[1::2]
        row = self._row[0]
        for weight, bias in zip(weights, biases, strict=True):
            inner = products(weight, row) + bias
            row = row + inner / (1.0 + np.exp(-inner))
        if self._tokens is None:
            return products(output, row, out=self._logits)
        # The head has logits of some tokens only.
        self._logits.fill(-np.inf)
        self._logits[self._tokens] = products(output, row)
        return self._logits

    def confidence(self, _index: int) -> None:
        """None: Medusa heads give no confidence."""

    def sibling(self, _number: int, target: LlamaModel) -> MedusaHeads:
        """A view of these heads for another text. target: the target's view for it."""
        other = copy.copy(self)
        other._target = target
        other._rows = target.kept_rows
        other._row = self._row.copy()
        other._logits = self._logits.copy()
        other.read_from(0)
        return other

    def copy_state(self) -> HiddenRows:
        """A copy of what belongs to the text: the target's rows."""
        return self._rows.copy_rows()

    def restore_copy(self, other: HiddenRows, num_cached: int) -> None:
        """Take the copied rows of a text that begins with the same num_cached tokens."""
        self.read_from(0)
        self._rows.restore_copy(other, num_cached)

    def require_open(self) -> None:
        """Raise EngineError if its target was closed, or this is a fork."""
        self._target.require_open()

    def make_ready(self) -> None:
        """Prepare for an answer: take rows of the target again."""
        self.pause(0)

    def pause(self, num_tokens: int) -> None:
        """Let the target leave out rows while the heads read nothing, for `num_tokens`."""
        self._rows.pause(num_tokens)

    def interrupt(self) -> None:
        """Nothing to do: computing a row takes milliseconds."""

    def close(self) -> None:
        """Nothing to do: NumPy frees the arrays."""


def _weights(
    header: Header,
) -> tuple[list[list[NDArray[np.float32]]], NDArray[np.generic] | None]:
    """Copies of the weights in a file of Medusa heads.

    Returns:
        The arrays of each head: weight and bias of each block, and last the output layer. Then
        the token ids for which the output layers have rows, in their order; None if they have
        a row for every token.
    """
    data = np.memmap(header.path, dtype=np.uint8, mode="r")
    tensors = header.by_name()
    heads = []
    for names in medusa_names(header):
        heads.append([_floats(data, tensors[name]) for name in names])
    own_tokens = tensors.get(OWN_TOKENS)
    if own_tokens is None:
        return heads, None
    return heads, _values(data, own_tokens)


def _values(data: NDArray[np.uint8], tensor: Tensor) -> NDArray[np.generic]:
    """A copy of a tensor in a file's bytes. GGUF's shape is the reverse of NumPy's."""
    dtype = np.dtype(_NUMPY_TYPES[tensor.kind])
    num_bytes = prod(tensor.shape) * dtype.itemsize
    values = data[tensor.offset : tensor.offset + num_bytes].copy().view(dtype)
    return values.reshape(tensor.shape[::-1])


def _floats(data: NDArray[np.uint8], tensor: Tensor) -> NDArray[np.float32]:
    """A copy of a tensor as float32."""
    values = _values(data, tensor)
    if tensor.kind == BF16:  # the upper 16 bits of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
