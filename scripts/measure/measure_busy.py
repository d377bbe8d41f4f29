"""Measures the automatic number of threads on a busy, an idle and a small machine.

    python scripts/measure/measure_busy.py --parts busy --models demo 1.5B --busy 1 2

Makes the files it needs (see make_pair.py; a 7B target takes 5 GB of disk) and prints tables of
tokens/s and ratios, medians of the rounds with the lowest and the highest, greedy. All sides
but the automatic one have a fixed number of threads. How idle threads wait is read when their
library is loaded, so each side is a process of its own, which stays loaded if there is memory
for all. They decode in turn, and another one is first in every round; the first tokens of each
are not timed (--warm-up). What keeps the machine busy is started here, and ended here. Leave
the machine alone meanwhile.

busy            plain decoding beside busy processes (--busy; 0 for none), against every fixed
                number of threads with both ways to wait: “passive” has OMP_WAIT_POLICY=passive
quiet           plain decoding against as many threads as cores, both in one process, a token
                each in turn
comes-and-goes  busy processes that come and go, against who knows when, and takes the number of
                threads that was fastest before
quota           plain decoding in a control group that may use one core's worth of time
draft           a pair (--target, --draft) beside busy processes, against the best fixed numbers
                of draft tokens and threads: every one has a turn, and the best two the rounds
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

from busy_sides.neighbours import busy_processes, quota_group
from busy_sides.side import Setting, Side, Sides, Turn

from localspec.errors import LocalspecError
from localspec.machine import cores_here
from shape_pair.bigrams import TextSpec
from shape_pair.pair import PairSpec, make_pair
from shape_pair.shapes import SHAPES

TEXT = TextSpec(entropy=1.0, agreement=(0.9,), segment=64, period=None, seed=1)
DEMO = "demo"
GROUPS = Path("/sys/fs/cgroup")
# GCC's default, said aloud: the package leaves alone what is set.
DEFAULT_WAIT = {"GOMP_SPINCOUNT": "300000"}
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
HEADING = "side | tokens/s | automatic ÷ it |"


def made_pair(target: str, draft: str, folder: Path) -> dict[str, Any]:
    """Keywords of localspec.load for a pair that is made if it is not there."""
    paths = make_pair(PairSpec(target, draft, "Q4_0", "Q4_0", TEXT), folder)
    return dict(zip(("target", "draft"), map(str, paths), strict=True))


def plain(asked: argparse.Namespace, model: str) -> dict[str, Any]:
    """Keywords for plain decoding."""
    draft = "tiny" if model == "tiny" else "0.5B"
    files = {} if model == DEMO else made_pair(model, draft, asked.out)
    return {**files, "draft_tokens": 0, "context_length": asked.ctx}


def automatic(keywords: dict[str, Any], group: Path | None = None) -> Setting:
    """As it comes."""
    return Setting("automatic", keywords, {}, is_automatic=True, group=group)


def fixed(keywords: dict[str, Any], count: int, group: Path | None = None) -> Setting:
    """With so many threads, which wait for each other as they do by default."""
    return Setting(
        _threads(count), {**keywords, "num_threads": count}, DEFAULT_WAIT, group=group
    )


def passive(keywords: dict[str, Any], count: int) -> Setting:
    """With so many threads, which sleep while they wait for each other."""
    return Setting(f"{_threads(count)}, passive", {**keywords, "num_threads": count}, PASSIVE)


def thread_counts() -> range:
    """All that may be best here."""
    return range(1, cores_here().physical + 1)


def busy(asked: argparse.Namespace) -> None:
    """Beside busy processes."""
    print(f"| model | busy | {HEADING}\n|---|---|---|---|---|")
    before = _threads(cores_here().physical)
    for model in asked.models:
        keywords = plain(asked, model)
        ways = [way(keywords, count) for way in (fixed, passive) for count in thread_counts()]
        for count in asked.busy:
            with busy_processes(count), Sides(asked.warm_up) as sides:
                turns = sides.rounds(
                    [automatic(keywords), *ways], asked.rounds, 1, asked.seconds
                )
            print_sides(f"{model} | {count}", turns, {before: "0.1.0's default"})


def quiet(asked: argparse.Namespace) -> None:
    """With nothing beside it."""
    print(f"| model | {HEADING}\n|---|---|---|---|")
    for model in asked.models:
        keywords = plain(asked, model)
        ours, other = automatic(keywords), fixed(keywords, cores_here().physical)
        rates: dict[str, list[float]] = {ours.name: [], other.name: []}
        for number in range(asked.rounds):
            # Not all memory is as fast: no side keeps its place.
            order = [other, ours] if number % 2 else [ours, other]
            with Side(ours) as both:
                for setting in order:
                    both.load(setting.load)
                both.take_turns(asked.warm_up, 0)
                found = both.take_turns(1, 2 * asked.seconds)
                for setting, rate in zip(order, found, strict=True):
                    rates[setting.name].append(rate)
        print_rates(model, rates, {})


def comes_and_goes(asked: argparse.Namespace) -> None:
    """Beside busy processes that come and go."""
    print(f"| model | busy in turn | {HEADING}\n|---|---|---|---|---|")
    keywords = plain(asked, asked.phase_model)
    ways = [fixed(keywords, count) for count in thread_counts()]
    for count in asked.busy:
        phases = [count if number % 2 else 0 for number in range(asked.phases)]
        rates: dict[str, list[float]] = {"automatic": [], "oracle": []}
        with Sides(asked.warm_up) as sides:
            best = {}
            for num_busy in {0, count}:
                with busy_processes(num_busy):
                    turns = sides.rounds(ways, 1, 1, asked.seconds)
                best[num_busy] = max(ways, key=lambda way: turns[way.name][0].rate)
            who = {
                "automatic": [automatic(keywords)] * len(phases),
                "oracle": [best[num_busy] for num_busy in phases],
            }
            for number in range(asked.rounds):
                for name in sorted(who, reverse=bool(number % 2)):
                    rates[name].append(_over_phases(sides, who[name], phases, asked))
        known = f"{best[0].name} when quiet, {best[count].name} when busy"
        print_rates(f"{asked.phase_model} | {count}", rates, {"oracle": known})


def _over_phases(
    sides: Sides, settings: list[Setting], phases: list[int], asked: argparse.Namespace
) -> float:
    """Tokens/s over all phases, of the setting of each beside so many busy processes."""
    num_tokens = 0
    for setting, num_busy in zip(settings, phases, strict=True):
        with busy_processes(num_busy):
            num_tokens += sides.turn(setting, 1, asked.phase_seconds).num_tokens
    return num_tokens / (len(phases) * float(asked.phase_seconds))


def quota(asked: argparse.Namespace) -> None:
    """With a core's worth of time."""
    with contextlib.ExitStack() as undo:
        try:
            group = undo.enter_context(quota_group(GROUPS, 1))
        except OSError as error:
            print(f"Not measured: no control group with a quota can be made here ({error}).")
            return
        print(f"| model | {HEADING}\n|---|---|---|---|")
        for model in asked.models:
            keywords = plain(asked, model)
            ways = [fixed(keywords, count, group) for count in thread_counts()]
            with Sides(asked.warm_up) as sides:
                turns = sides.rounds(
                    [automatic(keywords, group), *ways], asked.rounds, 1, asked.seconds
                )
            print_sides(model, turns, {})


def draft(asked: argparse.Namespace) -> None:
    """A pair beside busy processes."""
    print(f"| target | busy | {HEADING}\n|---|---|---|---|---|")
    pair = made_pair(asked.target, asked.draft, asked.out)
    # Nothing repeats itself there: a lookup has nothing to find.
    keywords = {**pair, "proposer": "draft", "context_length": asked.ctx}
    ways = []
    for length in asked.draft_lengths:
        of_length = {**keywords, "draft_tokens": length}
        ways.append(Setting(f"K {length}, automatic threads", of_length, {}, is_automatic=True))
        for count in thread_counts():
            of_count = {**of_length, "num_threads": count}
            ways.append(Setting(f"K {length}, {_threads(count)}", of_count, DEFAULT_WAIT))
    for count in asked.busy:
        with busy_processes(count):
            rates = {}
            for way in ways:
                with Sides(asked.warm_up) as sides:
                    rates[way.name] = sides.turn(way, asked.draft_part_tokens, 0).rate
            ways.sort(key=lambda way: -rates[way.name])
            with Sides(asked.warm_up) as sides:
                turns = sides.rounds(
                    [automatic(keywords), *ways[:2]], asked.rounds, asked.draft_part_tokens, 0
                )
        print_sides(f"{asked.target} | {count}", turns, {})
        for way in ways:
            print(
                f"| {asked.target} | {count} | {way.name}, one turn | {rates[way.name]:.1f} | |"
            )


def print_sides(place: str, turns: dict[str, list[Turn]], notes: dict[str, str]) -> None:
    """A row for each side, with the number of threads that the automatic one ended with."""
    ends = " ".join(str(turn.num_threads) for turn in turns["automatic"])
    rates = {name: [turn.rate for turn in of_side] for name, of_side in turns.items()}
    print_rates(place, rates, {"automatic": f"threads at each end: {ends}", **notes})


def print_rates(place: str, rates: dict[str, list[float]], notes: dict[str, str]) -> None:
    """A row for each side, tokens/s in every round: the automatic one, then the best others."""
    ours = rates["automatic"]
    others = sorted(rates.keys() - {"automatic"}, key=lambda n: -statistics.median(rates[n]))
    for name in ("automatic", *others):
        note = f" ({notes[name]})" if name in notes else ""
        ratio = "" if name == "automatic" else _shown(ratios(ours, rates[name]), 3)
        print(f"| {place} | {name}{note} | {_shown(rates[name], 1)} | {ratio} |", flush=True)


def ratios(ours: list[float], others: list[float]) -> list[float]:
    """Of each round."""
    return [our / other for our, other in zip(ours, others, strict=True)]


def _shown(figures: list[float], digits: int) -> str:
    """The median, the lowest and the highest."""
    low, middle, high = (
        f"{function(figures):.{digits}f}" for function in (min, statistics.median, max)
    )
    return f"**{middle}** ({low} … {high})"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def count_of(text: str) -> int:
    """An option's value that counts something."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


PARTS = {
    "busy": busy,
    "quiet": quiet,
    "comes-and-goes": comes_and_goes,
    "quota": quota,
    "draft": draft,
}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    models = [DEMO, "0.5B", "1.5B", "7B"]
    add("--models", nargs="+", choices=[DEMO, *SHAPES], default=models, help="decoded plainly")
    add(
        "--busy",
        nargs="+",
        type=int,
        default=[1, 2],
        help="processes beside us, one after another",
    )
    add("--rounds", type=count_of, default=4)
    add("--seconds", type=float, default=8, help="of a turn")
    add("--warm-up", type=int, default=64, help="tokens before the first turn of each side")
    add("--phase-model", choices=[DEMO, *SHAPES], default="0.5B", help="of comes-and-goes")
    add("--phases", type=count_of, default=6)
    add("--phase-seconds", type=float, default=20)
    add("--target", choices=SHAPES, default="7B", help="of draft")
    add("--draft", choices=SHAPES, default="0.5B", help="of draft")
    add("--draft-lengths", nargs="+", type=int, default=list(range(6)), help="fixed ones")
    add("--draft-part-tokens", type=count_of, default=64, help="of a turn in draft")
    add("--ctx", type=int, default=1024)
    add("--out", type=Path, default=Path("pairs"), help="folder of the made files")
    asked = parser.parse_args()
    # Settings of this shell must not become a side's default.
    for name in [name for name in os.environ if name.startswith(("OMP_", "GOMP_"))]:
        del os.environ[name]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end what was started
    try:
        for name in asked.parts:
            print(f"\n### {name}\n", flush=True)
            PARTS[name](asked)
    except LocalspecError as error:
        parser.exit(1, f"Error: {error}\nHint: {error.hint}\n")
    except KeyboardInterrupt:
        parser.exit(130, "Interrupted.\n")


if __name__ == "__main__":
    main()
