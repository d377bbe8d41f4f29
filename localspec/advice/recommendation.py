"""Which preset to take on this machine: the largest current one that fits and is quick enough.

A token needs all weights of its target once, so a target in main memory writes at most as many
tokens a second as that memory can deliver them. How much it delivers is known once a large
model has run here; until then it is assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.file_content import FileContent
from localspec.gguf_file.header import Header
from localspec.hub.hub_file import HubModel
from localspec.llama.placement import has_experts, is_in_main_memory
from localspec.planning.free_memory import MemoryRoom
from localspec.planning.plan import fits_by_size, fits_on_gpus
from localspec.policy.profile import kept_profiles
from localspec.presets.located import PresetState

ENOUGH_TOKENS_PER_S = 5.0  # about as fast as people read
ASSUMED_BYTES_PER_S = 40e9  # two channels of DDR4; newer PCs have more
_NEARLY = 0.9  # of the largest size; smaller differences say nothing of what a model can do
_LARGE_BYTES = 200_000_000  # of a model that no processor's cache holds a good part of
_MOST_LOOKED_AT = 4  # headers: each takes up to half a second


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A preset to take, and why."""

    state: PresetState
    token_bytes: int
    """What the target reads for a token, in bytes."""

    is_on_gpus: bool
    """Whether all of it fits onto GPUs with memory of their own."""

    bytes_per_s: float | None
    """What this machine's memory delivers; None if that was not measured."""

    @property
    def tokens_per_s(self) -> float:
        """The most tokens a second that main memory allows, without drafting."""
        return (self.bytes_per_s or ASSUMED_BYTES_PER_S) / self.token_bytes

    @property
    def is_quick(self) -> bool:
        """Whether it writes quickly enough to read along."""
        return self.is_on_gpus or self.tokens_per_s >= ENOUGH_TOKENS_PER_S

    @property
    def year(self) -> str:
        """The year of its release."""
        return self.state.preset.released[:4]


def recommend(
    states: Iterable[PresetState], free: MemoryRoom, bytes_per_s: float | None
) -> Recommendation | None:
    """The largest preset of the newest year that fits and is quick, judged by sizes of files.

    Of those that are about as large it is the newest. One that fits onto the GPUs comes before
    one that does not. If none of that year is quick, it is the quickest of them. None if no
    preset with a known release fits.

    Args:
        states: the presets. Those for vectors, and variants of others, are left out.
        free: the free memory.
        bytes_per_s: what `measured_bytes_per_s` gives.
    """
    found = [
        Recommendation(
            state=state,
            token_bytes=round(size * state.preset.active_share),
            is_on_gpus=fits_on_gpus(state.size_bytes, free),
            bytes_per_s=bytes_per_s,
        )
        for state in states
        if (size := _target_bytes(state)) and state.size_bytes is not None
        if fits_by_size(state.size_bytes, free)
    ]
    if not found:
        return None
    newest = max(one.year for one in found)
    current = [one for one in found if one.year == newest]
    for good in (
        [one for one in current if one.is_on_gpus],
        [one for one in current if one.is_quick],
    ):
        if good:
            return _newest_of_the_largest(good)
    return max(current, key=lambda one: one.tokens_per_s)


def _newest_of_the_largest(found: Sequence[Recommendation]) -> Recommendation:
    sizes = [one.state.size_bytes or 0 for one in found]
    least = _NEARLY * max(sizes)
    largest = [one for one, size in zip(found, sizes, strict=True) if size >= least]
    return max(largest, key=lambda one: one.state.preset.released)


def _target_bytes(state: PresetState) -> int | None:
    """The size of a target that answers and whose release is known; None for other presets."""
    preset = state.preset
    if preset.embeds or not preset.released or "@" in preset.name:
        return None
    if isinstance(preset.target, HubModel):
        return preset.target.size_bytes
    return None


def measured_bytes_per_s(targets: Sequence[Path], free: MemoryRoom) -> float | None:
    """The bytes of weights that a dense model's steps have read a second, from main memory.

    The largest model whose costs were kept counts. None if there is none, or if a GPU with
    memory of its own may have held its weights.

    Args:
        targets: models on this machine.
        free: its memory.
    """
    if not all(map(is_in_main_memory, free.gpus)):
        return None
    steps = {
        identity[0].partition(" ·")[0]: _step_s(learned)
        for _, identity, learned in reversed([*kept_profiles()])
    }
    large = sorted(
        ((path.stat().st_size, path) for path in targets if path.is_file()), reverse=True
    )
    for size_bytes, path in large[: _MOST_LOOKED_AT if steps else 0]:
        if size_bytes < _LARGE_BYTES:
            break
        try:
            header = check_model_file(path)
        except ModelFileError:
            continue
        step_s = steps.get(FileContent(header).digest() or "")
        if step_s and not has_experts(header):
            return _read_bytes(header) / step_s
    return None


def _step_s(learned: dict[str, object]) -> float | None:
    """Seconds of the fastest target-only steps, as a profile has them; None if it has none."""
    fastest = learned.get("threads")
    if not isinstance(fastest, dict) or not fastest.get("1"):
        return None
    return min(map(float, fastest["1"].values()))


def _read_bytes(header: Header) -> int:
    """The weights that a step reads: of the embeddings it reads a row, unless they are the
    output layer.
    """
    tensors = header.by_name()
    if "output.weight" in tensors and "token_embd.weight" in tensors:
        return header.weights_bytes - tensors["token_embd.weight"].size_bytes
    return header.weights_bytes
