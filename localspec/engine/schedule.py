"""The lanes at work, and which of the decodes that they want is made next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from localspec.engine.decode_times import DecodeTimes
from localspec.engine.lane import Lane, Producing
from localspec.llama.joint_costs import LONGEST_STEP
from localspec.pictures.cells import end_of_part, has_cells
from localspec.sampling.distribution import Logits
from localspec.speculative.model_api import Decode
from localspec.streaming.record import AnswerRecord, Reading


class Schedule:
    """Has answers produced side by side, in the thread that computes.

    Decodes that several texts want are made at once where that takes less time, else in turns.
    Prompts are read in pieces, between which the other texts write.

    Args:
        num_lanes: How many answers may run at once.
    """

    def __init__(self, num_lanes: int) -> None:
        self._has_several = num_lanes > 1
        self._at_work: list[Lane] = []  # the lane that has waited longest is first
        self._num_decodes = 0
        self._times = DecodeTimes()

    def start(self, lane: Lane, record: AnswerRecord, producing: Producing) -> None:
        """Start producing an answer in a free lane."""
        lane.take(record, producing)
        self._at_work.append(lane)
        self._produce(lane, None, None)

    def remove(self, record: AnswerRecord) -> None:
        """Free the lane of an answer, if it has one."""
        for lane in self._at_work[:]:
            if lane.record is record:
                self._at_work.remove(lane)
                lane.free()

    def may_step(self) -> bool:
        """Resume answers whose readers have caught up. Returns whether any wants a decode."""
        for lane in self._at_work[:]:
            if lane.is_paused and lane.record is not None and not lane.record.is_ahead:
                self._produce(lane, None, None)
        return any(not lane.is_paused for lane in self._at_work)

    def step(self) -> None:
        """Make one decode: a step of texts that write, or a piece of a prompt."""
        try:
            self._step()
        except BaseException as error:
            # A fault in the schedule: the first answer that wants a decode gets it.
            lane = next(lane for lane in self._at_work if lane.decode is not None)
            self._produce(lane, None, error)

    def _produce(self, lane: Lane, rows: Logits | None, error: BaseException | None) -> None:
        """Run an answer up to its next decode, or until it is too far ahead of its reader."""
        producing, record = lane.resume()
        try:
            item = producing.send(rows) if error is None else producing.throw(error)
            while not isinstance(item, Decode):
                if isinstance(item, Reading):
                    record.outbox.put(item)
                else:
                    record.put(item)
                if record.is_ahead:
                    lane.is_paused = True
                    return
                item = next(producing)
        except BaseException as raised:
            self._at_work.remove(lane)
            lane.free()
            if isinstance(raised, StopIteration):
                # A new one: its traceback does not keep alive what produced the answer.
                record.outbox.put(StopIteration())
            else:
                record.outbox.put(raised)
        else:
            lane.want(item, self._num_decodes)
        finally:
            del error  # its traceback has this frame

    def _step(self) -> None:
        prompts: list[tuple[Lane, Decode]] = []
        steps: list[tuple[Lane, Decode]] = []
        for lane in self._at_work:
            decode = lane.decode
            if decode is None:
                continue
            if _is_of_prompt(decode):
                prompts.append((lane, decode))
            else:
                steps.append((lane, decode))
        if prompts and (not steps or self._times.may_read):
            lane, decode = prompts[0]
            self._prefill_chunk(lane, decode, is_alone=not steps)
            return
        # Drafts go before the target, so that the texts' target decodes can be joined.
        first = min((decode for _, decode in steps), key=_weight)
        handle = _model(first).handle
        same_context = []
        for lane, decode in steps:
            if _model(decode).handle is handle:
                same_context.append((lane, decode))
        self._decode_steps(same_context)

    def _decode_steps(self, wanted: Sequence[tuple[Lane, Decode]]) -> None:
        """Compute the first of these decodes of one context, with all that can join it."""
        # These load libllama.
        from localspec.llama.joint_decode import JointPart, decode_parts, joinable

        parts = []
        for _, decode in wanted:
            parts.append(JointPart(_model(decode), *decode[1:]))
        handle = parts[0].model.handle
        times = self._times.of(handle)
        started_s = time.perf_counter()
        chosen, num_rows = joinable(parts, times.rows)
        decode_parts(chosen)
        took_s = time.perf_counter() - started_s
        if all(part.error is None for part in chosen):
            times.rows.learn(num_rows, took_s)
            times.step_s = took_s
        self._times.wrote(handle, took_s)
        self._num_decodes += 1
        for (lane, _), part in zip(wanted, parts, strict=True):
            if part not in chosen:
                continue
            lane.reading_s = 0.0
            lane.clock.charge(took_s / len(chosen))
            error = part.error
            part.error = None  # its traceback's frames have the part
            self._deliver(
                lane,
                part.rows,
                error,
                is_joint=len(chosen) > 1,
            )
            del error

    def _prefill_chunk(self, lane: Lane, decode: Decode, *, is_alone: bool) -> None:
        """Decode a chunk of a prompt; the whole decode where no smaller chunk is possible."""
        model = _model(decode)
        tokens = decode.tokens
        num_logits = decode.num_logits
        times = self._times.of(model.handle)
        size = self._chunk_size(decode, times.chunks.size(is_alone=is_alone))
        is_whole = size > len(tokens) - max(num_logits, 1)
        rows = None
        error: BaseException | None = None
        started_s = time.perf_counter()
        try:
            if is_whole:
                size = len(tokens)
                rows = model.decode(tokens, num_logits)
            else:
                model.prefill_chunk(tokens[:size], len(tokens) - size)
        except BaseException as raised:
            error = raised
        took_s = time.perf_counter() - started_s
        if error is None and not has_cells(tokens[:size]):
            times.chunks.learn(size, took_s, times.step_s)
        lane.reading_s += took_s
        lane.clock.charge(took_s)
        self._times.read(model.handle, took_s, lane.reading_s)
        self._num_decodes += 1
        if is_whole or error is not None:
            self._deliver(lane, rows, error, is_joint=False)
        else:
            self._move_to_end(lane)
            lane.decode = decode._replace(tokens=tokens[size:])
        del error  # its traceback has this frame

    def _chunk_size(self, decode: Decode, wanted: int) -> int:
        """Tokens of the next chunk of a prompt. wanted: its size if other texts may write."""
        from localspec.llama.model import LlamaModel  # loads libllama

        model = _model(decode)
        num_tokens = len(decode.tokens)
        if not isinstance(model, LlamaModel):  # a head, which reads all at once
            return num_tokens
        most = model.batch_size
        if self._has_several:
            most = min(wanted, most)
        return end_of_part(decode.tokens, min(most, num_tokens))

    def _deliver(
        self,
        lane: Lane,
        rows: Logits | None,
        error: BaseException | None,
        *,
        is_joint: bool,
    ) -> None:
        """Give a lane the rows of its decode, or its error, and continue its answer."""
        lane.clock.done(self._num_decodes, is_joint=is_joint)
        self._move_to_end(lane)
        self._produce(lane, rows, error)
        # Breaks a cycle: the traceback has frames called from here, which refer to this frame.
        del error

    def _move_to_end(self, lane: Lane) -> None:
        """Move a lane to the end of the round-robin."""
        self._at_work.remove(lane)
        self._at_work.append(lane)


def _model(decode: Decode) -> Any:
    """The model of a decode: a `LlamaModel` here, or a head."""
    return decode.model


def _weight(decode: Decode) -> tuple[int, int]:
    """Orders decodes: first those of the smaller model, then those of fewer tokens."""
    return _model(decode).num_weight_bytes, len(decode.tokens)


def _is_of_prompt(decode: Decode) -> bool:
    """Whether a decode is part of a prompt, which is decoded in pieces."""
    return len(decode.tokens) > LONGEST_STEP or has_cells(decode.tokens)
