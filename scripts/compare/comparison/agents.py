"""The requests of a coding agent: a made-up session of the usual shape, and its times.

A system prompt that is mostly descriptions of tools, then turns whose questions are what tools
gave, each with an answer that the next question repeats. Beside them the agent asks for a
title, for summaries, and has tasks of a single question done under the same system prompt.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from comparison.contender import Setup
from comparison.server_process import ServerProcess

_SCRIPTS = Path(__file__).resolve().parents[1]
_NOUNS = (
    *("file", "folder", "branch", "commit", "test", "module", "function"),
    *("class", "option", "path", "line", "error", "log"),
)
_VERBS = (
    *("read", "write", "search", "list", "rename", "compare"),
    *("check", "format", "build", "run", "open", "close"),
)
_RULES = (
    "Before you {verb} a {noun}, {other} the {noun} that belongs to it and say what you found.",
    "Never {verb} a {noun} that the user has not named, unless a {thing} asks for it.",
    "If a {noun} cannot be found, {verb} the {thing} around it, then {other} it again.",
    "Keep answers short: a {noun} is named by its path, and a {thing} by its line.",
)
_TITLE = "Write a title of at most five words for a conversation that begins as follows."
_SUMMARY = "Summarise in three sentences what was done so far, and what is still to be done."


@dataclass(frozen=True, slots=True)
class Session:
    """How much is asked. system_tokens: of the system prompt, by the model's tokenizer.

    temperature 0 is greedy. seed: of what is said; the questions are always the same.
    """

    num_turns: int
    system_tokens: int
    answer_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Request:
    """One question: kind is "turn", "title", "summary" or "task"."""

    kind: str
    messages: list[dict[str, str]]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer, with the seconds from its question to its first text and to its end."""

    kind: str
    text: str
    num_tokens: int
    num_prompt_tokens: int
    num_cached: int
    first_s: float
    total_s: float


Conversation = Iterator[tuple[Request, Callable[[str], None]]]


def localspec_server(setup: Setup, *, parallel: int | None = None) -> ServerProcess:
    """localspec's, as it comes, or with so many answers at once."""
    command = [sys.executable, "-m", "comparison.localspec_server", "--target", setup.target]
    command += [] if setup.draft is None else ["--draft", setup.draft]
    command += ["--ctx", str(setup.context_length)]
    if parallel is None:
        return ServerProcess("localspec", command, _SCRIPTS)
    command += ["--parallel", str(parallel)]
    return ServerProcess(f"localspec --parallel {parallel}", command, _SCRIPTS)


def system_prompt(num_tokens: int, count: Callable[[str], int]) -> str:
    """Rules and tools of so many tokens or a few more. count: tokens of a text."""
    random_ = random.Random(1)
    parts = ["You are a coding agent. You work in the user's project with these tools."]
    so_far = count(parts[0])
    while so_far < num_tokens:
        parts.append(_tool(random_) if len(parts) % 2 else _rules(random_))
        so_far += count(parts[-1])
    return "\n\n".join(parts)


def _sentence(random_: random.Random) -> str:
    noun, thing = random_.sample(_NOUNS, 2)
    verb, other = random_.sample(_VERBS, 2)
    return random_.choice(_RULES).format(noun=noun, thing=thing, verb=verb, other=other)


def _rules(random_: random.Random) -> str:
    return " ".join(_sentence(random_) for _ in range(6))


def _tool(random_: random.Random) -> str:
    verb, noun = random_.choice(_VERBS), random_.choice(_NOUNS)
    fields = {
        name: {"type": "string", "description": _sentence(random_)}
        for name in random_.sample(_NOUNS, 3)
    }
    parameters = {"type": "object", "properties": fields, "required": [min(fields)]}
    return json.dumps(
        {"name": f"{verb}_{noun}", "description": _rules(random_), "parameters": parameters}
    )


def _found(random_: random.Random, num_lines: int) -> str:
    """The result of a tool."""
    lines = [
        f"{random_.choice(_NOUNS)}s/{random_.choice(_NOUNS)}.py:{number}: {_sentence(random_)}"
        for number in sorted(random_.sample(range(1, 900), num_lines))
    ]
    return "\n".join(lines)


def requests(session: Session, system: str) -> Conversation:
    """Each request in turn, with a function that gets the answer.

    Every answer becomes part of the conversation that it belongs to.
    """
    random_ = random.Random(2)
    main = [{"role": "system", "content": system}]
    for turn in range(1, session.num_turns + 1):
        asked = _found(random_, 1 + turn % 4)
        main.append({"role": "user", "content": asked})
        yield Request("turn", main[:], session.answer_tokens), _speaker(main)
        if turn == 1:
            yield Request("title", _aside(_TITLE, asked), 12), _unheard
        if turn % 5 == 0:
            said = "\n".join(message["content"] for message in main[-6:])
            yield Request("summary", _aside(_SUMMARY, said), 60), _unheard
        if turn % 7 == 0:
            task = [main[0], {"role": "user", "content": _found(random_, 3)}]
            yield Request("task", task, session.answer_tokens), _unheard


def _aside(system: str, text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def _speaker(messages: list[dict[str, str]]) -> Callable[[str], None]:
    return lambda text: messages.append({"role": "assistant", "content": text})


def _unheard(_text: str) -> None:
    """An answer that nobody comes back to."""


def ask(server: ServerProcess, request: Request, session: Session) -> Timed:
    """Ask for a streamed answer of exactly as many tokens as are wanted."""
    body = {
        "messages": request.messages,
        "max_tokens": request.max_tokens,
        "ignore_eos": True,
        "temperature": session.temperature,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "seed": session.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first_s, text, usage = 0.0, "", {}
    for event in server.ask_for_events("/v1/chat/completions", body):
        for choice in event["choices"]:
            said = choice["delta"].get("content") or ""
            if said and not text:
                first_s = time.perf_counter() - started
            text += said
        usage = event.get("usage") or usage
    total_s = time.perf_counter() - started
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    counts = usage["completion_tokens"], usage["prompt_tokens"], cached
    return Timed(request.kind, text, *counts, first_s, total_s)


def hold(session: Session, servers: Sequence[ServerProcess], path: Path) -> list[list[Timed]]:
    """The session with each of the servers, a request of each in turn.

    Another server is the first one each time, and with another seed. Each request is a line of
    JSON at the end of the file, so that what was measured stays if the rest is not.
    """
    count = servers[0]
    system = system_prompt(
        session.system_tokens,
        lambda text: len(count.ask("/tokenize", {"content": text})["tokens"]),
    )
    answers: list[list[Timed]] = [[] for _ in servers]
    for number, asked in enumerate(
        zip(*(requests(session, system) for _ in servers), strict=True), session.seed
    ):
        sides = list(zip(servers, asked, answers, strict=True))
        for server, (request, tell), answered in sides[:: -1 if number % 2 else 1]:
            timed = ask(server, request, session)
            answered.append(timed)
            tell(timed.text)
            print(f"{server.name}: {_shown(timed)}", file=sys.stderr, flush=True)
        names = [server.name for server in servers]
        record(path, session, dict(zip(names, [each[-1] for each in answers], strict=True)))
    return answers


def _shown(timed: Timed) -> str:
    decoded = timed.num_prompt_tokens - timed.num_cached
    return (
        f"{timed.kind}, {decoded} of {timed.num_prompt_tokens} prompt tokens decoded, "
        f"first text after {timed.first_s:.2f} s, "
        f"{timed.num_tokens} tokens in {timed.total_s:.2f} s"
    )


def record(path: Path, session: Session, sides: dict[str, Timed]) -> None:
    """Append a request and what came of it on each side."""
    times = {name: replace(timed, text="") for name, timed in sides.items()}
    line = {"session": asdict(session), "sides": {k: asdict(v) for k, v in times.items()}}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def table(path: Path) -> str:
    """Of all recorded rounds: requests, prompt tokens that were decoded, seconds, ratios.

    Medians of the rounds of a temperature, with the lowest and the highest.
    """
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    names = list(lines[0]["sides"])
    titles = ["temperature", "what", "requests"]
    titles += [f"{name}: {what}" for name in names for what in ("decoded", "seconds")]
    rows = [f"| {' | '.join(titles)} | ratio |", "|---" * (len(titles) + 1) + "|"]
    for temperature in sorted({line["session"]["temperature"] for line in lines}):
        same = [line for line in lines if line["session"]["temperature"] == temperature]
        kinds = dict.fromkeys(line["sides"][names[0]]["kind"] for line in same)
        for kind in ("all", *kinds):
            rows.append(_row(kind, same, names))
    return "\n".join(rows)


def _row(kind: str, lines: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """A line of the table: of the rounds of one temperature, which their seeds tell apart."""
    rounds: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        if kind in ("all", line["sides"][names[0]]["kind"]):
            rounds.setdefault(line["session"]["seed"], []).append(line["sides"])
    cells, seconds = [], []
    for name in names:
        of_name = [[sides[name] for sides in one] for one in rounds.values()]
        decoded = [
            sum(t["num_prompt_tokens"] - t["num_cached"] for t in one) for one in of_name
        ]
        seconds.append([sum(timed["total_s"] for timed in one) for one in of_name])
        cells += [_spread(decoded, 0), _spread(seconds[-1], 1)]
    ratios = [ours / theirs for ours, theirs in zip(*seconds, strict=True)]
    num_requests = [len(one) for one in rounds.values()]
    temperature = lines[0]["session"]["temperature"]
    cells = [f"{temperature:g}", kind, _spread(num_requests, 0), *cells]
    return f"| {' | '.join(cells)} | **{_spread(ratios, 3)}** |"


def _spread(values: Sequence[float], digits: int) -> str:
    """The median, and the lowest and the highest of several that differ."""
    median = f"{statistics.median(values):.{digits}f}"
    if min(values) == max(values):
        return median
    return f"{median} ({min(values):.{digits}f} … {max(values):.{digits}f})"
