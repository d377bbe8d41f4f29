"""localspec against llama.cpp's own programs, on the same files, in turn.

    python scripts/compare/compare_llama_cpp.py [--target T.gguf --draft D.gguf]
    python scripts/compare/compare_llama_cpp.py --target T.gguf --head [HEAD.gguf]

Builds llama-bench, llama-server and llama-speculative-simple from the source of the installed
llama-cpp-python (minutes, once; needs CMake and a C++ compiler), checks that they are built
for the same processor features, and prints a Markdown table: plain decoding, the same number
of draft tokens, and both sides' own defaults, greedy and sampled; then for each side what it
costs to have a draft or a head that is not used. llama-server has no such rest: it decodes the
draft in each step, and a threshold that no token reaches keeps it from proposing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from comparison import localspec_side
from comparison.contender import Answer, Contender, Request, Setup
from comparison.llama_programs import Bench, Server, Simple, UnsureServer
from comparison.llama_tools import RPC_SERVER, Tools, build, default_folder
from comparison.options import add_common, prompts_of, run, setup_of
from comparison.report import header
from comparison.rpc_server import running_servers
from localspec.errors import LocalspecError

PARTS = ("plain", "equal", "default", "sampled", "tax")
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Duel:
    """The two sides, and the temperature."""

    title: str
    ours: Contender
    theirs: Contender
    temperature: float


@dataclass(slots=True)
class Side:
    """Everything one contender answered, in order."""

    name: str
    answers: list[Answer] = field(default_factory=list)
    peak_bytes: int | None = None

    @property
    def speeds(self) -> list[float]:
        return [answer.tokens_per_s for answer in self.answers]

    @property
    def acceptance_rate(self) -> float | None:
        """Kept ÷ proposed, None if nothing was proposed."""
        drafted = sum(answer.num_drafted for answer in self.answers)
        if drafted:
            return sum(answer.num_kept for answer in self.answers) / drafted
        return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both sides; their answers of the same index were given one right after the other."""

    title: str
    ours: Side
    theirs: Side

    @property
    def ratios(self) -> list[float]:
        """Our speed ÷ theirs, for each question of each round."""
        pairs = zip(self.ours.speeds, self.theirs.speeds, strict=True)
        return [ours / theirs for ours, theirs in pairs]

    @property
    def median_ratio(self) -> float:
        return statistics.median(self.ratios)


def fight(duel: Duel, prompts: Sequence[str], *, max_tokens: int, num_rounds: int) -> Outcome:
    """Load both, ask both everything num_rounds times, by turns first and second.

    Raises LocalspecError if one of them fails, answers with too few tokens to measure, or
    proposes nothing where it should.
    """
    ours = Side(duel.ours.name)
    theirs = Side(duel.theirs.name)
    with duel.ours, duel.theirs:
        order = [(duel.ours, ours), (duel.theirs, theirs)]
        warm_up = Request(prompts[0], _WARM_UP_TOKENS, duel.temperature, seed=0)
        for contender, _ in order:
            contender.answer(warm_up)
        for number in range(num_rounds):
            for prompt in prompts:
                request = replace(warm_up, prompt=prompt, max_tokens=max_tokens, seed=number)
                for contender, side in order:
                    side.answers.append(_checked(contender.answer(request), side.name))
                order.reverse()
            print(f"{duel.title}: round {number + 1} of {num_rounds}", file=sys.stderr)
    for contender, side in order:
        side.peak_bytes = contender.peak_bytes
        if contender.must_draft and side.acceptance_rate is None:
            raise LocalspecError(
                f"{side.name} proposed nothing", "Does the draft fit the target?"
            )
    return Outcome(duel.title, ours, theirs)


def _checked(answer: Answer, name: str) -> Answer:
    if answer.num_tokens < 2 or answer.tokens_per_s <= 0.0:
        raise LocalspecError(
            f"an answer of {name} has {answer.num_tokens} tokens, too few to measure",
            "Choose prompts that call for longer answers (--prompts, --chat).",
        )
    return answer


def table(outcomes: Sequence[Outcome]) -> str:
    """Medians (smallest … largest), accepted ÷ proposed, peak memory of the process."""
    lines = [
        "| what | one side | tokens/s | kept | MiB | against | tokens/s | kept | MiB | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        sides = " | ".join(_cells(side) for side in (outcome.ours, outcome.theirs))
        ratio = f"**{outcome.median_ratio:.2f}** ({_spread(outcome.ratios, 2)})"
        lines.append(f"| {outcome.title} | {sides} | {ratio} |")
    return "\n".join(lines)


def _cells(side: Side) -> str:
    speed = f"{statistics.median(side.speeds):.1f} ({_spread(side.speeds, 1)})"
    rate = side.acceptance_rate
    kept = "-" if rate is None else f"{rate:.2f}"
    peak = "-" if side.peak_bytes is None else f"{side.peak_bytes / 2**20:.0f}"
    return f"{side.name} | {speed} | {kept} | {peak}"


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{min(values):.{digits}f} … {max(values):.{digits}f}"


def duels(
    parts: list[str], counts: list[int], setup: Setup, other: Setup, tools: Tools
) -> Iterator[Duel]:
    """The cases, in the table's order. counts: draft tokens of the part "equal".

    other: what the programs load, the same on other RPC servers, which take one client each.
    """
    if "plain" in parts:
        ours = localspec_side.localspec_plain(setup)
        theirs = Bench(tools, other)
        yield Duel("plain", ours, theirs, temperature=0.0)
    if not setup.drafts:
        return
    for count in counts if "equal" in parts else ():
        for temperature, program in ((0.0, Simple), (0.0, Server), (1.0, Server)):
            ours = localspec_side.localspec_fixed(setup, count)
            theirs = program(tools, other, count)
            yield Duel(f"{_title(temperature)}, equal K", ours, theirs, temperature)
    temperatures = [0.0] * ("default" in parts) + [0.8, 1.0] * ("sampled" in parts)
    for temperature in temperatures:
        ours = localspec_side.localspec_default(setup)
        theirs = Server(tools, other, None)
        yield Duel(f"{_title(temperature)}, defaults", ours, theirs, temperature)
    if "tax" in parts:
        resting = localspec_side.localspec_resting(setup)
        plain = localspec_side.localspec_plain(other)
        yield Duel("what is not used", resting, plain, temperature=0.0)
        unsure = UnsureServer(tools, setup)
        alone = Server(tools, other.alone(), None)
        yield Duel("what is not used", unsure, alone, temperature=0.0)


def _title(temperature: float) -> str:
    if temperature:
        return f"temperature {temperature:g}, no filters"
    return "greedy"


def compare(asked: argparse.Namespace) -> None:
    setup = setup_of(asked)
    prompts = prompts_of(asked, setup.target)
    tools = build(asked.build_folder, jobs=asked.jobs)
    program = tools.path(RPC_SERVER)
    with contextlib.ExitStack() as undo:
        sides = []
        for _ in range(2):
            servers = running_servers(program, asked.rpc_servers, setup.num_threads)
            addresses = [server.address for server in undo.enter_context(servers)]
            sides.append(replace(setup, rpc=tuple(addresses)))
        outcomes = [
            fight(duel, prompts, max_tokens=asked.max_tokens, num_rounds=asked.rounds)
            for duel in duels(asked.parts, asked.draft_tokens, sides[0], sides[1], tools)
        ]
    print(header(sides[0], ["python", *sys.argv]))
    print(f"- llama.cpp: {tools.system_info}\n")
    print(table(outcomes))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare localspec with llama.cpp's programs.")
    add_common(parser)
    add = parser.add_argument
    add("--draft-tokens", type=int, nargs="+", default=[3], help="values of K (default: 3)")
    add("--parts", choices=PARTS, nargs="+", default=PARTS, help="default: all")
    where = "where llama.cpp is built (default: in the user's cache)"
    add("--build-folder", type=Path, default=default_folder(), help=where)
    add("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once")
    add("--rpc-servers", type=int, default=0, help="on the loopback, that hold the target")
    run(parser, compare)


if __name__ == "__main__":
    main()
