"""Writes how well the demo pair's draft and head propose, with which its first answers begin.

    python scripts/demo_pair/acceptance.py

Answers questions without drafting, and judges what each would have proposed. The result is
`localspec/demo/acceptance.json`, by the hashes of the files.
"""

from __future__ import annotations

import json
from pathlib import Path

import localspec
from localspec.engine.engine import Engine
from localspec.policy.acceptance import Acceptance
from localspec.policy.profile import contents_of
from localspec.speculative.policy_api import ProposerKind

PATH = Path(__file__).parents[2] / "localspec/demo/acceptance.json"
QUESTIONS = (
    "Tell me a story about a fox and a bear.",
    "What is localspec?",
    "Write a poem about the sea.",
    "Tell me a story about a lighthouse.",
    "What is the capital of France?",
    "Tell me a long story about two friends who build a boat.",
    "How does speculative decoding work?",
    "Give me a tip for a better sleep, and tell me a joke.",
)
MOST_TOKENS = 300


def judged(engine: Engine, kind: ProposerKind) -> dict[str, object]:
    """What the acceptance of that proposer's tokens is, as it is kept between runs."""
    decoder = engine._decoder
    (proposer,) = [each for each in decoder.proposers if each.kind is kind]
    acceptance = Acceptance(kind)
    for number, question in enumerate(QUESTIONS):
        answer = engine.chat().send(
            question,
            temperature=(0.0, 0.8)[number % 2],
            seed=number,
            max_tokens=MOST_TOKENS,
            draft_tokens=0,
        )
        answer.reply()
        for scores in decoder.replay_scores(proposer, decoder.num_answered):
            for confidence, chance in scores.chances:
                acceptance.learn(confidence, chance)
    return acceptance.as_dict()


def main() -> None:
    """Write the file."""
    pairs = {}
    for name, kind in (("demo", ProposerKind.DRAFT), ("demo@head", ProposerKind.HEAD)):
        with localspec.load(name) as engine:
            identities = [str(model.identity) for model in engine._models.all]
            known = {kind.value: judged(engine, kind)}
        pairs[" ".join(contents_of(identities))] = known
    PATH.write_text(json.dumps(pairs, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
