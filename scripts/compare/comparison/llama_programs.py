"""Contenders that are llama.cpp's own programs."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from comparison.contender import Answer, Request, Setup
from comparison.llama_tools import Tools
from comparison.processes import Child, ServerProcess
from localspec.errors import LocalspecError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head_facts import head_facts

_ATTEMPTS = 3


class _Program:
    """llama-bench and llama-speculative-simple: both start a process for each answer."""

    def __init__(self, name: str, command: Sequence[str | Path], *, must_draft: bool) -> None:
        self.name = name
        self.must_draft = must_draft
        self.peak_bytes: int | None = None
        self._command = command

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is left between answers."""

    def _run(self, *more: str) -> tuple[str, str]:
        """Its standard output and standard error."""
        with tempfile.TemporaryFile() as errors:
            child = Child([*self._command, *more], errors)
            try:
                assert child.process.stdout is not None
                printed = child.process.stdout.read()
                peak = child.wait()
            finally:
                child.end()
            errors.seek(0)
            said = errors.read().decode(errors="replace")
        if child.process.returncode != 0:
            raise LocalspecError(
                f"{self.name} ended with status {child.process.returncode}: {said[-600:]}"
            )
        if peak is not None:
            self.peak_bytes = max(peak, self.peak_bytes or 0)
        return printed, said


class Bench(_Program):
    """llama-bench: the target's text generation from an empty context, and no sampling."""

    def __init__(self, tools: Tools, setup: Setup) -> None:
        command: list[str | Path] = [
            tools.path("llama-bench"),
            "-m",
            setup.target,
            "-t",
            str(setup.num_threads),
        ]
        command += ["-fa", setup.flash_attention, *_layers("-ngl", setup), *_servers(setup)]
        command += ["-p", "0", "-r", "1", "-o", "json"]
        super().__init__("llama-bench tg", command, must_draft=False)

    def __enter__(self) -> Bench:
        return self

    def answer(self, request: Request) -> Answer:
        printed, _ = self._run("-n", str(request.max_tokens))
        return Answer(request.max_tokens, json.loads(printed)[0]["avg_ts"], 0, 0)


class Simple(_Program):
    """llama-speculative-simple with a fixed number of draft tokens."""

    def __init__(self, tools: Tools, setup: Setup, num_draft_tokens: int) -> None:
        command = [tools.path("llama-speculative-simple"), *_common(setup), "--no-escape"]
        command += _drafting(setup, num_draft_tokens)
        name = f"llama-speculative-simple K={num_draft_tokens}"
        super().__init__(name, command, must_draft=True)

    def __enter__(self) -> Simple:
        return self

    def answer(self, request: Request) -> Answer:
        options = ["-p", request.prompt, "-n", str(request.max_tokens)]
        options += ["--seed", str(request.seed), "--temp", str(request.temperature)]
        for name, value in _samplers(request).items():
            options += [f"--{name.replace('_', '-')}", _text(value)]
        # It sometimes ends before its log is written: the figures are then lost.
        for _ in range(_ATTEMPTS):
            said = "\n".join(self._run(*options))
            speed = re.search(r"decoded +(\d+) tokens in .* speed: +([\d.]+) t/s", said)
            drafted = re.search(r"n_drafted += (\d+)", said)
            kept = re.search(r"n_accept += (\d+)", said)
            if speed and drafted and kept:
                return Answer(int(speed[1]), float(speed[2]), int(drafted[1]), int(kept[1]))
        raise LocalspecError(f"{self.name} printed no speed: {said[-600:]}")


class Server(ServerProcess):
    """llama-server; num_draft_tokens None leaves its default."""

    def __init__(self, tools: Tools, setup: Setup, num_draft_tokens: int | None) -> None:
        given = "" if num_draft_tokens is None else f" K={num_draft_tokens}"
        # One slot and no store of old prompts: what a single conversation needs.
        command = [tools.path("llama-server"), *_common(setup), "-np", "1", "-cram", "0"]
        command += ["--no-webui", *_drafting(setup, num_draft_tokens)]
        super().__init__(f"llama-server{given}", command)
        self.must_draft = setup.drafts

    def __enter__(self) -> Server:
        super().__enter__()
        return self

    def answer(self, request: Request) -> Answer:
        body = {
            "prompt": request.prompt,
            "n_predict": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "cache_prompt": False,
            **_samplers(request),
        }
        timings = self.ask("/completion", body)["timings"]
        # Its count has the first token, which came with the prompt; its time has not.
        decoded = timings["predicted_n"] - 1
        seconds = timings["predicted_ms"] / 1000
        return Answer(
            num_tokens=timings["predicted_n"],
            tokens_per_s=decoded / seconds if decoded and seconds else 0.0,
            num_drafted=timings.get("draft_n", 0),
            num_kept=timings.get("draft_n_accepted", 0),
        )


class UnsureServer(Server):
    """llama-server whose draft is decoded and never thought good enough."""

    def __init__(self, tools: Tools, setup: Setup) -> None:
        super().__init__(tools, setup, None)
        self.name += ", drafter never sure"
        self.must_draft = False
        self._command = [*self._command, "--spec-draft-p-min", "2"]


def server_of_slots(program: Path, setup: Setup, num_slots: int) -> ServerProcess:
    """llama-server with so many slots, each with the whole context."""
    threads = str(setup.num_threads)
    command: list[str | Path] = [program, "-m", setup.target, "-np", str(num_slots)]
    command += ["-c", str(num_slots * setup.context_length), "-t", threads, "-tb", threads]
    command += [*_layers("-ngl", setup), *_drafting(setup, None)]
    return ServerProcess(f"llama-server -np {num_slots}", command)


def _common(setup: Setup) -> list[str | Path]:
    threads = str(setup.num_threads)
    options: list[str | Path] = [
        "-m",
        setup.target,
        "-c",
        str(setup.context_length),
        "-t",
        threads,
        "-tb",
        threads,
        "-fa",
        setup.flash_attention,
    ]
    return [*options, *_layers("-ngl", setup), *_servers(setup)]


def _drafting(setup: Setup, num_draft_tokens: int | None) -> list[str | Path]:
    if not setup.drafts:
        return []
    threads = str(setup.num_threads)
    options: list[str | Path] = ["--spec-type", f"draft-{_kind(setup)}"]
    file = setup.draft or setup.head
    if file is not None and file != setup.target:
        options += ["-md", file]
    options += ["-td", threads, "-tbd", threads, *_layers("-ngld", setup)]
    if setup.rpc:  # as localspec has it: what drafts is here
        options += ["-devd", "none"]
    if num_draft_tokens is not None:
        options += ["--spec-draft-n-max", str(num_draft_tokens)]
    return options


def _kind(setup: Setup) -> str:
    """llama.cpp's name for the proposer."""
    if setup.head is None:
        return "simple"
    facts = head_facts(check_model_file(setup.head))
    if facts is not None and facts.block is not None:
        if facts.block.kind == "DSpark":
            return "dspark"
        return "dflash"
    if facts is not None and facts.layers_read:
        return "eagle3"
    return "mtp"


def _layers(option: str, setup: Setup) -> list[str]:
    if setup.num_gpu_layers is None:
        return []
    return [option, str(setup.num_gpu_layers)]


def _servers(setup: Setup) -> list[str]:
    if setup.rpc:
        return ["--rpc", ",".join(setup.rpc)]
    return []


def _samplers(request: Request) -> dict[str, Any]:
    """Only what is needed, so that llama.cpp's side loses no time with filters that are off."""
    if request.temperature == 0.0:
        return {"samplers": ["top_k"], "top_k": 1}
    return {"samplers": ["temperature"]}


def _text(value: list[str] | int) -> str:
    if isinstance(value, list):
        return ";".join(value)
    return str(value)
