"""EAGLE-3 heads: one layer that reads the inputs of some layers of its target.

Li et al., EAGLE-3 (arXiv 2503.01840), section 3. At each token the inputs of three of the
target's layers are encoded into one row; the layer reads token x_p together with the row of
p - 1, and predicts x_(p+1). At tokens that it drafted it reads rows of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.gguf_file.head import HeadFacts
from localspec.llama.batch import TokenBatch
from localspec.llama.handle import Handle
from localspec.llama.head import LlamaHead
from localspec.llama.library import llama_cpp
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions


class EagleHead(LlamaHead):
    """A head that encodes its target's rows, and has no entry for the text's first token.

    Each of its entries is at the position of the row, one before that of the token. Only rows
    that it reads are encoded, so an idle head costs a copy. libllama gives logits of all
    tokens of a decode or of none: of a mixture they are wrong.
    """

    _lag = 1

    def __init__(
        self, handle: Handle, target: LlamaModel, facts: HeadFacts, options: LlamaOptions
    ) -> None:
        super().__init__(handle, target, facts, options)
        width = self._target_rows.width
        self._to_encode = TokenBatch(self._batch.size, width, rows_alone=True)

    @property
    def readable(self) -> range:
        return range(self._target_rows.first + 1, self._target_rows.end + 1)

    def _take_rows(self, position: int, count: int) -> None:
        self._target_rows.copy_to(self._to_encode.rows[:count], position - 1)
        self._start_decode(count)
        batch = self._to_encode.filled([0] * count, position - self._lag, count)
        status = llama_cpp.llama_encode(self.handle.context, batch)
        self._check_decoded(status, count, position)
        self._batch.rows[:count] = self._given_rows(count)

    def _decode_batch(
        self, tokens: Sequence[int], position: int, num_logits: int, layer: int
    ) -> int:
        num_rows = len(tokens) if num_logits else 0
        return super()._decode_batch(tokens, position, num_rows, layer)
