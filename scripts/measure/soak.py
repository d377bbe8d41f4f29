"""A long conversation whose context rolls over: memory, time to the first token, and the text.

    python scripts/measure/soak.py --turns 200

The demo pair answers greedily, with a context so small that the oldest turns are forgotten
again and again. Every seventh answer is asked again of a second engine that has nothing cached;
where the texts part, the gap between the two tokens is shown: rounding decides near ties. Then,
without forgetting, the time to the first token of turn 20 is set against that of turn 2, of the
demo pair or, which is what counts, of a model of real size (--target, --draft).
"""

from __future__ import annotations

import argparse
import math
import statistics

import psutil

import localspec

GREEDY = localspec.SamplingParams(temperature=0)
QUESTIONS = (
    "Tell me a story about a fox.",
    "What is 7 times 8?",
    "And who was with it?",
    "Name the days of the week.",
    "What can you do?",
)
ROLLING_CONTEXT = 320  # tokens: a handful of turns
EVERY = 7


def roll(num_turns: int) -> None:
    """Print memory and identity as the context rolls over."""
    process = psutil.Process()
    same = forgotten = 0
    gaps: list[float] = []  # of the tokens where the texts part, in the row decoded again
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with (
        localspec.load(context_length=ROLLING_CONTEXT) as engine,
        localspec.load(context_length=ROLLING_CONTEXT, draft_tokens=0) as alone,
    ):
        chat = engine.chat()
        for turn in range(1, num_turns + 1):
            num_before, question = chat.num_forgotten, QUESTIONS[turn % len(QUESTIONS)]
            prompt = chat.prompt_tokens(question)
            reply = chat.send(question, sampling=GREEDY, max_tokens=40).reply()
            rolled = chat.num_forgotten > num_before
            forgotten += rolled
            seconds[rolled].append(reply.stats.time_to_first_token_s)
            if turn % EVERY == 0:
                with alone.exclusively():
                    pass  # nothing is cached there
                fresh = alone.generate_raw(
                    prompt, sampling=GREEDY, max_tokens=40, logprobs=5
                ).reply()
                same += fresh.token_ids == reply.token_ids
                if fresh.token_ids != reply.token_ids:
                    gaps.append(_gap(fresh, reply))
            if turn in (num_turns // 10, num_turns // 2, num_turns):
                print(f"turn {turn}: {process.memory_info().rss / 1e6:.1f} MB")
    plain, rolled_s = (statistics.median(seconds[key]) for key in (False, True))
    print(f"the oldest turns were forgotten {forgotten} times")
    shown = ", ".join(f"{gap:.3g}" for gap in gaps)
    print(f"decoded again, {same} answers were the same; {len(gaps)} parted at gaps of {shown}")
    print(f"first token after {1000 * plain:.1f} ms, {1000 * rolled_s:.1f} ms with a rollover")


def _gap(fresh: localspec.Reply, reply: localspec.Reply) -> float:
    """How much less likely, in logits, the other token is where the texts part."""
    assert fresh.logprobs is not None
    pairs = zip(fresh.token_ids, reply.token_ids, fresh.logprobs, strict=False)
    own, top = next((token, row.top_before) for ours, token, row in pairs if ours != token)
    by_token = {each.token_id: each.logprob for each in top}
    return top[0].logprob - by_token.get(own, -math.inf)


def first_tokens(num_conversations: int, target: str | None, draft: str | None) -> None:
    """Print the time to the first token of turn 20 over that of turn 2."""
    ratios = []
    with localspec.load(target=target, draft=draft) as engine:
        for _ in range(num_conversations):
            chat = engine.chat()
            times = [
                chat.send("What is 7 times 8?", sampling=GREEDY, max_tokens=16).reply().stats
                for _ in range(20)
            ]
            ratios.append(times[19].time_to_first_token_s / times[1].time_to_first_token_s)
    spread = f"{min(ratios):.2f} … {max(ratios):.2f}"
    print(
        f"time to the first token, turn 20 ÷ turn 2: {statistics.median(ratios):.2f} ({spread})"
    )


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=200, help="0: only the first tokens")
    parser.add_argument("--conversations", type=int, default=9)
    parser.add_argument("--target", help="model whose first tokens are timed")
    parser.add_argument("--draft")
    asked = parser.parse_args()
    if asked.turns:
        roll(asked.turns)
    first_tokens(asked.conversations, asked.target, asked.draft)


if __name__ == "__main__":
    main()
