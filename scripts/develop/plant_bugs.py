"""Plants the bugs that ended losslessness elsewhere, one by one, and runs the tests.

    python scripts/develop/plant_bugs.py [NAME ...]

Each bug is one change of the installed package's text, made in a copy. A bug that no test
notices is printed as MISSED, and the exit code is 1. Needs `.[test]` installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import localspec

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(localspec.__file__).parent


class Bug(NamedTuple):
    """A change of one place in one file, and the tests that should notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


RULES = "tests/test_verify.py tests/test_loop_law.py"
LOOP = "tests/test_loop_law.py tests/test_speculative.py"
BUGS = [
    # 1. Dropping a sampled draft token because its probability is low.
    Bug(
        "drop an unlikely draft token",
        "proposers.py",
        "            drafted.append(drawn)\n",
        "            if distribution.prob(drawn) < 0.4:\n                break\n"
        "            drafted.append(drawn)\n",
        LOOP,
    ),
    # 2. Shared or recurring random numbers.
    Bug(
        "accept with the draft's numbers",
        "rules.py",
        "uniforms[Purpose.ACCEPT]",
        "uniforms[Purpose.DRAFT]",
        LOOP,
    ),
    Bug(
        "residual with the accept numbers",
        "rules.py",
        "uniforms[Purpose.RESIDUAL, 0]",
        "uniforms[Purpose.ACCEPT, 0]",
        LOOP,
    ),
    Bug(
        "the draft's numbers come again in the next step",
        "rules.py",
        "uniforms(place.step)[Purpose.DRAFT]",
        "uniforms(place.step // 2)[Purpose.DRAFT]",
        LOOP,
    ),
    Bug(
        "all numbers come again in the next step",
        "randomness.py",
        "self._uniforms[place]",
        "self._uniforms[place // 2]",
        "tests/test_randomness.py",
    ),
    Bug(
        "numbers of another chunk of steps",
        "randomness.py",
        "if chunk != self._uniforms_chunk:",
        "if chunk > self._uniforms_chunk:",
        "tests/test_randomness.py",
    ),
    Bug(
        "the same numbers every turn",
        "randomness.py",
        "np.array([seed, turn]",
        "np.array([seed, 0]",
        "tests/test_randomness.py",
    ),
    Bug(
        "noise by step, not by index",
        "rules.py",
        "self._choose(place.num_emitted + index, distribution)",
        "self._choose(place.step + index, distribution)",
        LOOP,
    ),
    # 3. Draft distributions that are not those the tokens were drawn from; penalties that stand
    # still.
    Bug(
        "another distribution than the one drawn from",
        "proposers.py",
        "proposal.distributions.append(distribution)",
        "proposal.distributions.append(distribution._replace(probs=distribution.probs[::-1]))",
        LOOP,
    ),
    Bug(
        "penalties that do not advance along the draft",
        "chain.py",
        "self.distribution(row, tokens, draft_tokens[:i])",
        "self.distribution(row, tokens, [])",
        LOOP,
    ),
    # 4. Accepting with draft probability 0, dividing by a zero residual.
    Bug(
        "accept what the target excludes",
        "verify.py",
        "* draft.prob(drawn) >= target.prob(drawn)",
        "* draft.prob(drawn) > target.prob(drawn)",
        RULES,
    ),
    Bug(
        "divide by an empty residual",
        "verify.py",
        "weights / mass) if mass > 0.0 else target",
        "weights / mass)",
        RULES,
    ),
    # 5. Greedy as temperature 1.
    Bug(
        "greedy as a softmax",
        "filters.py",
        "return _one_hot(best)",
        "return Distribution(np.arange(len(logits)), _softmax(logits, 1.0))",
        LOOP,
    ),
    # 6. Ignoring a refused or a falsely granted removal from the cache.
    Bug(
        "believe every cache removal",
        "llama.py",
        "if can_keep and self._is_whole(num_cached):",
        "if num_cached > 0:",
        "tests/test_llama.py",
    ),
    Bug(
        "take every sliding window for whole",
        "llama.py",
        "return oldest <= oldest_needed",
        "return True",
        "tests/test_sliding_window.py",
    ),
    # 7. Padded vocabularies.
    Bug(
        "propose ids beyond the shared ones",
        "proposers.py",
        "row = row[: self._shared_size]",
        "pass",
        LOOP,
    ),
    Bug(
        "propose renamed tokens",
        "proposers.py",
        "row[self._different] = -np.inf",
        "pass",
        LOOP,
    ),
    # 8. A token after the end.
    Bug(
        "a token after the end token",
        "speculative.py",
        "if not (tokens and request.is_end(tokens[-1])):",
        "if True:",
        LOOP,
    ),
    Bug(
        "draft past the end token",
        "proposers.py",
        "if num_worth == 1 or self._is_end(drawn):",
        "if num_worth == 1:",
        LOOP,
    ),
    Bug(
        "read the rows of the padding",
        "speculative.py",
        "logits[: len(draft_tokens) + 1]",
        "logits[len(logits) - len(draft_tokens) - 1 :]",
        LOOP,
    ),
    Bug(
        "replay with the draft's distribution alone",
        "proposers.py",
        "chance = min(1.0, distribution.prob(token) / max(prob, 1e-9))",
        "chance = min(1.0, distribution.prob(token))",
        "tests/test_look_back.py",
    ),
    # 9. A cache of another text.
    Bug(
        "keep a cache that belongs to another text",
        "speculative.py",
        "(i for i, (old, new) in enumerate(pairs) if old != new), shorter)",
        "(i for i, (old, new) in enumerate(pairs) if False), shorter)",
        LOOP,
    ),
    Bug(
        "truncate one token too late",
        "speculative.py",
        "self._truncate_caches(length + num_accepted)",
        "self._truncate_caches(length + num_accepted + 1)",
        LOOP,
    ),
    # 12. A lossy knob.
    Bug(
        "accept a little more",
        "verify.py",
        "if accept_uniforms[index] * draft",
        "if accept_uniforms[index] * 0.99 * draft",
        RULES,
    ),
    Bug(
        "a residual that is the target's distribution",
        "verify.py",
        "residual(target, draft).draw(residual_uniform)",
        "target.draw(residual_uniform)",
        RULES,
    ),
    Bug(
        "block: forget the share in the residual",
        "verify.py",
        "distribution = residual(targets[kept], drafts[kept], shares[kept])",
        "distribution = residual(targets[kept], drafts[kept])",
        RULES,
    ),
    Bug(
        "block: let a share exceed 1",
        "verify.py",
        "min(1.0, shares[-1] * target / draft)",
        "(shares[-1] * target / draft)",
        RULES,
    ),
    Bug(
        "block: judge the last token like the others",
        "verify.py",
        "accept_uniforms[num_drafted - 1] < shares[num_drafted]",
        "accept_uniforms[num_drafted - 1] < shares[num_drafted] ** 2",
        RULES,
    ),
    Bug(
        "block: stop at the first refusal",
        "verify.py",
        "range(num_drafted - 1, 0, -1)",
        "range(1, num_drafted)",
        RULES,
    ),
    Bug(
        "judge by the row after",
        "verify.py",
        "own = choose(index, targets[index])",
        "own = choose(index, targets[index + 1])",
        LOOP,
    ),
]


def is_noticed(bug: Bug) -> bool:
    """Whether some test fails on a copy of the package with the bug in it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "localspec"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        place = copy / bug.file
        text = place.read_text("utf-8")
        if text.count(bug.old) != 1:
            sys.exit(f"{bug.name}: {bug.file} has its text {text.count(bug.old)} times")
        place.write_text(text.replace(bug.old, bug.new), "utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-n0", *bug.tests.split()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode == 1  # 1 is "some tests failed"; others are not about the bug


def main() -> None:
    """Plant every bug, or those named."""
    chosen = [bug for bug in BUGS if bug.name in sys.argv[1:] or not sys.argv[1:]]
    missed = 0
    for bug in chosen:
        noticed = is_noticed(bug)
        missed += not noticed
        print(f"{'noticed' if noticed else 'MISSED '}  {bug.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} bugs noticed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
