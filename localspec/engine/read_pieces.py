"""What was read of an answer of another process, of pieces that come several at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from localspec.speculative.metrics import Meter, Provenance
from localspec.speculative.rule_name import RuleName
from localspec.streaming.options import AnswerOptions
from localspec.streaming.stream import Piece, Reply
from localspec.tools.calls import whole_calls


class ReadPieces:
    """The pieces of an answer that were read, in order. options: the answer's."""

    def __init__(self, options: AnswerOptions) -> None:
        self._pieces: list[Piece] = []
        self._options = options

    def add(self, piece: Piece) -> None:
        """One more was read."""
        self._pieces.append(piece)

    def part_of(self, reply: Reply) -> Reply:
        """The reply as if what came later had not been produced."""
        own = self._reply(reply)
        if own.token_ids == reply.token_ids:
            return reply
        counts: Counter[Provenance] = Counter()
        for piece in self._pieces:
            counts[piece.provenance] += len(piece.token_ids)
        stats = replace(
            reply.stats,
            completion_tokens=len(own.token_ids),
            num_recovered=counts[Provenance.RECOVERED],
            num_bonus=counts[Provenance.BONUS],
            num_plain=counts[Provenance.PLAIN],
        )
        return replace(own, stats=stats)

    def alone(self, num_prompt_tokens: int, verify: RuleName) -> Reply:
        """A reply of them alone, where the process was lost with its own."""
        meter = Meter(num_prompt_tokens, 0, 0.0)
        for piece in self._pieces:
            for _ in piece.token_ids:
                meter.deliver(piece.provenance)
        stats = meter.stats(0.0, None, None)
        return self._reply(Reply("", (), "cancelled", stats, self._options.seed, verify))

    def _reply(self, whole: Reply) -> Reply:
        """Of the pieces; what they do not tell as in `whole`."""
        pieces = self._pieces
        logprobs = tuple(piece.logprobs for piece in pieces if piece.logprobs is not None)
        return replace(
            whole,
            text="".join(piece.text for piece in pieces if not piece.is_thought),
            thoughts="".join(piece.text for piece in pieces if piece.is_thought),
            token_ids=tuple(token for piece in pieces for token in piece.token_ids),
            finish_reason="cancelled",
            logprobs=None if self._options.logprobs is None else logprobs,
            tool_calls=whole_calls(piece.call for piece in pieces),
        )
