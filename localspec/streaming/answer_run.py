"""Steps of the loop → pieces of an answer, and the reply they add up to."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from localspec.errors import Interrupted
from localspec.exactness import Exactness
from localspec.sampling.logprobs import TokenLogprobs, token_logprobs
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.metrics import Meter, Provenance, Stats, Step
from localspec.speculative.model import Decode
from localspec.streaming.answer_text import AnswerText, Prompt, Said
from localspec.streaming.cancellation import Cancellation
from localspec.streaming.options import AnswerOptions, spec_of
from localspec.streaming.reply import FinishReason, Piece, Reply, StepFacts
from localspec.streaming.thinking import Part
from localspec.vocabulary import WholeVocabulary


@dataclass(slots=True)
class AnswerRun:
    """An answer as it is produced.

    interrupt: ends what the models do for this answer, and no other, within one decode; from
    any thread. waited: seconds for which the decoder's clock stood still, since other answers
    had the machine.
    """

    decoder: SpeculativeDecoder
    prompt: Prompt
    request: Request
    vocabulary: WholeVocabulary
    options: AnswerOptions
    cancellation: Cancellation
    interrupt: Callable[[], None]
    not_kept: tuple[str, ...]  # of what the answer was to fit
    exactness: Exactness
    waited: Callable[[], float]
    meter: Meter = field(init=False)
    _stats: Callable[[], Stats] = field(init=False)  # once it has ended
    before: list[Part] = field(default_factory=list)  # of the answer that is continued
    parts: list[Part] = field(default_factory=list)
    made: list[Piece] = field(default_factory=list)  # of all new parts, read or not
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason = "cancelled"
    num_thought_tokens: int = 0
    stopped_by: str | None = None
    provenances: list[Provenance] = field(default_factory=list)  # of the tokens
    result: tuple[Reply, Said] | None = None

    def start(self) -> int:
        """Make the prompt the loop's text. Returns how many of its tokens are cached."""
        started = self._now()
        num_cached = self.decoder.start(self.prompt.tokens)
        self.meter = Meter(len(self.prompt.tokens), num_cached, started, self.exactness)
        return num_cached

    def pieces(self) -> Generator[Decode | Piece, Any, None]:
        """The answer, token by token. Whatever ends it, caches and reply are left right."""
        text, meter = self._text(), self.meter
        try:
            with self.cancellation.obeyed(self.interrupt):
                with contextlib.suppress(Interrupted):
                    for driven in self.decoder.each_step(self.request):
                        step = yield from driven
                        meter.add(step, self._now(), self.waited())
                        yield from self._told(step, text)
                        if text.stopped:
                            break
                    if self.finish_reason != "stop":
                        self.finish_reason = "length"
                yield from self._rest(text)
        finally:
            # A closed answer or a stop string leaves the rest of a step behind.
            decoder = self.decoder
            decoder.truncate(len(self.prompt.tokens) + len(self.token_ids))
            self._rest(text)
            estimate, threads = decoder.draft_policy.estimate(), decoder.thread_policy.use()
            self._stats = partial(meter.stats, self._now(), estimate, threads)
            self._conclude()

    def _now(self) -> float:
        return self.decoder.clock() + self.waited()

    def _text(self) -> AnswerText:
        """Behind what was said already, if anything."""
        prompt = self.prompt
        text = AnswerText(
            self.vocabulary,
            prompt.thoughts,
            self.options.stop_strings,
            prompt.calls,
            has_form=spec_of(self.options) is not None,
        )
        num_before = len(prompt.tokens) - prompt.num_said
        self.before = text.resume(prompt.tokens[num_before:])
        return text

    def _told(self, step: Step, text: AnswerText) -> Iterator[Piece]:
        """The tokens of a step, up to what ends the answer."""
        facts = StepFacts(
            step.num_draft_tokens, step.num_accepted, step.num_threads, step.draft_off
        )
        if self.options.logprobs is not None:
            # A copy: while the reader of a piece takes its time, other answers decode.
            step = replace(step, logits=step.logits[: len(step.tokens)].copy())
        for index, (token, provenance) in enumerate(
            zip(step.tokens, step.provenance, strict=True)
        ):
            self.provenances.append(provenance)
            self.token_ids.append(token)
            logprobs = self._logprobs(step, index)
            parts, tried = self._pushed(text, token), None if index else facts
            ids: tuple[int, ...] = (token,)
            # Before it is handed on, behind which the answer may be closed.
            if text.stopped or self.request.is_end(token):
                self.finish_reason, self.stopped_by = "stop", text.stopped_by
            pieces: list[Piece] = []
            for part in parts:  # the first has the token
                pieces.append(
                    Piece(
                        part.text, ids, provenance, logprobs, part.is_thought, part.call, tried
                    )
                )
                ids, logprobs, tried = (), None, None
            self.made += pieces
            yield from pieces
            if text.stopped:
                return

    def _pushed(self, text: AnswerText, token: int) -> list[Part]:
        """The new parts with a token: at least one."""
        self.parts += (parts := text.push(token))
        new = [part for part in parts if not part.is_again] or [Part("", text.is_thinking)]
        self.num_thought_tokens += new[0].is_thought
        return new

    def _rest(self, text: AnswerText) -> list[Piece]:
        """The text that waited for tokens that do not come."""
        last = self.provenances[-1] if self.provenances else Provenance.PLAIN
        self.parts += (parts := text.finish(is_cut=self.finish_reason != "stop"))
        pieces = [
            Piece(part.text, (), last, is_thought=part.is_thought, call=part.call)
            for part in parts
            if not part.is_again
        ]
        self.made += pieces
        return pieces

    def _logprobs(self, step: Step, index: int) -> TokenLogprobs | None:
        if self.options.logprobs is None:
            return None
        logits, distribution = step.logits[index], step.distributions[index]
        found = token_logprobs(
            step.tokens[index],
            logits,
            distribution,
            self.options.logprobs,
            lambda token: self.vocabulary.piece(token) or self.vocabulary.text(token).encode(),
        )
        self.logprobs.append(found)
        return found

    def _conclude(self) -> None:
        self.meter.tokens = Counter(self.provenances)
        new = Said.of([part for part in self.parts if not part.is_again])
        said = Said.of([*self.before, *self.parts]) if self.prompt.num_said else new
        reply = Reply(
            text=new.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            stats=self._stats(),
            seed=self.options.seed,
            rule=self.request.rule.name,
            logprobs=None if self.options.logprobs is None else tuple(self.logprobs),
            thoughts=new.thoughts,
            tool_calls=said.tool_calls,
            not_kept=self.not_kept,
            stopped_by=self.stopped_by,
            num_thought_tokens=self.num_thought_tokens,
        )
        self.result = (reply, said)

    def end_behind(self, num_tokens: int, num_pieces: int) -> list[Piece]:
        """Make the result that of the first num_tokens alone, once there is one.

        num_pieces: those of them that were read. Returns the others, among them the text that
        waited for more tokens.
        """
        if self.result is None:
            return []
        if num_tokens < len(self.token_ids):
            self._cut(num_tokens)
        return self.made[num_pieces:]

    def _cut(self, num_tokens: int) -> None:
        begins = [number for number, piece in enumerate(self.made) if piece.token_ids]
        del self.made[begins[num_tokens] :]
        del self.token_ids[num_tokens:], self.logprobs[num_tokens:]
        del self.provenances[num_tokens:]
        self.finish_reason, self.stopped_by = "cancelled", None
        self.parts, self.num_thought_tokens = [], 0
        text = self._text()
        for token in self.token_ids:
            self._pushed(text, token)
        self._rest(text)
        self._conclude()
