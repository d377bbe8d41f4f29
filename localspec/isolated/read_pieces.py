"""The part of another process's answer that was read; its pieces come several at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from localspec.speculative.metrics import Meter, Provenance
from localspec.speculative.rule_name import RuleName
from localspec.streaming.answer_text import Said
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt
from localspec.streaming.reply import Piece, Reply
from localspec.streaming.thinking import Part


class ReadPieces:
    """The pieces of an answer that were read, in order. options: the answer's."""

    def __init__(self, options: AnswerOptions) -> None:
        self._pieces: list[Piece] = []
        self._options = options

    def add(self, piece: Piece) -> None:
        """One more was read."""
        self._pieces.append(piece)

    @property
    def num_tokens(self) -> int:
        """How many tokens they have."""
        return sum(len(piece.token_ids) for piece in self._pieces)

    def counted(self, reply: Reply) -> Reply:
        """The reply of these tokens, in its figures, too."""
        if reply.stats.completion_tokens == self.num_tokens:
            return reply
        counts: Counter[Provenance] = Counter()
        for piece in self._pieces:
            counts[piece.provenance] += len(piece.token_ids)
        stats = replace(
            reply.stats,
            completion_tokens=self.num_tokens,
            num_recovered=counts[Provenance.RECOVERED],
            num_bonus=counts[Provenance.BONUS],
            num_plain=counts[Provenance.PLAIN],
        )
        return replace(reply, stats=stats)

    def alone(self, prompt: Prompt, rule: RuleName) -> tuple[Reply, Said | None]:
        """The result of these pieces alone, where that of the process was lost with it.

        As `Exchange.remember` gets it. Of a call that an earlier answer began, only the end may
        be here.
        """
        pieces = self._pieces
        meter = Meter(len(prompt.tokens), 0, 0.0)
        for piece in pieces:
            for _ in piece.token_ids:
                meter.deliver(piece.provenance)
        said = Said.of([Part(each.text, each.is_thought, call=each.call) for each in pieces])
        logprobs = tuple(piece.logprobs for piece in pieces if piece.logprobs is not None)
        reply = Reply(
            text=said.text,
            token_ids=tuple(token for piece in pieces for token in piece.token_ids),
            finish_reason="cancelled",
            stats=meter.stats(0.0, None, None),
            seed=self._options.seed,
            rule=rule,
            logprobs=None if self._options.logprobs is None else logprobs,
            thoughts=said.thoughts,
            tool_calls=() if prompt.num_said else said.tool_calls,
            num_thought_tokens=sum(len(each.token_ids) for each in pieces if each.is_thought),
        )
        return reply, None if prompt.num_said else said
