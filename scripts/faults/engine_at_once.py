"""Threads, and tasks of asyncio, at once on one engine: in a process of its own.

    python scripts/faults/engine_at_once.py threads 5 0

Each asks, leaves in the midst, or cancels. What has to hold: an answer is whole and right, or
begins as the right one and says that it was cancelled, or an error says that the engine is
busy.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from fault_classes.tried import Tried

_NUM_ASKING = 6
_NUM_ANSWERED = 3  # at once; the others are told that the engine is busy
_BUSY_S = 0.002  # until they ask again
_TOKENS = 24
PROMPTS = tuple(f"The fox said to owl {number}:" for number in range(3))
_PATIENCE_S = 120.0


class Asking:
    """An engine, what it says when it is alone, and what came of being asked at once."""

    def __init__(self, engine: Any, greedy: Any) -> None:
        self._engine, self._greedy = engine, greedy
        self.count, self.losses = 0, list[str]()
        self._expected = [self.ask(prompt).reply().text for prompt in PROMPTS]

    def ask(self, prompt: str) -> Any:
        """A stream of the answer."""
        return self._engine.generate_raw(prompt, sampling=self._greedy, max_tokens=_TOKENS)

    def judge(self, number: int, text: str, *, is_whole: bool) -> None:
        """Note what was said to a prompt."""
        self.count += 1
        right = self._expected[number]
        if text != (right if is_whole else right[: len(text)]):
            self.losses.append(f"{text!r} for {right!r}, whole: {is_whole}")

    def read(self, chance: random.Random) -> None:
        """One answer, in a thread."""
        import localspec

        number, patience = chance.randrange(len(PROMPTS)), chance.choice((None, None, 0, 3))
        said = ""
        try:
            with self.ask(PROMPTS[number]) as stream:
                for piece in stream:
                    said += piece.text
                    if patience is not None and (patience := patience - 1) < 0:
                        break
            reply = stream.reply()
            self.judge(number, said, is_whole=reply.finish_reason != "cancelled")
        except localspec.BusyError:
            time.sleep(_BUSY_S)
        if chance.random() < 0.1:
            self._engine.cancel()

    async def read_async(self, chance: random.Random) -> None:
        """One answer, in a task."""
        import localspec

        number = chance.randrange(len(PROMPTS))
        try:
            asking = asyncio.ensure_future(_reply(self.ask(PROMPTS[number])))
            if chance.random() < 0.4:
                await asyncio.wait([asking], timeout=0.05 * chance.random())
                asking.cancel()
            reply = await asking
            self.judge(number, reply.text, is_whole=reply.finish_reason != "cancelled")
        except localspec.BusyError:
            await asyncio.sleep(_BUSY_S)
        except asyncio.CancelledError:
            self.count += 1


async def _reply(stream: Any) -> Any:
    return await stream


def _by_threads(asking: Asking, until_s: float, seed: int) -> None:
    def work(number: int) -> None:
        count = 0
        while time.monotonic() < until_s:
            try:
                asking.read(random.Random(f"{seed}/{number}/{count}"))
            except Exception as error:
                asking.losses.append(f"thread {number}, {count}: {error!r}")
            count += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(_NUM_ASKING)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _by_tasks(asking: Asking, until_s: float, seed: int) -> None:
    async def work(number: int) -> None:
        count = 0
        while time.monotonic() < until_s:
            try:
                await asking.read_async(random.Random(f"{seed}/{number}/{count}"))
            except Exception as error:
                asking.losses.append(f"task {number}, {count}: {error!r}")
            count += 1
            await asyncio.sleep(0)

    async def everybody() -> None:
        await asyncio.gather(*(work(number) for number in range(_NUM_ASKING)))

    asyncio.run(everybody())


def tries(seconds: float, seed: int) -> Iterator[Tried]:
    """A row for each of the two."""
    for kind in ("threads", "tasks"):
        command = [sys.executable, __file__, kind, str(seconds), str(seed)]
        repeat = f"python scripts/faults/engine_at_once.py {kind} {seconds:.0f} {seed}"
        found = found_by(command, seconds + _PATIENCE_S)
        yield Tried(
            f"{_NUM_ASKING} {kind} at once on an engine, which leave and cancel",
            "The right answer, its beginning, or the word that the engine is busy",
            found["count"],
            [f"{repeat}: {loss}" for loss in found["losses"]],
        )


def found_by(command: list[str], most_s: float) -> dict[str, Any]:
    """What `main` printed in a process of its own, or how that ended."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=most_s, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"count": 1, "losses": [f"the process had not ended after {most_s:.0f} s"]}
    except ValueError:
        return {"count": 1, "losses": [f"exit {done.returncode}: {done.stderr[-300:]!r}"]}
    return found


def main(kind: str, seconds: float, seed: int) -> None:
    """Ask for so many seconds, and print what came of it."""
    import localspec

    greedy = localspec.SamplingParams(temperature=0)
    options: dict[str, Any] = {"exact": True, "num_threads": 1, "context_length": 256}
    with localspec.load(parallel=_NUM_ANSWERED, **options) as engine:
        asking = Asking(engine, greedy)
        act = _by_threads if kind == "threads" else _by_tasks
        act(asking, time.monotonic() + seconds, seed)
        for number, prompt in enumerate(PROMPTS):  # and it is as good as before
            asking.judge(number, asking.ask(prompt).reply().text, is_whole=True)
    print(json.dumps({"count": asking.count, "losses": asking.losses}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
