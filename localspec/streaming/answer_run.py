"""Steps of the loop → pieces of an answer, and its ending."""

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
from localspec.streaming.answer_text import AnswerText, Prompt, Said
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
        """Seconds in which other answers decoded; the decoder's clock leaves them out."""

    @property
    def decoder(self) -> SpeculativeDecoder:
        """The loop."""

    @property
    def vocabulary(self) -> WholeVocabulary:
        """The target's tokens."""

    def interrupt(self) -> None:
        """End what the models do for this answer within one decode. From any thread."""


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
        self._token_ids: list[int] = []
        self._provenances: list[Provenance] = []  # of these tokens
        self._made: list[Piece] = []  # pieces of these tokens, read or not
        self._held: list[Part] = []  # text that still waited for tokens when the answer ended
        self._finish_reason: FinishReason = "cancelled"
        self._stopped_by: str | None = None
        self._meter = Meter(len(prompt.tokens), 0, 0.0)
        self._stats: Callable[[], Stats] | None = None  # set when the answer has ended

    def start(self) -> int:
        """Make the prompt the loop's text. Returns the number of its cached tokens."""
        started_s = self._now()
        tokens = self._prompt.tokens
        num_cached = self._lane.decoder.start(tokens)
        self._meter = Meter(len(tokens), num_cached, started_s, self._lane.exactness)
        return num_cached

    def pieces(self) -> Generator[Decode | Piece, Any, None]:
        """The answer, token by token. However it ends, the caches are left consistent."""
        text = self._text()
        text.resume(self._tokens_before())
        decoder = self._lane.decoder
        try:
            is_obeyed = self._record.cancellation.obeyed(self._lane.interrupt)
            with is_obeyed, contextlib.suppress(Interrupted):
                for driven in decoder.each_step(self._request):
                    step = yield from driven
                    self._meter.add(step, self._now(), self._lane.waited_s)
                    yield from self._pieces_of(step, text)
                    if text.stopped:
                        break
                if self._finish_reason != "stop":
                    self._finish_reason = "length"
        finally:
            # After a close or a stop string, the caches may hold tokens that were not emitted.
            decoder.truncate(len(self._prompt.tokens) + len(self._token_ids))
            self._held = text.finish(is_cut=self._finish_reason != "stop")
            estimate = decoder.draft_policy.estimate()
            threads = decoder.thread_policy.thread_use()
            self._stats = partial(self._meter.stats, self._now(), estimate, threads)

    def ending(self, num_read: int, num_taken: int) -> Ending | None:
        """How the answer ends for its reader; None if it has not started.

        Tokens that were not read count as not said. So if there are any, the text is parsed
        once more, up to the last token that was read. It is parsed, too, if it continues an
        earlier answer, to get the whole message.

        Args:
            num_read: Tokens that were read.
            num_taken: Pieces that were read. A token may have several.
        """
        if self._stats is None:
            return None
        finish_reason = self._finish_reason
        stopped_by = self._stopped_by
        is_cut = num_read < len(self._token_ids)
        if is_cut:
            finish_reason = "cancelled"
            stopped_by = None
        is_continued = self._prompt.num_said > 0
        held = self._held  # the text that waited for further tokens
        said = None
        if is_cut or is_continued:
            text = self._text()
            parts = text.resume(self._tokens_before())
            for token in self._token_ids[:num_read]:
                parts += text.push(token)
            held = text.finish(is_cut=finish_reason != "stop")
            if is_continued:
                said = Said.of([*parts, *held])
        provenances = self._provenances[:num_read]
        self._meter.tokens = Counter(provenances)  # the statistics leave out unread tokens
        last_provenance = Provenance.PLAIN
        if provenances:
            last_provenance = provenances[-1]
        # Further pieces of the last token that was read, and then the text that waited.
        rest = self._pieces_before(num_read)[num_taken:]
        for part in held:
            if not part.is_again:  # else the earlier answer has shown it
                rest.append(_without_token(part, last_provenance))
        return Ending(finish_reason, self._stats(), stopped_by, tuple(rest), said)

    def _pieces_before(self, num_tokens: int) -> list[Piece]:
        """The pieces of the first `num_tokens` tokens.

        The first piece of a token has its id; the pieces after it, if any, have none.
        """
        if num_tokens >= len(self._token_ids):
            return self._made[:]
        pieces = []
        num_left = num_tokens
        for piece in self._made:
            if piece.token_ids:  # another token begins
                if num_left == 0:
                    break
                num_left -= 1
            pieces.append(piece)
        return pieces

    def _now(self) -> float:
        return self._lane.decoder.clock() + self._lane.waited_s

    def _text(self) -> AnswerText:
        """A parser of the answer's text, at the answer's beginning."""
        prompt = self._prompt
        options = self._record.options
        return AnswerText(
            self._lane.vocabulary,
            prompt.thoughts,
            options.stop_strings,
            prompt.calls,
            has_form=spec_of(options) is not None,
        )

    def _tokens_before(self) -> list[int]:
        """The tokens of the answer that are in the prompt, if the answer is continued."""
        tokens = self._prompt.tokens
        return tokens[len(tokens) - self._prompt.num_said :]

    def _pieces_of(self, step: Step, text: AnswerText) -> Iterator[Piece]:
        """The pieces of a step, up to the end of the answer."""
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
            if text.stopped or self._request.is_end(token):
                self._finish_reason = "stop"
                self._stopped_by = text.stopped_by
            if not parts:
                parts = [Part("", text.is_thinking)]
            first = parts[0]
            tried = None
            if index == 0:
                tried = facts
            piece = Piece(
                first.text,
                (token,),
                provenance,
                logprobs,
                first.is_thought,
                first.call,
                tried,
            )
            pieces = [piece]
            for part in parts[1:]:
                pieces.append(_without_token(part, provenance))
            self._made += pieces
            yield from pieces
            if text.stopped:
                return

    def _logprobs(self, step: Step, index: int) -> TokenLogprobs | None:
        num_top = self._record.options.logprobs
        if num_top is None:
            return None
        return token_logprobs(
            step.tokens[index],
            step.logits[index],
            step.distributions[index],
            num_top,
            self._spelling,
        )

    def _spelling(self, token: int) -> bytes:
        """The bytes of a token; of a control token its name."""
        vocabulary = self._lane.vocabulary
        return vocabulary.piece(token) or vocabulary.text(token).encode()


def _without_token(part: Part, provenance: Provenance) -> Piece:
    """A piece without a token of its own."""
    return Piece(
        part.text,
        (),
        provenance,
        is_thought=part.is_thought,
        call=part.call,
    )
