"""Chooses which of the decodes that the lanes' answers want is made next, and makes it."""

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
    """Produces several answers side by side, in the worker's thread.

    Decodes that several answers want are made at once where that takes less time, else in
    turns. Prompts are read in chunks, between which the other answers have their steps.

    Args:
        num_lanes: How many answers may run at once.
    """

    def __init__(self, num_lanes: int) -> None:
        self._has_several_lanes = num_lanes > 1
        self._busy_lanes: list[Lane] = []  # the lane that has waited longest is first
        self._num_decodes = 0
        self._times = DecodeTimes()

    def start(self, lane: Lane, record: AnswerRecord, producing: Producing) -> None:
        """Run an answer in a free lane, up to its first decode. producing: produces it."""
        lane.take(record, producing)
        self._busy_lanes.append(lane)
        self._continue(lane, None, None)

    def remove(self, record: AnswerRecord) -> None:
        """Free the lane of an answer, if it has one."""
        for lane in self._busy_lanes[:]:
            if lane.record is record:
                self._busy_lanes.remove(lane)
                lane.free()

    def resume_answers(self) -> bool:
        """Resume answers whose readers have caught up. Returns whether any wants a decode."""
        for lane in self._busy_lanes[:]:
            if lane.is_paused and lane.record is not None and not lane.record.is_ahead:
                self._continue(lane, None, None)
        return any(not lane.is_paused for lane in self._busy_lanes)

    def step(self) -> None:
        """Make one decode: a chunk of a prompt, or a step of one answer or several."""
        try:
            self._make_decode()
        except BaseException as error:
            # A fault in the schedule: it ends the first answer that wants a decode.
            lane = next(lane for lane in self._busy_lanes if lane.decode is not None)
            self._continue(lane, None, error)

    def _continue(self, lane: Lane, rows: Logits | None, error: BaseException | None) -> None:
        """Run an answer up to its next decode, or until it is too far ahead of its reader.

        The answer's pieces go to its reader. If the answer ends, the lane is freed, and the
        reader gets the error, or StopIteration.

        Args:
            lane: The lane of the answer.
            rows: The rows of the answer's last decode; None if it wanted none.
            error: The error of the last decode, if it failed.
        """
        producing, record = lane.resume()
        try:
            if error is None:
                item = producing.send(rows)
            else:
                item = producing.throw(error)
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
            self._busy_lanes.remove(lane)
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

    def _make_decode(self) -> None:
        """Choose the decode to make, make it, and continue the answers that wanted it."""
        prompts: list[tuple[Lane, Decode]] = []
        steps: list[tuple[Lane, Decode]] = []
        for lane in self._busy_lanes:
            decode = lane.decode
            if decode is None:
                continue
            if _is_of_prompt(decode):
                prompts.append((lane, decode))
            else:
                steps.append((lane, decode))
        if prompts and (not steps or self._times.may_prefill):
            lane, decode = prompts[0]
            self._prefill_chunk(lane, decode, is_alone=not steps)
            return
        # Drafts go before the target, so that the target decodes of several answers can be
        # joined.
        first = min((decode for _, decode in steps), key=_decode_order)
        handle = _model(first).handle
        same_context = []
        for lane, decode in steps:
            if _model(decode).handle is handle:
                same_context.append((lane, decode))
        self._decode_steps(same_context)

    def _decode_steps(self, steps: Sequence[tuple[Lane, Decode]]) -> None:
        """Make the first of these decodes, and those of the others that are joined with it.

        Args:
            steps: Lanes with the decodes that they want, all in one context.
        """
        # These load libllama.
        from localspec.llama.joint_decode import JointPart, decode_parts, joinable

        parts = []
        for _, decode in steps:
            parts.append(JointPart(_model(decode), decode.tokens, decode.num_logits))
        handle = parts[0].model.handle
        times = self._times.of(handle)
        started_s = time.perf_counter()
        chosen, num_rows = joinable(parts, times.rows)
        decode_parts(chosen)
        took_s = time.perf_counter() - started_s
        if all(part.error is None for part in chosen):
            times.rows.learn(num_rows, took_s)
            times.step_s = took_s
        self._times.note_step(handle, took_s)
        self._num_decodes += 1
        for (lane, _), part in zip(steps, parts, strict=True):
            if part not in chosen:
                continue
            lane.reading_s = 0.0  # its prompt has been read
            lane.clock.charge(took_s / len(chosen))
            error = part.error
            part.error = None  # breaks a cycle: the error's traceback refers to the part
            self._deliver(
                lane,
                part.rows,
                error,
                is_joint=len(chosen) > 1,
            )
            del error

    def _prefill_chunk(self, lane: Lane, decode: Decode, *, is_alone: bool) -> None:
        """Decode the next chunk of a prompt. The answer continues after the last chunk.

        Args:
            lane: The prompt's lane.
            decode: The tokens of the prompt that are not decoded yet.
            is_alone: Whether no other answer wants a step.
        """
        model = _model(decode)
        tokens = decode.tokens
        num_logits = decode.num_logits
        times = self._times.of(model.handle)
        size = self._chunk_size(decode, times.chunks.size(is_alone=is_alone))
        # The last chunk has all tokens whose rows are wanted, and at least one token.
        num_in_last = max(num_logits, 1)
        is_last = size > len(tokens) - num_in_last
        rows = None
        error: BaseException | None = None
        started_s = time.perf_counter()
        try:
            if is_last:
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
        self._times.note_chunk(model.handle, took_s, lane.reading_s)
        self._num_decodes += 1
        if is_last or error is not None:
            self._deliver(lane, rows, error, is_joint=False)
        else:
            self._move_to_end(lane)
            lane.decode = decode._replace(tokens=tokens[size:])
        del error  # its traceback has this frame

    def _chunk_size(self, decode: Decode, shared_size: int) -> int:
        """How many tokens the next chunk of a prompt has. A picture's part is never divided.

        Args:
            decode: The tokens of the prompt that are not decoded yet.
            shared_size: The tokens of a chunk where other answers may run.
        """
        from localspec.llama.model import LlamaModel  # loads libllama

        model = _model(decode)
        num_tokens = len(decode.tokens)
        if not isinstance(model, LlamaModel):  # a head, which reads all at once
            return num_tokens
        most = min(model.batch_size, num_tokens)
        if self._has_several_lanes:
            most = min(most, shared_size)
        return end_of_part(decode.tokens, most)

    def _deliver(
        self,
        lane: Lane,
        rows: Logits | None,
        error: BaseException | None,
        *,
        is_joint: bool,
    ) -> None:
        """Continue an answer with the rows of its decode, or with the decode's error.

        Args:
            lane: The lane of the answer.
            rows: The rows; None if the decode failed.
            error: The error, if the decode failed.
            is_joint: Whether other answers had a part in the decode.
        """
        lane.clock.done(self._num_decodes, is_joint=is_joint)
        self._move_to_end(lane)
        self._continue(lane, rows, error)
        # Breaks a cycle: the traceback has frames called from here, which refer to this frame.
        del error

    def _move_to_end(self, lane: Lane) -> None:
        """Move a lane to the end of the round-robin."""
        self._busy_lanes.remove(lane)
        self._busy_lanes.append(lane)


def _model(decode: Decode) -> Any:
    """The model of a decode: a `LlamaModel` here, or a head."""
    return decode.model


def _decode_order(decode: Decode) -> tuple[int, int]:
    """A key to sort decodes: by the size of the model, then by the number of tokens."""
    return _model(decode).num_weight_bytes, len(decode.tokens)


def _is_of_prompt(decode: Decode) -> bool:
    """Whether a decode is part of a prompt, which is decoded in chunks."""
    return len(decode.tokens) > LONGEST_STEP or has_cells(decode.tokens)
