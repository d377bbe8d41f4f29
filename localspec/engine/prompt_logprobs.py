"""How probable a model finds each token of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.sampling.logprobs import TokenLogprobs, token_logprobs
from localspec.speculative.loop import SpeculativeDecoder
from localspec.streaming.cancellation import Watch

if TYPE_CHECKING:
    from localspec.engine.engine import Engine  # which loads libllama, as no server does


def prompt_logprobs(
    engine: Engine,
    tokens: Sequence[int],
    num_top: int,
    *,
    watch: Watch,
    scales: tuple[float, ...] | None = None,
) -> list[TokenLogprobs]:
    """The log-probability of each token but the first, which has no token before it.

    A decode returns at most as many rows as the longest step needs, so the prompt is decoded in
    pieces of that size. All of it is decoded, even where a cache has a part of it.

    Args:
        engine: An engine that produces no answer.
        tokens: The prompt.
        num_top: How many of the best tokens to list at each position.
        watch: Its cancellation ends this within one decode. Its progress is not used.
        scales: The scales of the model's adapters; None for the default ones.

    Raises:
        BusyError: While an answer is produced.
        ContextError: For a prompt that leaves no room for an answer.
        OptionError: For a prompt without a token.
        Interrupted: If it was cancelled.
    """
    engine._most_answer_tokens(len(tokens))  # called for its errors
    vocabulary = engine.vocabulary

    def bytes_of(token: int) -> bytes:
        return vocabulary.piece(token) or vocabulary.text(token).encode()

    def work(loop: SpeculativeDecoder) -> list[TokenLogprobs]:
        logprobs: list[TokenLogprobs] = []
        piece_size = loop.target.max_outputs
        num_rated = len(tokens) - 1
        with watch.cancellation.obeyed(engine.cancel):
            for begin in range(0, num_rated, piece_size):
                end = min(begin + piece_size, num_rated)
                # A token's row rates the next token.
                rows = loop.target.decode(tokens[begin:end], end - begin)
                next_tokens = tokens[begin + 1 : end + 1]
                for row, token in zip(rows, next_tokens, strict=True):
                    # None, since a token of a prompt was drawn from no distribution.
                    entry = token_logprobs(token, row, None, num_top, bytes_of)
                    logprobs.append(entry)
        return logprobs

    return engine.exclusively(work, scales=scales)
