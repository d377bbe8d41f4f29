"""What the server has counted since it began, in the text that Prometheus reads."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from localspec.server.served_models import ServedModels
from localspec.speculative.metrics import Stats

PROMETHEUS = "text/plain; version=0.0.4"
_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # upper limits of a histogram's bars

_Labels = tuple[tuple[str, str], ...]


class _Durations:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self._counts = [0] * len(_SECONDS)
        self._count, self._sum_s = 0, 0.0

    def add(self, seconds: float) -> None:
        self._count, self._sum_s = self._count + 1, self._sum_s + seconds
        for index, limit in enumerate(_SECONDS):
            self._counts[index] += seconds <= limit

    def lines(self, name: str, what: str) -> Iterator[str]:
        yield from _head(name, "histogram", what)
        for limit, count in zip((*_SECONDS, "+Inf"), (*self._counts, self._count), strict=True):
            yield f'{name}_bucket{{le="{limit}"}} {count}'
        yield f"{name}_sum {self._sum_s:.6f}"
        yield f"{name}_count {self._count}"


class Counters:
    """The counts of all answers and requests. In the event loop alone.

    What llama-server counts, too, has its name.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = dict.fromkeys(_SUMS, 0)
        self._by_label: dict[str, Counter[_Labels]] = {name: Counter() for name in _LABELLED}
        self._longest = 0
        self._waits, self._firsts = _Durations(), _Durations()

    def add_request(self, path: str, status: int) -> None:
        """Count a request. path: one of the routes'."""
        self._add("localspec_requests_total", {"path": path, "status": status})

    def add_waits(self, waited_s: float, first_s: float | None) -> None:
        """Count how long a question waited for its turn, and for its first piece of text."""
        self._waits.add(waited_s)
        if first_s is not None:
            self._firsts.add(first_s)

    def add_answer(self, stats: Stats) -> None:
        """Count one answer, complete or not."""
        num_read = stats.prompt_tokens - stats.cached_prompt_tokens
        for name, number in {
            "prompt_tokens_total": num_read,
            "prompt_tokens_cached_total": stats.cached_prompt_tokens,
            "prompt_seconds_total": stats.time_to_first_token_s,
            "tokens_predicted_total": stats.completion_tokens,
            "tokens_predicted_seconds_total": stats.decode_time_s,
            "n_decode_total": stats.num_steps,
            "spec_decode_num_draft_tokens_total": stats.num_draft_tokens,
            "spec_decode_num_accepted_tokens_total": stats.num_accepted,
            "spec_decode_num_drafts_total": sum(stats.steps_per_length[1:]),
        }.items():
            self._sums[name] += number
        self._longest = max(self._longest, stats.prompt_tokens + stats.completion_tokens)
        for kind in ("accepted", "recovered", "bonus", "plain"):
            number = getattr(stats, f"num_{kind}")
            self._add("localspec_tokens_total", {"provenance": kind}, number)
        for name, by_kind in (
            ("localspec_drafted_tokens_total", stats.drafted_per_proposer),
            ("localspec_accepted_tokens_total", stats.accepted_per_proposer),
        ):
            for proposer, number in by_kind.items():
                self._add(name, {"proposer": proposer.value}, number)
        for reason, number in stats.draft_off_steps.items():
            self._add("localspec_undrafted_steps_total", {"reason": reason.value}, number)
        for name, places in (
            ("localspec_drafted_tokens_per_pos_total", stats.drafted_per_position),
            (_ACCEPTED_PER_POS, stats.accepted_per_position),
        ):
            for place, number in enumerate(places):
                if stats.drafted_per_position[place]:
                    self._add(name, {"position": place}, number)

    def add_embedded(self, model: str, num_texts: int, num_tokens: int) -> None:
        """Count texts, or documents, that the model for embeddings has read."""
        for what, number in (("texts", num_texts), ("tokens", num_tokens)):
            self._add(f"localspec_embedded_{what}_total", {"model": model}, number)

    def _add(self, name: str, labels: Mapping[str, object], number: int = 1) -> None:
        key = tuple((label, str(value)) for label, value in labels.items())
        self._by_label[name][key] += number

    def text(self, models: ServedModels, num_answered: int, num_waiting: int) -> str:
        """All of it. num_answered, num_waiting: requests that have their turn, or wait."""
        sums = self._sums
        lines: list[str] = []
        for name, what in _SUMS.items():
            lines += _series(f"llamacpp:{name}", "counter", what, {(): sums[name]})
        for name, what in _LABELLED.items():
            lines += _series(name, "counter", what, self._by_label[name])
        rates = {
            "prompt_tokens_seconds": ("prompt_tokens_total", "prompt_seconds_total"),
            "predicted_tokens_seconds": (
                "tokens_predicted_total",
                "tokens_predicted_seconds_total",
            ),
        }
        gauges = {
            "n_tokens_max": self._longest,
            "requests_processing": num_answered,
            "requests_deferred": num_waiting,
            **{name: sums[a] / sums[b] if sums[b] else 0 for name, (a, b) in rates.items()},
        }
        for name, what in _GAUGES.items():
            lines += _series(f"llamacpp:{name}", "gauge", what, {(): gauges[name]})
        lines += self._waits.lines("localspec_wait_seconds", "From a request to its turn")
        lines += self._firsts.lines(
            "localspec_first_text_seconds", "From a request to its first piece of text"
        )
        lines += _memory_lines(models)
        return "\n".join([*lines, ""])


_ACCEPTED_PER_POS = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
_SUMS = {
    "prompt_tokens_total": "Tokens of prompts that were decoded: without cached ones",
    "prompt_tokens_cached_total": "Tokens of prompts that were cached",
    "prompt_seconds_total": "Seconds from the turn of an answer to its first token",
    "tokens_predicted_total": "Tokens of answers",
    "tokens_predicted_seconds_total": "Seconds of the steps after the first token",
    "n_decode_total": "Steps, each of which is one decode of the target",
    "spec_decode_num_draft_tokens_total": "Tokens that were drafted",
    "spec_decode_num_accepted_tokens_total": "Drafted tokens that were accepted",
    "spec_decode_num_drafts_total": "Steps with a draft",
}
_GAUGES = {
    "n_tokens_max": "The longest prompt and answer so far, in tokens",
    "requests_processing": "Requests that are being answered",
    "requests_deferred": "Requests that wait",
    "prompt_tokens_seconds": "Decoded tokens of prompts per second, since the start",
    "predicted_tokens_seconds": "Tokens of answers per second, since the start",
}
_LABELLED = {
    "localspec_requests_total": "Requests that were answered or refused",
    "localspec_tokens_total": "Tokens of answers by where they come from",
    "localspec_drafted_tokens_total": "Drafted tokens by who drafted them",
    "localspec_accepted_tokens_total": "Accepted tokens by who drafted them",
    "localspec_drafted_tokens_per_pos_total": "Drafted tokens by their place in the draft",
    _ACCEPTED_PER_POS: "Accepted tokens by their place in the draft",
    "localspec_undrafted_steps_total": "Steps without a draft, by the reason",
    "localspec_embedded_texts_total": "Texts that became vectors, or documents with a score",
    "localspec_embedded_tokens_total": "Tokens of these",
}


def _memory_lines(models: ServedModels) -> Iterator[str]:
    """Which models are loaded, and their memory: as planned, and as it is."""
    loaded: dict[_Labels, float] = {}
    planned: dict[_Labels, float] = {}
    resident: dict[_Labels, int | None] = {
        (("process", "server"),): _resident_bytes(os.getpid())
    }
    for model in models.all:
        name = ("model", model.name)
        loaded[(name,)] = model.engine is not None
        if model.engine is not None and model.memory is not None:
            planned[name, ("place", "main")] = model.memory.main_bytes
            planned[name, ("place", "gpu")] = sum(model.memory.gpu_bytes)
            resident[(("process", model.name),)] = _resident_bytes(model.engine.process_id)
    if (embedder := models.embedder) is not None:
        loaded[(("model", embedder.name),)] = embedder.isolated is not None
        if embedder.isolated is not None:
            number = _resident_bytes(embedder.isolated.process_id)
            resident[(("process", embedder.name),)] = number
    yield from _series("localspec_model_loaded", "gauge", "1 if it is loaded", loaded)
    yield from _series("localspec_model_bytes", "gauge", "Memory that a model takes", planned)
    kept: dict[_Labels, float] = {
        (("model", model.name),): model.kept_bytes for model in models.all
    }
    what = "Memory that caches of waiting conversations may take"
    yield from _series("localspec_kept_bytes_limit", "gauge", what, kept)
    known: dict[_Labels, float] = {
        labels: number for labels, number in resident.items() if number is not None
    }
    what = "Memory of the server's process and of each model's"
    yield from _series("localspec_resident_bytes", "gauge", what, known)


def _resident_bytes(process_id: int | None) -> int | None:
    """None where the system does not say it in /proc."""
    if sys.platform == "win32":
        return None
    import resource

    try:
        pages = Path(f"/proc/{process_id}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * resource.getpagesize()


def _series(name: str, kind: str, what: str, values: Mapping[_Labels, float]) -> Iterator[str]:
    if values:
        yield from _head(name, kind, what)
    for labels, value in values.items():
        inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        shown = f"{value:.6f}" if isinstance(value, float) else int(value)
        yield f"{name}{{{inner}}} {shown}" if inner else f"{name} {shown}"


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
