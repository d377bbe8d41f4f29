"""Counts what the server has done since it began, and writes it in Prometheus's format."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator

from localspec.server.served_models import ServedModels
from localspec.speculative.metrics import Stats

PROMETHEUS = "text/plain; version=0.0.4"
# Where a token comes from; `Stats` has an attribute num_accepted, and so on.
_PROVENANCES = ("accepted", "recovered", "bonus", "plain")


class Counters:
    """Counts answers, tokens and requests. Only the event loop may use it.

    A series is what Prometheus calls a name with its labels, which has one number. The names
    that begin with "llamacpp:" are llama-server's.
    """

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)  # by the series

    def add(self, name: str, number: float = 1, **labels: object) -> None:
        """Add a number to the series with a name and its labels."""
        self._sums[_series(name, **labels)] += number

    def add_answer(self, stats: Stats) -> None:
        """Count one answer, even if it is not complete."""
        numbers = {
            "prompt_tokens_total": stats.prompt_tokens - stats.cached_prompt_tokens,
            "prompt_tokens_cached_total": stats.cached_prompt_tokens,
            "prompt_seconds_total": stats.time_to_first_token_s,
            "tokens_predicted_total": stats.completion_tokens,
            "tokens_predicted_seconds_total": stats.decode_time_s,
            "n_decode_total": stats.num_steps,
            "spec_decode_num_draft_tokens_total": stats.num_draft_tokens,
            "spec_decode_num_accepted_tokens_total": stats.num_accepted,
            # The first item counts the steps without a draft.
            "spec_decode_num_drafts_total": sum(stats.steps_per_length[1:]),
        }
        for name, number in numbers.items():
            self.add(f"llamacpp:{name}", number)
        for provenance in _PROVENANCES:
            num_tokens = getattr(stats, f"num_{provenance}")
            self.add("localspec_tokens_total", num_tokens, provenance=provenance)
        for proposer, number in stats.drafted_per_proposer.items():
            self.add("localspec_drafted_tokens_total", number, proposer=proposer)
        for proposer, number in stats.accepted_per_proposer.items():
            self.add("localspec_accepted_tokens_total", number, proposer=proposer)
        for reason, number in stats.draft_off_steps.items():
            self.add("localspec_undrafted_steps_total", number, reason=reason)
        for position, number in enumerate(stats.drafted_per_position):
            if number:
                accepted = stats.accepted_per_position[position]
                self.add("localspec_drafted_tokens_per_pos_total", number, position=position)
                name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
                self.add(name, accepted, position=position)

    def text(self, models: ServedModels, num_answered: int, num_waiting: int) -> str:
        """All series in Prometheus's text format.

        Args:
            models: the server's.
            num_answered: the number of requests that are being answered now.
            num_waiting: the number of requests that wait now.
        """
        prompt_s = self._sums["llamacpp:prompt_seconds_total"]
        predicted_s = self._sums["llamacpp:tokens_predicted_seconds_total"]
        num_prompt_tokens = self._sums["llamacpp:prompt_tokens_total"]
        num_predicted = self._sums["llamacpp:tokens_predicted_total"]
        series = {
            **self._sums,
            "llamacpp:requests_processing": num_answered,
            "llamacpp:requests_deferred": num_waiting,
            "llamacpp:prompt_tokens_seconds": _rate(num_prompt_tokens, prompt_s),
            # As in llama-server, an answer's first token counts, but its time is the prompt's.
            "llamacpp:predicted_tokens_seconds": _rate(num_predicted, predicted_s),
            **dict(_model_series(models)),
        }
        lines = [f"{name} {round(number, 6)}" for name, number in sorted(series.items())]
        return "\n".join([*lines, ""])


def _rate(number: float, seconds: float) -> float:
    """The number per second; 0 where no time has passed."""
    if seconds:
        return number / seconds
    return 0


def _model_series(models: ServedModels) -> Iterator[tuple[str, float]]:
    """The series of each model, with their numbers.

    They say whether it is loaded (1 or 0) and, if it is loaded and not the embedder, its
    planned memory in bytes.
    """
    for model in models.listed:
        yield _series("localspec_model_loaded", model=model.name), model.engine is not None
    for model in models.all:
        name = model.name
        memory = model.memory
        if model.engine is not None and memory is not None:
            main_series = _series("localspec_model_bytes", model=name, place="main")
            yield main_series, memory.main_bytes
            gpu_series = _series("localspec_model_bytes", model=name, place="gpu")
            yield gpu_series, sum(memory.gpu_bytes)


def _series(name: str, **labels: object) -> str:
    """A series in Prometheus's text format: name{label="value",…}, or the name alone."""
    pairs = []
    for label, value in labels.items():
        if isinstance(value, enum.Enum):
            value = value.value
        escaped = str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        pairs.append(f'{label}="{escaped}"')
    if not pairs:
        return name
    joined = ",".join(pairs)
    return f"{name}{{{joined}}}"
