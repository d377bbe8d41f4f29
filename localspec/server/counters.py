"""Counts what the server has done since it began, in the text that Prometheus reads."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator

from localspec.server.served_models import ServedModels
from localspec.speculative.metrics import Stats

PROMETHEUS = "text/plain; version=0.0.4"
_KINDS = ("accepted", "recovered", "bonus", "plain")


class Counters:
    """Counts answers and requests, by series. In the event loop alone.

    Series of llama-server have its names.
    """

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)

    def add(self, name: str, number: float = 1, **labels: object) -> None:
        """Add to a series."""
        self._sums[_series(name, **labels)] += number

    def add_answer(self, stats: Stats) -> None:
        """Count one answer, complete or not."""
        for name, number in {
            "prompt_tokens_total": stats.prompt_tokens - stats.cached_prompt_tokens,
            "prompt_tokens_cached_total": stats.cached_prompt_tokens,
            "prompt_seconds_total": stats.time_to_first_token_s,
            "tokens_predicted_total": stats.completion_tokens,
            "tokens_predicted_seconds_total": stats.decode_time_s,
            "n_decode_total": stats.num_steps,
            "spec_decode_num_draft_tokens_total": stats.num_draft_tokens,
            "spec_decode_num_accepted_tokens_total": stats.num_accepted,
            "spec_decode_num_drafts_total": sum(stats.steps_per_length[1:]),
        }.items():
            self.add(f"llamacpp:{name}", number)
        by_kind = {kind: getattr(stats, f"num_{kind}") for kind in _KINDS}
        for name, label, counts in (
            ("localspec_tokens_total", "provenance", by_kind),
            ("localspec_drafted_tokens_total", "proposer", stats.drafted_per_proposer),
            ("localspec_accepted_tokens_total", "proposer", stats.accepted_per_proposer),
            ("localspec_undrafted_steps_total", "reason", stats.draft_off_steps),
        ):
            for each, number in counts.items():
                self.add(name, number, **{label: each})
        for position, number in enumerate(stats.drafted_per_position):
            if number:
                kept = stats.accepted_per_position[position]
                where = {"position": position}
                self.add("localspec_drafted_tokens_per_pos_total", number, **where)
                self.add(
                    "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", kept, **where
                )

    def text(self, models: ServedModels, num_answered: int, num_waiting: int) -> str:
        """All series. num_answered, num_waiting: requests that are answered, or wait."""
        read_s = self._sums["llamacpp:prompt_seconds_total"]
        said_s = self._sums["llamacpp:tokens_predicted_seconds_total"]
        num_read = self._sums["llamacpp:prompt_tokens_total"]
        num_said = self._sums["llamacpp:tokens_predicted_total"]
        found = {
            **self._sums,
            "llamacpp:requests_processing": num_answered,
            "llamacpp:requests_deferred": num_waiting,
            "llamacpp:prompt_tokens_seconds": num_read / read_s if read_s else 0,
            "llamacpp:predicted_tokens_seconds": num_said / said_s if said_s else 0,
            **dict(_memory(models)),
        }
        lines = [f"{name} {round(number, 6)}" for name, number in sorted(found.items())]
        return "\n".join([*lines, ""])


def _memory(models: ServedModels) -> Iterator[tuple[str, float]]:
    """Series of each model: whether it is loaded, and its planned memory."""
    for model in models.listed:
        yield _series("localspec_model_loaded", model=model.name), model.engine is not None
    for model in models.all:
        name = model.name
        memory = model.memory
        if model.engine is not None and memory is not None:
            for place, number in (("main", memory.main_bytes), ("gpu", sum(memory.gpu_bytes))):
                yield _series("localspec_model_bytes", model=name, place=place), number


def _series(name: str, **labels: object) -> str:
    inner = []
    for label, value in labels.items():
        text = str(value.value if isinstance(value, enum.Enum) else value)
        text = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        inner.append(f'{label}="{text}"')
    if inner:
        return f"{name}{{{','.join(inner)}}}"
    return name
