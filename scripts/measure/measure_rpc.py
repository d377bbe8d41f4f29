"""Measures the gain of a draft with the target on another machine, by the network's delay.

    python scripts/measure/measure_rpc.py --target T.gguf --draft D.gguf

Needs a llama-cpp-python with RPC, and ggml-rpc-server (scripts/develop/build_rpc_server.py),
which runs on the loopback behind a proxy that delays. The target is there, the draft here. For
each delay it prints a row: plain decoding; what a decode of n tokens (v) and a drafted token
(c) cost there, in plain steps; and of fixed numbers of draft tokens how much faster than plain
greedy answers are, beside what v, c and the tokens that were kept predict: kept tokens a
step ÷ (K c + v(K + 1)).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "compare"))

from delaying_proxy import delaying

import localspec
from comparison.llama_tools import RPC_SERVER, binaries_of, default_folder, program_in
from comparison.rpc_server import running_servers
from localspec.checks.step_bench import DecodeCosts, measure_steps
from localspec.machine import num_usable_cores
from localspec.speculative.metrics import Stats
from localspec.speculative.policy_api import FixedDraftPolicy, ProposerKind

_STEP_ROUNDS = 3
_PROMPT = "Once upon a time there was a fox who lived by the river"
_SIZES = (2, 4, 8, 16)  # of decodes that are shown


def answer(engine: localspec.Engine, count: int, max_tokens: int) -> Stats:
    """Of a greedy answer with so many draft tokens a step."""
    engine._draft_policy = FixedDraftPolicy(count)
    sampling = localspec.SamplingParams(temperature=0, ignore_eos=True)
    return engine.generate_raw(_PROMPT, sampling=sampling, max_tokens=max_tokens).reply().stats


def row(asked: argparse.Namespace, round_trip_ms: float, program: Path) -> str:
    """A line of the table."""
    with contextlib.ExitStack() as undo:
        servers = undo.enter_context(running_servers(program, asked.servers, asked.threads))
        addresses = [server.address for server in servers]
        if round_trip_ms:
            addresses = [
                undo.enter_context(delaying(address, round_trip_ms / 1000))
                for address in addresses
            ]
        engine = undo.enter_context(
            localspec.load(
                target=asked.target,
                draft=asked.draft,
                context_length=512,
                num_threads=asked.threads,
                rpc=addresses,
                memory=False,
            )
        )
        with engine.exclusively() as loop:
            costs = measure_steps(loop, _STEP_ROUNDS)
        speeds: dict[int, list[Stats]] = {count: [] for count in (0, *asked.draft_tokens)}
        for _ in range(asked.rounds):
            for count, found in speeds.items():
                found.append(answer(engine, count, asked.max_tokens))
    return _row(round_trip_ms, costs, speeds)


def _row(round_trip_ms: float, costs: DecodeCosts, speeds: dict[int, list[Stats]]) -> str:
    plain = [stats.tokens_per_s or 0.0 for stats in speeds.pop(0)]
    c = costs.shares[ProposerKind.DRAFT]
    cells = [f"{round_trip_ms:g} ms", f"{statistics.median(plain):.1f}"]
    cells += [f"{costs.ratios[size - 1]:.2f}" for size in _SIZES] + [f"{c:.2f}"]
    for count, found in speeds.items():
        ratio = statistics.median(
            (stats.tokens_per_s or 0.0) / one for stats, one in zip(found, plain, strict=True)
        )
        kept = found[0].mean_acceptance_length
        predicted = kept / (count * c + costs.ratios[count])
        cells.append(f"{ratio:.2f} ({predicted:.2f}; {kept:.2f} kept)")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--target", type=Path, required=True)
    add("--draft", type=Path, required=True)
    delays = "round trips in milliseconds; 0 is the loopback without the proxy"
    add("--delays", type=float, nargs="+", default=[0, 0.2, 1, 5, 20], help=delays)
    add("--draft-tokens", type=int, nargs="+", default=[3, 6], help="values of K")
    add("--servers", type=int, default=1)
    add("--threads", type=int, default=num_usable_cores(), help="of server and draft")
    add("--max-tokens", type=int, default=64)
    add("--rounds", type=int, default=2)
    asked = parser.parse_args()
    program = program_in(binaries_of(default_folder()), RPC_SERVER)
    heads = ["round trip", "plain, tokens/s", *(f"v({size})" for size in _SIZES), "c"]
    heads += [f"K = {count}, times plain (predicted)" for count in asked.draft_tokens]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for delay in asked.delays:
        print(row(asked, delay, program), flush=True)


if __name__ == "__main__":
    main()
