"""Several clients at once of localspec's server and of llama-server, on the same target.

    python scripts/compare/compare_clients.py --target T.gguf --record ROUNDS
    python scripts/compare/compare_clients.py --alone --record ROUNDS

Each call is one round: it starts localspec's server with --parallel 4, the same with --parallel
1, and llama-server with four slots, asks each in turn, and appends what came of it to the file:
the tokens/s of 1, 2 and 4 clients together, and how long a short question waits for its first
text alone, beside a long answer and beside a long prompt. Then it prints a Markdown table of
all rounds in the file, whose seeds are to differ: medians, with the lowest and the highest.
With --alone there is no llama-server; else the programs are built first, see
compare_llama_cpp.py, or those in --programs FOLDER are used. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from comparison.contender import Setup
from comparison.llama_programs import server_of_slots
from comparison.llama_tools import build, default_folder, program_in
from comparison.options import add_target, positive, run, setup_of
from comparison.processes import ServerProcess
from comparison.report import header
from localspec.evaluation.prompts import built_in_tasks

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

    has_begun: set with its first text. has_left: whether it hangs up soon. first_s, end_s:
    times of the clock.
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
    """Seconds until its first text while a long answer is given."""
    long = Client(server, f"{load.seed}: a very long story!", 4 * load.answer_tokens, load)
    long.start()
    long.has_begun.wait()
    return _beside(long, server, load)


def beside_prompt_s(server: ServerProcess, load: Load) -> float:
    """Seconds until its first text while a long prompt is read."""
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
    """Measure each server in turn, and append each result to the file as a line."""
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
    """A Markdown table of all rounds in the file, with the first server ÷ each other one.

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
    low = min(values)
    middle = statistics.median(values)
    high = max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} … {high:.{digits}f})"


def servers_of(asked: argparse.Namespace, setup: Setup) -> list[ServerProcess]:
    """localspec's with so many answers at once, and with one; llama-server unless alone."""
    servers = []
    for parallel in dict.fromkeys((asked.parallel, 1)):
        command = [
            sys.executable,
            "-m",
            "localspec",
            "serve",
            setup.target,
            "--cache-disk",
            "0",
        ]
        command += ["--ctx", str(setup.context_length), "--parallel", str(parallel)]
        servers.append(ServerProcess(f"localspec --parallel {parallel}", command))
    if not asked.alone:
        folder = asked.programs
        if folder is None:
            folder = build(default_folder(), jobs=os.cpu_count() or 1).folder
        program = program_in(folder, "llama-server")
        servers.append(server_of_slots(program, setup, asked.parallel))
    return servers


def compare(asked: argparse.Namespace) -> None:
    """Measure a round, and print the table of all rounds."""
    setup = setup_of(asked).alone()
    load = Load(
        tuple(asked.clients),
        asked.answer_tokens,
        asked.prompt_words,
        asked.temperature,
        asked.seed,
    )
    servers = servers_of(asked, setup)
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        slots_of = {each.name: each.ask("/props", None)["total_slots"] for each in servers}
        measure(servers, load, asked.record)
    print(header(setup, ["python", *sys.argv]))
    # Fewer than were asked for where the memory for caches is short.
    print(f"- at once: {', '.join(f'{name}: {n}' for name, n in slots_of.items())}\n")
    print(table(asked.record))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Compare servers with several clients at once."
    )
    add_target(parser)
    add = parser.add_argument
    add("--record", type=Path, required=True, help="the file that gets a line for each result")
    add("--alone", action="store_true", help="without llama-server")
    add("--programs", type=Path, metavar="FOLDER", help="where a built llama-server is")
    add("--parallel", type=positive, default=4, help="answers and slots at once (default: 4)")
    add("--clients", type=positive, nargs="+", default=[1, 2, 4], help="default: 1 2 4")
    add("--temperature", type=float, default=0.0, help="default: 0, greedy")
    add("--seed", type=int, default=0, help="of the round; an odd one asks in the other order")
    add("--answer-tokens", type=positive, default=200, help="default: 200")
    add("--prompt-words", type=positive, default=6000, help="of a long prompt (default: 6000)")
    parser.set_defaults(ctx=24576, draft=None, head=None)
    run(parser, compare)


if __name__ == "__main__":
    main()
