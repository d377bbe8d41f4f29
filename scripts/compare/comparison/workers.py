"""Contenders that are Python libraries, each in a process of its own."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from comparison.child import Child
from comparison.contender import Answer, Request, Setup
from localspec.errors import LocalspecError

_SCRIPTS = Path(__file__).resolve().parents[1]


class Worker:
    """A `contender.Contender` that runs a module of this package."""

    def __init__(
        self, name: str, module: str, options: dict[str, Any], *, must_draft: bool = False
    ) -> None:
        self.name = name
        self.must_draft = must_draft
        self.peak_bytes: int | None = None
        self._command = [sys.executable, "-m", f"comparison.{module}", json.dumps(options)]

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
    return Worker("plain", "localspec_worker", {**_pair(setup), "draft_tokens": 0})


def localspec_fixed(setup: Setup, num_draft_tokens: int) -> Worker:
    """localspec with a fixed number of draft tokens."""
    options = {**_pair(setup), "draft_tokens": num_draft_tokens}
    if setup.head is not None:
        options["proposer"] = "head"
    return Worker(f"K={num_draft_tokens}", "localspec_worker", options, must_draft=True)


def localspec_resting(setup: Setup) -> Worker:
    """localspec with a draft or a head that is loaded and never asked."""
    options = {**_pair(setup), "rests": True}
    return Worker("plain, drafter at rest", "localspec_worker", options)


def localspec_default(setup: Setup) -> Worker:
    """localspec with its default settings."""
    return Worker("default", "localspec_worker", _pair(setup))


def _machine(setup: Setup) -> dict[str, Any]:
    return {
        "target": str(setup.target),
        "context_length": setup.context_length,
        "num_threads": setup.num_threads,
        "num_gpu_layers": setup.num_gpu_layers,
    }


def _pair(setup: Setup) -> dict[str, Any]:
    files = {"draft": setup.draft}
    if setup.head != setup.target:  # else it is found there
        files["head"] = setup.head
    named = {role: None if path is None else str(path) for role, path in files.items()}
    return {**_machine(setup), "rpc": setup.rpc, **named}
