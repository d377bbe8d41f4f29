"""Several clients of a server at once: their tokens together, and a short question's wait."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from comparison.server_process import ServerProcess
from localspec.checks.prompts import built_in_tasks

_SHORT = "Say hello."
# As bench asks them, each of another kind of text than the one before. None is asked twice in a
# round: answers to questions alike would draft each other.
_TASKS = [task.text for task in built_in_tasks() if not task.keywords]
_QUESTIONS = [_TASKS[4 * number % len(_TASKS)] for number in range(len(_TASKS))]
_NUM_SHORT = 8  # tokens of the answer to it
_PROMPT_S = 0.3  # for a long prompt to reach the model before the short question comes


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked. clients: how many at once, in turn. prompt_words: of the long prompt.

    temperature 0 is greedy. seed: of what is said, and of the questions, so that no round finds
    the caches of another.
    """

    clients: tuple[int, ...]
    answer_tokens: int
    prompt_words: int
    temperature: float
    seed: int


class Client(threading.Thread):
    """A question that is asked when it is started, and its streamed answer.

    has_begun: set with its first text. first_s, end_s: of the clock. leave: hang up soon.
    """

    def __init__(self, server: ServerProcess, text: str, num_tokens: int, load: Load) -> None:
        super().__init__(daemon=True)
        self.has_begun = threading.Event()
        self.has_left = False
        self.started_s = self.first_s = self.end_s = 0.0
        self.num_tokens = 0
        self._server = server
        self._body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": load.temperature,
            "top_k": 40,
            "seed": load.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def run(self) -> None:
        self.started_s = time.perf_counter()
        for event in self._server.ask_for_events("/v1/chat/completions", self._body):
            for choice in event["choices"]:
                if choice["delta"].get("content") and not self.first_s:
                    self.first_s = time.perf_counter()
                    self.has_begun.set()
            usage = event.get("usage")
            self.num_tokens = usage["completion_tokens"] if usage else self.num_tokens
            if self.has_left:
                break
        self.end_s = time.perf_counter()

    @property
    def waited_s(self) -> float:
        """From the question to the first text."""
        return self.first_s - self.started_s


def rate(server: ServerProcess, num_clients: int, load: Load) -> float:
    """Tokens of all answers per second, from the first question to the end of the last."""
    first = load.seed + num_clients - 1
    questions = [_QUESTIONS[(first + n) % len(_QUESTIONS)] for n in range(num_clients)]
    clients = [
        Client(server, f"{load.seed}: {question}", load.answer_tokens, load)
        for question in questions
    ]
    _run(clients)
    seconds = max(each.end_s for each in clients) - min(each.started_s for each in clients)
    return sum(each.num_tokens for each in clients) / seconds


def alone_s(server: ServerProcess, load: Load) -> float:
    """Seconds until a short question has its first text."""
    short = Client(server, f"{load.seed}: {_SHORT}", _NUM_SHORT, load)
    _run([short])
    return short.waited_s


def beside_answer_s(server: ServerProcess, load: Load) -> float:
    """The same while a long answer is given."""
    long = Client(server, f"{load.seed}: a very long story!", 4 * load.answer_tokens, load)
    long.start()
    long.has_begun.wait()
    return _beside(long, server, load)


def beside_prompt_s(server: ServerProcess, load: Load) -> float:
    """The same while a long prompt is read."""
    words = " ".join(f"{load.seed + number} foxes" for number in range(load.prompt_words // 2))
    long = Client(server, words, _NUM_SHORT, load)
    long.start()
    time.sleep(_PROMPT_S)
    return _beside(long, server, load)


def _beside(long: Client, server: ServerProcess, load: Load) -> float:
    waited_s = alone_s(server, load)
    long.has_left = True
    long.join()
    return waited_s


def _run(clients: Iterable[Client]) -> None:
    for client in clients:
        client.start()
    for client in clients:
        client.join()


def measure(servers: Sequence[ServerProcess], load: Load, path: Path) -> None:
    """One round: everything of each server in turn; each result is a line at the file's end."""
    works = {
        **{
            f"{number} at once, tokens/s": lambda server, n=number: rate(server, n, load)
            for number in load.clients
        },
        "a short question alone, s": lambda server: alone_s(server, load),
        "beside a long answer, s": lambda server: beside_answer_s(server, load),
        "beside a long prompt, s": lambda server: beside_prompt_s(server, load),
    }
    for server in servers:
        alone_s(server, load)  # it settles, and has met the machine
    for what, work in works.items():
        order = list(servers)[:: -1 if load.seed % 2 else 1]
        found = {server.name: work(server) for server in order}
        line = {"what": what, "temperature": load.temperature, "found": found}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def table(path: Path) -> str:
    """Of all rounds in the file: what each server reached, and the first one's ÷ each other's.

    Medians, with the lowest and the highest.
    """
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    first, *others = names = list(
        dict.fromkeys(name for line in lines for name in line["found"])
    )
    titles = ["temperature", "what", *names, *(f"{first} ÷ {other}" for other in others)]
    rows = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for temperature, what in dict.fromkeys(
        (each["temperature"], each["what"]) for each in lines
    ):
        found = [
            line["found"]
            for line in lines
            if (line["temperature"], line["what"]) == (temperature, what)
        ]
        cells = [f"{temperature:g}", what]
        cells += [_spread([each[name] for each in found], 2) for name in names]
        cells += [
            f"**{_spread([each[first] / each[name] for each in found], 3)}**" for name in others
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _spread(values: Sequence[float], digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} … {high:.{digits}f})"
