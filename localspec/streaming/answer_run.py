"""Makes the pieces of an answer, and its ending, from steps of the loop."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from localspec.errors import Interrupted
from localspec.exactness import Exactness
from localspec.sampling.logprobs import TokenLogprobs, token_logprobs
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.metrics import Meter, Provenance, Stats, Step
from localspec.speculative.model_api import Decode
from localspec.streaming.answer_options import spec_of
from localspec.streaming.answer_text import AnswerText, Prompt, WholeMessage
from localspec.streaming.record import AnswerRecord
from localspec.streaming.reply import Ending, FinishReason, Piece, StepFacts
from localspec.streaming.thinking import Part
from localspec.vocabulary import WholeVocabulary


class AnswerLane(Protocol):
    """What an answer needs of the lane in which it is produced."""

    @property
    def exactness(self) -> Exactness:
        """Which decodes of the target equal single decodes to the bit."""

    @property
    def waited_s(self) -> float:
        """Seconds for which the lane waited while other answers decoded.

        The decoder's clock leaves them out.
        """

    @property
    def decoder(self) -> SpeculativeDecoder:
        """The loop."""

    @property
    def vocabulary(self) -> WholeVocabulary:
        """The target's tokens."""

    def interrupt(self) -> None:
        """Have the models end their work for this answer within one decode. From any thread."""


class AnswerRun:
    """An answer while it is produced.

    Args:
        record: The answer's record.
        prompt: Its prompt.
        request: Its request to the loop.
        lane: The lane in which it is produced.
    """

    def __init__(
        self,
        record: AnswerRecord,
        prompt: Prompt,
        request: Request,
        lane: AnswerLane,
    ) -> None:
        self._record = record
        self._prompt = prompt
        self._request = request
        self._lane = lane
        self._token_ids: list[int] = []  # new tokens, read or not
        self._provenances: list[Provenance] = []  # of these tokens
        self._pieces: list[Piece] = []  # of these tokens
        # Text that still waited for further tokens when the answer ended.
        self._waiting_parts: list[Part] = []
        self._finish_reason: FinishReason = "cancelled"
        self._stopped_by: str | None = None
        self._meter = Meter(len(prompt.tokens), 0, 0.0)
        self._stats: Callable[[], Stats] | None = None  # set when the answer has ended

    def start(self) -> int:
        """Make the prompt the loop's text. Returns how many of its tokens are cached."""
        started_s = self._now_s()
        tokens = self._prompt.tokens
        num_cached = self._lane.decoder.start(tokens)
        self._meter = Meter(len(tokens), num_cached, started_s, self._lane.exactness)
        return num_cached

    def pieces(self) -> Generator[Decode | Piece, Any, None]:
        """Produce the answer: yields each decode that the loop needs, and each piece.

        The caller makes each decode and sends its result back. However the answer ends, the
        caches then hold a prefix of the prompt and the answer's tokens.
        """
        text = self._new_text()
        text.resume(self._earlier_tokens())
        decoder = self._lane.decoder
        try:
            interruption = self._record.cancellation.obeyed(self._lane.interrupt)
            with interruption, contextlib.suppress(Interrupted):
                for decodes in decoder.each_step(self._request):
                    step = yield from decodes
                    self._meter.add(step, self._now_s(), self._lane.waited_s)
                    yield from self._step_pieces(step, text)
                    if text.has_stopped:
                        break
                if self._finish_reason != "stop":
                    self._finish_reason = "length"
        finally:
            # After a close or a stop string, the caches may hold tokens that were not emitted.
            decoder.truncate(len(self._prompt.tokens) + len(self._token_ids))
            self._waiting_parts = text.finish(is_cut=self._finish_reason != "stop")
            estimate = decoder.draft_policy.estimate()
            threads = decoder.thread_policy.thread_use()
            self._stats = partial(self._meter.stats, self._now_s(), estimate, threads)

    def ending(self, num_read_tokens: int, num_read_pieces: int) -> Ending | None:
        """The ending of the answer for its reader; None if production has not ended.

        It leaves out tokens that were not read. If there are any, the text is parsed once more,
        up to the last token that was read. The text of an answer that continues an earlier one
        is also parsed once more, to get the whole message.

        Args:
            num_read_tokens: How many tokens were read.
            num_read_pieces: How many pieces were read. A token may have several.
        """
        if self._stats is None:
            return None
        finish_reason = self._finish_reason
        stopped_by = self._stopped_by
        is_cut = num_read_tokens < len(self._token_ids)
        if is_cut:
            finish_reason = "cancelled"
            stopped_by = None
        is_continued = self._prompt.num_said > 0
        waiting_parts = self._waiting_parts
        message = None
        if is_cut or is_continued:
            text = self._new_text()
            parts = text.resume(self._earlier_tokens())
            for token in self._token_ids[:num_read_tokens]:
                parts += text.push(token)
            waiting_parts = text.finish(is_cut=finish_reason != "stop")
            if is_continued:
                message = WholeMessage.of([*parts, *waiting_parts])
        provenances = self._provenances[:num_read_tokens]
        self._meter.tokens = Counter(provenances)  # the statistics leave out unread tokens
        last_provenance = Provenance.PLAIN
        if provenances:
            last_provenance = provenances[-1]
        # Further pieces of the last token that was read, and then the text that waited.
        last_pieces = self._pieces_up_to(num_read_tokens)[num_read_pieces:]
        for part in waiting_parts:
            if not part.is_again:  # else the earlier answer has shown it
                last_pieces.append(_tokenless_piece(part, last_provenance))
        return Ending(finish_reason, self._stats(), stopped_by, tuple(last_pieces), message)

    def _pieces_up_to(self, num_tokens: int) -> list[Piece]:
        """The pieces of the first `num_tokens` tokens.

        The first piece of a token has its id; the pieces after it, if any, have none.
        """
        if num_tokens >= len(self._token_ids):
            return self._pieces[:]
        pieces = []
        num_left = num_tokens
        for piece in self._pieces:
            if piece.token_ids:  # another token begins
                if num_left == 0:
                    break
                num_left -= 1
            pieces.append(piece)
        return pieces

    def _now_s(self) -> float:
        return self._lane.decoder.clock() + self._lane.waited_s

    def _new_text(self) -> AnswerText:
        """A new parser of the answer's text, which has no tokens yet."""
        prompt = self._prompt
        options = self._record.options
        return AnswerText(
            self._lane.vocabulary,
            prompt.thoughts,
            options.stop_strings,
            prompt.calls,
            is_constrained=spec_of(options) is not None,
        )

    def _earlier_tokens(self) -> list[int]:
        """The tokens at the prompt's end that an earlier answer gave; empty without one."""
        tokens = self._prompt.tokens
        return tokens[len(tokens) - self._prompt.num_said :]

    def _step_pieces(self, step: Step, text: AnswerText) -> Iterator[Piece]:
        """Parse the tokens of a step, up to a stop, and yield their pieces.

        Args:
            step: The step.
            text: The parser of the answer's text.
        """
        facts = StepFacts(
            step.num_draft_tokens,
            step.num_accepted,
            step.num_threads,
            step.draft_off,
        )
        if self._record.options.logprobs is not None:
            # A copy, since other answers may decode between two pieces.
            step = replace(step, logits=step.logits[: len(step.tokens)].copy())
        for index, token in enumerate(step.tokens):
            provenance = step.provenance[index]
            self._provenances.append(provenance)
            self._token_ids.append(token)
            logprobs = self._logprobs(step, index)
            parts = [part for part in text.push(token) if not part.is_again]
            # Set before the pieces are yielded, since the answer may be closed there.
            if text.has_stopped or self._request.is_end(token):
                self._finish_reason = "stop"
                self._stopped_by = text.stopped_by
            if not parts:
                parts = [Part("", text.is_thinking)]
            first = parts[0]
            first_facts = None
            if index == 0:
                first_facts = facts
            piece = Piece(
                first.text,
                (token,),
                provenance,
                logprobs,
                first.is_thought,
                first.call,
                first_facts,
            )
            pieces = [piece]
            for part in parts[1:]:
                pieces.append(_tokenless_piece(part, provenance))
            self._pieces += pieces
            yield from pieces
            if text.has_stopped:
                return

    def _logprobs(self, step: Step, index: int) -> TokenLogprobs | None:
        """The log-probabilities at a token of the step; None if they were not asked for."""
        num_top = self._record.options.logprobs
        if num_top is None:
            return None
        return token_logprobs(
            step.tokens[index],
            step.logits[index],
            step.distributions[index],
            num_top,
            self._token_bytes,
        )

    def _token_bytes(self, token: int) -> bytes:
        """The bytes that a token writes; for a control token, which writes none, its name."""
        vocabulary = self._lane.vocabulary
        return vocabulary.piece(token) or vocabulary.text(token).encode()


def _tokenless_piece(part: Part, provenance: Provenance) -> Piece:
    """The piece of a part that has no token of its own."""
    return Piece(
        part.text,
        (),
        provenance,
        is_thought=part.is_thought,
        call=part.call,
    )
