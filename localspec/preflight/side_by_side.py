"""How many texts models can hold side by side, with the memory that is planned for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.errors import OptionError
from localspec.preflight.plan import Plan, plan_layers
from localspec.preflight.room import MemoryRoom, PairMemory, Planned

MOST_PARALLEL = 16
_KEPT_PART = 8  # caches of texts that wait take up to 1/8 of a server's memory


def check_parallel(parallel: object) -> None:
    """Raise OptionError for a number of answers at once outside its range."""
    if not (isinstance(parallel, int) and 1 <= parallel <= MOST_PARALLEL):
        raise OptionError(f"parallel is {parallel!r}", f"Choose 1 to {MOST_PARALLEL}.")


def served_kept_bytes(total_bytes: int, num_models: int = 1) -> int:
    """What a server of so many models gives each for caches, of the machine's memory."""
    return total_bytes // (_KEPT_PART * num_models)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """How many answers run at once. num_asked: that were wanted.

    num_bytes: of the memory, what all but one take. kept_bytes: the most that an engine takes
    in addition, for the caches of waiting conversations.
    """

    num: int
    num_asked: int
    num_bytes: int
    kept_bytes: int


def planned_at_once(
    wanted: Sequence[Planned],
    context_length: int,
    room: MemoryRoom,
    parallel: int,
    kept_bytes: int,
) -> tuple[PairMemory, AtOnce]:
    """The memory of models as `load` opens them; one answer at a time with RPC servers.

    Raises OptionError for a number outside its range.
    """
    check_parallel(parallel)
    alone = plan = plan_layers(wanted, context_length, room)
    if not any(model.options.rpc for model in wanted):
        plan = plan_side_by_side(wanted, alone, parallel, kept_bytes)
    num, reserved = plan.models[0].options.num_sequences, reserved_bytes(plan, alone)
    return plan.memory, AtOnce(num, parallel, reserved, kept_bytes - reserved)


def plan_side_by_side(
    wanted: Sequence[Planned], alone: Plan, parallel: int, kept_bytes: int
) -> Plan:
    """The plan for up to `parallel` texts side by side. alone: the plan for one.

    As many as half of kept_bytes pays for, so that the rest has room for a copy of any text;
    and as fit without a layer less on a GPU, or a snapshot less.
    """
    for count in range(parallel, 1, -1):
        planned = [with_sequences(model, count) for model in wanted]
        plan = plan_layers(planned, alone.context_length, alone.room)
        if reserved_bytes(plan, alone) <= kept_bytes // 2 and _is_like(plan, alone):
            return plan
    return alone


def reserved_bytes(plan: Plan, alone: Plan) -> int:
    """What a plan takes for all texts but one."""
    return plan.memory.needed_bytes - alone.memory.needed_bytes


def with_sequences(model: Planned, num_sequences: int) -> Planned:
    """The model with that many texts side by side."""
    return model._replace(options=replace(model.options, num_sequences=num_sequences))


def _is_like(plan: Plan, alone: Plan) -> bool:
    """Whether a plan fits, and differs from that for one text in its sequences only."""
    if alone.room.shortages(plan.memory):
        return False
    return [with_sequences(model, 1) for model in plan.models] == list(alone.models)
