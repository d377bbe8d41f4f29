"""Sides of a measurement: settings, the processes that run with them, and their turns."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import EngineError, LocalspecError, MemoryLimitError

CHILD = Path(__file__).parent / "child.py"


@dataclass(frozen=True)
class Setting:
    """The settings of a side.

    load: keywords of localspec.load, files as text. environment: beside this process's own.
    is_automatic: whether it has something to find out while it runs. group: the control group
    that its process goes into, if any.
    """

    name: str
    load: dict[str, Any]
    environment: dict[str, str]
    is_automatic: bool = False
    group: Path | None = None


@dataclass(frozen=True)
class Turn:
    """The results of a side's turn. num_threads: of its last step."""

    num_tokens: int
    seconds: float
    num_threads: int

    @property
    def rate(self) -> float:
        """Tokens/s."""
        return self.num_tokens / self.seconds


class Side:
    """A process with an engine or more. Ended by `close`, and when this process ends.

    It has a cache folder of its own: it knows nothing from before, and what it learns beside
    busy processes is not for the user's own runs.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._cache = tempfile.TemporaryDirectory(prefix="localspec-measure-")
        cache = {"XDG_CACHE_HOME": self._cache.name}
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **setting.environment, **cache},
        )
        if setting.group is not None:
            # Before it counts the cores that it may use.
            try:
                (setting.group / "cgroup.procs").write_text(str(self._process.pid))
            except OSError:
                self.close()
                raise

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def load(self, keywords: dict[str, Any]) -> None:
        """One engine more. Raises what localspec.load does."""
        self._ask(load=keywords)

    def decode(self, min_tokens: int, min_seconds: float) -> Turn:
        """Go on with the first engine's text for so many tokens and seconds, or more."""
        did = self._ask(decode=min_tokens, seconds=min_seconds)
        return Turn(did["tokens"], did["seconds"], did["threads"])

    def take_turns(self, min_steps: int, min_seconds: float) -> list[float]:
        """Tokens/s of each engine, a step of each in turn."""
        rates: list[float] = self._ask(turns=min_steps, seconds=min_seconds)["rates"]
        return rates

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then there is nothing to read either
            print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(
                f"the process of “{self.setting.name}” ended with {self._process.wait()}",
                "Look at what it wrote above; without that it was probably out of memory.",
            )
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            kind = MemoryLimitError if reply["kind"] == "MemoryLimitError" else LocalspecError
            raise kind(f"{self.setting.name}: {reply['error']}", reply["hint"])
        return reply

    def close(self) -> None:
        """End the process. Idempotent."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a request that was not read
                pipe.close()
        self._cache.cleanup()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sides:
    """Sides that stay loaded while there is room, of which one decodes at a time.

    num_warm_up_tokens: what each decodes after it was loaded, untimed.
    """

    def __init__(self, num_warm_up_tokens: int) -> None:
        self._num_warm_up_tokens = num_warm_up_tokens
        self._loaded: dict[str, Side] = {}  # by the setting's name; last used last

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        while self._loaded:
            self._loaded.popitem()[1].close()

    def turn(self, setting: Setting, min_tokens: int, min_seconds: float) -> Turn:
        """One side decodes. It is loaded before, and warmed up, if it is not."""
        if setting.name not in self._loaded:
            side = self._load(setting)
            side.decode(self._num_warm_up_tokens, 0)
        side = self._loaded[setting.name] = self._loaded.pop(setting.name)
        return side.decode(min_tokens, min_seconds)

    def rounds(
        self, settings: Sequence[Setting], num_rounds: int, min_tokens: int, seconds: float
    ) -> dict[str, list[Turn]]:
        """Turns of all sides in each round, by name; another one is first in every round."""
        turns: dict[str, list[Turn]] = {setting.name: [] for setting in settings}
        for number in range(num_rounds):
            first = number % len(settings)
            for setting in (*settings[first:], *settings[:first]):
                turns[setting.name].append(self.turn(setting, min_tokens, seconds))
        return turns

    def _load(self, setting: Setting) -> Side:
        """A side that is loaded; others that have nothing to forget make room for it."""
        while True:
            side = self._loaded[setting.name] = Side(setting)
            try:
                side.load(setting.load)
            except MemoryLimitError:
                self._loaded.pop(setting.name).close()
                fixed = [n for n, s in self._loaded.items() if not s.setting.is_automatic]
                if not fixed:
                    raise
                # In rounds the one that was used last is needed last.
                self._loaded.pop(fixed[-1]).close()
                continue
            return side
