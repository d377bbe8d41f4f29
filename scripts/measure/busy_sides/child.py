"""The process of a side: decodes on request, and reports the time.

Reads requests from stdin, a JSON object a line, and answers each with one on stdout:

{"load": keywords of localspec.load}     {}: one engine more
{"decode": n, "seconds": s}              {"tokens", "seconds", "threads"} of the first engine:
                                         it goes on for n tokens or more and s seconds or more
{"turns": n, "seconds": s}               {"rates"}, tokens/s of each engine: a step of each in
                                         turn, n or more of them, for s seconds or more

What goes wrong on purpose is {"error", "hint", "kind"}. The process ends with its stdin, so it
does not outlive whoever started it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any

import localspec
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError

GREEDY = localspec.SamplingParams(temperature=0)
NUM_PROMPT_TOKENS = 8


class Text:
    """An engine's endless greedy text: the next answer starts where one has ended.

    Every side's texts are the same, as what a draft gets right differs from one to another.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        with engine.exclusively() as loop:
            self._target = loop.target
        self._num_answers = 0
        self._begin_answer()

    @property
    def num_threads(self) -> int:
        """That the target's last step took."""
        return self._target.num_threads

    def step(self) -> tuple[int, float]:
        """The tokens of the next step, and the seconds that it took.

        A prompt and the token after it are read in between, and do not count.
        """
        num_tokens, seconds = self._rest_of_step()
        while not num_tokens:
            self._begin_answer()
            num_tokens, seconds = self._rest_of_step()
        return num_tokens, seconds

    def _rest_of_step(self) -> tuple[int, float]:
        num_tokens, started = 0, time.perf_counter()
        for piece in self._stream:
            num_tokens += len(piece.token_ids)
            # The draft's tokens come before the one token that every step adds.
            if piece.provenance is not localspec.Provenance.ACCEPTED:
                break
        return num_tokens, time.perf_counter() - started

    def _begin_answer(self) -> None:
        with self._engine.exclusively():
            pass  # nothing is cached
        first = 300 + 11 * self._num_answers % 700
        prompt = [first + 3 * index for index in range(NUM_PROMPT_TOKENS)]
        self._num_answers += 1
        self._stream = self._engine.generate_raw(prompt, sampling=GREEDY)
        next(self._stream)


def decode(text: Text, min_tokens: int, min_seconds: float) -> dict[str, Any]:
    """Whole steps, until there are so many tokens and so much time has gone by."""
    num_tokens, seconds = 0, 0.0
    ends_at = time.monotonic() + min_seconds
    while num_tokens < min_tokens or time.monotonic() < ends_at:
        of_step, step_s = text.step()
        num_tokens += of_step
        seconds += step_s
    return {"tokens": num_tokens, "seconds": seconds, "threads": text.num_threads}


def take_turns(texts: list[Text], min_steps: int, min_seconds: float) -> dict[str, Any]:
    """A step of each in turn, until each had so many and so much time has gone by."""
    num_steps, num_tokens, seconds = 0, [0] * len(texts), [0.0] * len(texts)
    ends_at = time.monotonic() + min_seconds
    while num_steps < min_steps or time.monotonic() < ends_at:
        for index, text in enumerate(texts):
            of_step, step_s = text.step()
            num_tokens[index] += of_step
            seconds[index] += step_s
        num_steps += 1
    return {"rates": [num / taken for num, taken in zip(num_tokens, seconds, strict=True)]}


def answer(request: dict[str, Any], texts: list[Text]) -> dict[str, Any]:
    """Do what one request says."""
    if "load" in request:
        texts.append(Text(localspec.load(**request["load"])))
        return {}
    if "turns" in request:
        return take_turns(texts, request["turns"], request["seconds"])
    return decode(texts[0], request["decode"], request["seconds"])


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it deals with Ctrl-C
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(line)
        os._exit(0)  # even in the midst of a decode

    threading.Thread(target=read, daemon=True).start()
    texts: list[Text] = []
    while True:
        try:
            reply = answer(json.loads(requests.get()), texts)
        except LocalspecError as error:
            reply = {"error": str(error), "hint": error.hint, "kind": type(error).__name__}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
