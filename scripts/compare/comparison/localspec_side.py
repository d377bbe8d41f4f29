"""localspec's side: contenders in a process of their own, and what runs in it.

Requests come to that process as JSON lines, and answers leave as such.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import localspec
from comparison.contender import Answer, Request, Setup
from comparison.processes import Child
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import FixedDraftPolicy

_SCRIPTS = Path(__file__).resolve().parents[1]


class Worker:
    """A `contender.Contender`. options: those of localspec.load, and rests: see `_opened`."""

    def __init__(self, name: str, options: dict[str, Any], *, must_draft: bool = False) -> None:
        self.name = name
        self.must_draft = must_draft
        self.peak_bytes: int | None = None
        module = "comparison.localspec_side"
        self._command = [sys.executable, "-m", module, json.dumps(options)]

    def __enter__(self) -> Worker:
        self._errors = tempfile.TemporaryFile()
        self._child = Child(self._command, self._errors, _SCRIPTS)
        try:
            self._ask("")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.peak_bytes = self._child.end()
        self._errors.close()

    def answer(self, request: Request) -> Answer:
        return Answer(**self._ask(json.dumps(asdict(request))))

    def _ask(self, line: str) -> dict[str, Any]:
        reply = self._child.say(line)
        if not reply:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()[-8:]
            raise LocalspecError(f"the process of {self.name} died: " + "\n".join(said))
        message: dict[str, Any] = json.loads(reply)
        if "error" in message:
            raise LocalspecError(f"{self.name}: {message['error']}", message["hint"])
        return message


def localspec_plain(setup: Setup) -> Worker:
    """localspec with the target alone."""
    return Worker("plain", {**_pair(setup), "draft_tokens": 0})


def localspec_fixed(setup: Setup, num_draft_tokens: int) -> Worker:
    """localspec with a fixed number of draft tokens."""
    options = {**_pair(setup), "draft_tokens": num_draft_tokens}
    if setup.head is not None:
        options["proposer"] = "head"
    return Worker(f"K={num_draft_tokens}", options, must_draft=True)


def localspec_resting(setup: Setup) -> Worker:
    """localspec with a draft or a head that is loaded and never asked."""
    options = {**_pair(setup), "rests": True}
    return Worker("plain, drafter at rest", options)


def localspec_default(setup: Setup) -> Worker:
    """localspec with its default settings."""
    return Worker("default", _pair(setup))


def _pair(setup: Setup) -> dict[str, Any]:
    files = {"target": setup.target, "draft": setup.draft}
    if setup.head != setup.target:  # else it is found there
        files["head"] = setup.head
    named = {role: None if path is None else str(path) for role, path in files.items()}
    return {
        **named,
        "context_length": setup.context_length,
        "num_threads": setup.num_threads,
        "num_gpu_layers": setup.num_gpu_layers,
        "rpc": setup.rpc,
    }


def _opened(options: dict[str, Any]) -> Engine:
    """rests among the options: no draft is ever asked for."""
    rests = options.pop("rests", False)
    engine = localspec.load(**options, memory=False)  # prompts are asked again
    if rests:
        engine._draft_policy = FixedDraftPolicy(0)
    return engine


def _answered(engine: Engine, request: Request) -> Answer:
    sampling = SamplingParams(temperature=request.temperature, top_k=0, top_p=1.0, min_p=0.0)
    reply = engine.generate_raw(
        request.prompt, sampling=sampling, seed=request.seed, max_tokens=request.max_tokens
    ).reply()
    stats = reply.stats
    seconds = stats.total_time_s - stats.time_to_first_token_s
    return Answer(
        num_tokens=stats.completion_tokens,
        tokens_per_s=(stats.completion_tokens - 1) / seconds if seconds > 0 else 0.0,
        num_drafted=stats.num_draft_tokens,
        num_kept=stats.num_accepted,
    )


def serve() -> None:
    """Answer until standard input ends."""
    # Output of libraries must not end up between the answers.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(message: dict[str, object]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        sys.stdin.readline()  # the parent's greeting
        engine = _opened(json.loads(sys.argv[1]))
        reply({})
        for line in sys.stdin:
            reply(asdict(_answered(engine, Request(**json.loads(line)))))
    except LocalspecError as error:
        reply({"error": str(error), "hint": error.hint})


if __name__ == "__main__":
    serve()
