"""llama-server as it comes: plain, with its own lookups, and with a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.processes import ServerProcess
from localspec.evaluation.prompts import Task
from real_text.sides import Answered, num_drafted

SERVER = "llama-server"
LOOKUPS = tuple(
    f"{SERVER}-ngram-{kind}" for kind in ("simple", "map-k", "map-k4v", "mod", "cache")
)
DRAFTING_SERVERS = tuple(f"{SERVER}-draft-{count}" for count in (1, 2, 3, 4))
SERVERS = (SERVER, *LOOKUPS, *DRAFTING_SERVERS)
# What it does by default, and is said so that no other sampler takes time.
_SAMPLERS = {
    "samplers": ["top_k", "top_p", "min_p", "temperature"],
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
}
_GREEDY = {"samplers": ["top_k"], "top_k": 1}


@dataclass(frozen=True, slots=True)
class Files:
    """The files that a server loads, and its threads."""

    program: Path
    target: Path
    draft: Path | None
    context_length: int
    num_threads: int

    @property
    def bytes_of_each(self) -> int:
        """Memory that a server takes for weights, at most."""
        files = (self.target, *([] if self.draft is None else [self.draft]))
        return sum(file.stat().st_size for file in files)


class LlamaServer(ServerProcess):
    """The server of that name, started while its block runs."""

    def __init__(self, name: str, files: Files) -> None:
        super().__init__(name, command(name, files))

    def __enter__(self) -> LlamaServer:
        super().__enter__()
        self.ask("/completion", _question([1, 2, 3], None, max_tokens=8, temperature=0.0))
        return self

    def answer(
        self, prompt: Sequence[int], task: Task, *, max_tokens: int, temperature: float
    ) -> Answered:
        """Its answer to the very tokens that the other sides read."""
        asked = _question(prompt, task, max_tokens=max_tokens, temperature=temperature)
        reply = self.ask("/completion", asked)
        timings = reply["timings"]
        return Answered(
            tuple(reply["tokens"]),
            reply["content"],
            timings["predicted_ms"] / 1000,  # the first token's are not in it
            (timings.get("draft_n", 0),),
            (timings.get("draft_n_accepted", 0),),
        )


def command(name: str, files: Files) -> list[str | Path]:
    """Its command line. One slot and no store of old prompts: what one conversation needs."""
    threads = str(files.num_threads)
    words: list[str | Path] = [files.program, "-m", files.target, "-t", threads, "-tb", threads]
    words += ["-c", str(files.context_length), "-np", "1", "-cram", "0", "--no-webui"]
    if name in LOOKUPS:
        words += ["--spec-type", name.removeprefix(f"{SERVER}-")]
    elif name in DRAFTING_SERVERS:
        assert files.draft is not None
        words += ["--spec-type", "draft-simple", "-md", files.draft]
        words += ["-td", threads, "-tbd", threads, "--spec-draft-n-max", str(num_drafted(name))]
    return words


def _question(
    prompt: Sequence[int], task: Task | None, *, max_tokens: int, temperature: float
) -> dict[str, Any]:
    schema = None if task is None else task.keywords.get("json_schema")
    return {
        "prompt": list(prompt),
        "n_predict": max_tokens,
        "temperature": temperature,
        "cache_prompt": False,
        "return_tokens": True,
        **(_SAMPLERS if temperature else _GREEDY),
        **({} if schema is None else {"json_schema": schema}),
    }
