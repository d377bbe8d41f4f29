"""Which preset to take on this machine: the largest current one that fits and is quick enough.

A token needs all weights of its target once. So the speed of a target in main memory is at most
the bytes that the memory delivers in a second ÷ the bytes of the weights. How much the memory
delivers is known once a large model has run here; until then it is assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from localspec.policy.profile import contents_of, kept_profiles
from localspec.presets.located import PresetState

ENOUGH_TOKENS_PER_S = 5.0  # about as fast as people read
ASSUMED_BYTES_PER_S = 40e9  # two channels of DDR4; newer PCs have more
# From this share of the largest size on, sizes say nothing about which model is better
_ABOUT_AS_LARGE = 0.9
_LARGE_BYTES = 200_000_000  # of a model that is much larger than any processor's cache
_MOST_HEADERS = 4  # to read; each takes up to half a second


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A preset to take, and why."""

    state: PresetState
    token_bytes: int
    """What the target reads for a token, in bytes."""

    is_on_gpus: bool
    """Whether the whole preset fits onto GPUs with memory of their own."""

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
    states: Iterable[PresetState],
    free: MemoryRoom,
    bytes_per_s: float | None,
) -> Recommendation | None:
    """The largest preset of the newest year that fits and is quick, judged by sizes of files.

    Of several that are about as large it is the newest. Presets that fit onto the GPUs come
    before all others. If none of that year is quick, it is the quickest of that year. None if
    no preset with a known release fits.

    Args:
        states: The presets. Those for vectors, and variants of others, are left out.
        free: The free memory.
        bytes_per_s: The result of `measured_bytes_per_s`.
    """
    fitting = list(_fitting(states, free, bytes_per_s))
    if not fitting:
        return None
    newest_year = max(choice.year for choice in fitting)
    current = [choice for choice in fitting if choice.year == newest_year]
    on_gpus = [choice for choice in current if choice.is_on_gpus]
    if on_gpus:
        return _newest_of_the_largest(on_gpus)
    quick = [choice for choice in current if choice.is_quick]
    if quick:
        return _newest_of_the_largest(quick)
    return max(current, key=lambda choice: choice.tokens_per_s)


def _fitting(
    states: Iterable[PresetState],
    free: MemoryRoom,
    bytes_per_s: float | None,
) -> Iterator[Recommendation]:
    """The presets that may be recommended and fit."""
    for state in states:
        target_bytes = _target_bytes(state)
        if not target_bytes or state.size_bytes is None:
            continue
        if fits_by_size(state.size_bytes, free):
            yield Recommendation(
                state=state,
                token_bytes=round(target_bytes * state.preset.active_share),
                is_on_gpus=fits_on_gpus(state.size_bytes, free),
                bytes_per_s=bytes_per_s,
            )


def _newest_of_the_largest(choices: Sequence[Recommendation]) -> Recommendation:
    """The newest of the presets that are about as large as the largest one."""

    def size_bytes(choice: Recommendation) -> int:
        return choice.state.size_bytes or 0

    least_bytes = _ABOUT_AS_LARGE * max(map(size_bytes, choices))
    largest = [choice for choice in choices if size_bytes(choice) >= least_bytes]
    return max(largest, key=lambda choice: choice.state.preset.released)


def _target_bytes(state: PresetState) -> int | None:
    """The size of a preset's target, in bytes.

    None for a preset that is not to be recommended: for vectors, of no known release, or a
    variant.
    """
    preset = state.preset
    if preset.embeds or not preset.released or "@" in preset.name:
        return None
    if isinstance(preset.target, HubModel):
        return preset.target.size_bytes
    return None


def measured_bytes_per_s(targets: Sequence[Path], free: MemoryRoom) -> float | None:
    """The bytes of weights that a dense model's steps read from main memory in a second.

    Of the _MOST_HEADERS largest models, the largest dense one whose costs were kept counts.
    None if there is none, or if a GPU with memory of its own may have held its weights.

    Args:
        targets: Models on this machine.
        free: The memory of this machine.
    """
    if not all(map(is_in_main_memory, free.gpus)):
        return None
    steps_s = _steps_s()
    if not steps_s:
        return None
    files = [path for path in targets if path.is_file()]
    sizes = [(path.stat().st_size, path) for path in files]
    sizes.sort(reverse=True)
    for size_bytes, path in sizes[:_MOST_HEADERS]:
        if size_bytes < _LARGE_BYTES:
            break
        try:
            header = check_model_file(path)
        except ModelFileError:
            continue
        content = FileContent(header).digest()
        step_s = steps_s.get(content or "")
        if step_s and not has_experts(header):
            return _read_bytes(header) / step_s
    return None


def _steps_s() -> dict[str, float | None]:
    """Seconds of a target-only step of each target that ran here, by the hash of its file.

    Of several profiles of a target the latest counts, which `kept_profiles` yields first. None
    if it has no measurement.
    """
    steps_s: dict[str, float | None] = {}
    for _, identity, learned in kept_profiles():
        target_content = contents_of(identity)[0]
        steps_s.setdefault(target_content, _fastest_step_s(learned))
    return steps_s


def _fastest_step_s(learned: dict[str, object]) -> float | None:
    """Seconds of the fastest target-only step of a profile; None if it has none.

    Args:
        learned: The profile's content. Its "threads" are those of `FastestDecodes.as_dict`.
    """
    fastest = learned.get("threads")
    if not isinstance(fastest, dict) or not fastest.get("1"):
        return None
    return min(map(float, fastest["1"].values()))


def _read_bytes(header: Header) -> int:
    """The weights that a target-only step reads, in bytes.

    The embeddings do not count: a step reads one row of them. If there is no output layer, they
    are used as one, and count.
    """
    tensors = header.by_name()
    if "output.weight" in tensors and "token_embd.weight" in tensors:
        return header.weights_bytes - tensors["token_embd.weight"].size_bytes
    return header.weights_bytes
