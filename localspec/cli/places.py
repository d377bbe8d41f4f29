"""How much of each memory models need, as lines of text."""

from __future__ import annotations

from localspec.cli.quantities import readable_bytes
from localspec.preflight.room import MemoryRoom, PairMemory


def place_lines(memory: PairMemory, room: MemoryRoom) -> list[str]:
    """A line for each memory: needed and free bytes, and the layers that go there."""
    lines = [_line("main memory", memory.main_bytes, room.main_bytes, _in_main_memory(memory))]
    for index, gpu in enumerate(room.gpus):
        parts = [
            f"{model.gpu_layers[index]} of {model.num_layers} layers of the {role} "
            f"({readable_bytes(model.gpu_bytes[index])})"
            for role, model in zip(memory.roles, memory.models, strict=True)
            if model.gpu_layers[index]
        ]
        name = f"{gpu.name} ({gpu.description})"
        lines.append(_line(name, memory.gpu_bytes[index], gpu.free_bytes, parts))
    return lines


def _in_main_memory(memory: PairMemory) -> list[str]:
    parts = []
    for role, model in zip(memory.roles, memory.models, strict=True):
        count = model.num_layers - sum(model.gpu_layers)
        size = f"({readable_bytes(model.main_bytes)})"
        if count:
            parts.append(f"{count} of {model.num_layers} layers of the {role} {size}")
        elif model.num_cpu_moe_layers:
            experts = f"the experts of {model.num_cpu_moe_layers} layers of the {role}"
            parts.append(f"{experts} {size}")
    return parts


def _line(name: str, needed: int, free: int, parts: list[str]) -> str:
    what = f": {', '.join(parts)}" if parts else ""
    return f"{readable_bytes(needed)} of {name}, {readable_bytes(free)} free{what}"
