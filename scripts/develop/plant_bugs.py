"""Plants known bugs that broke losslessness elsewhere, one by one, and runs a test for each.

    python scripts/develop/plant_bugs.py [--verify] [NAME ...]

Each bug is one change to a copy of the installed package, and names the test that has to fail.
If the test passes, the bug is printed as MISSED, and the exit code is 1. All tests run in this
process, where only the package and the tests are imported again. It needs `.[test]`.

With --verify, `localspec verify` has to notice each bug instead, on the demo pair and by its
exit code, except those of `NOT_BY_VERIFY`. It prints the seconds that each took.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import localspec
from localspec.cli import exit_codes

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(localspec.__file__).parent
OPTIONS = ("-q", "-x", "-n0", "-p", "no:cacheprovider", "--tb=no")

_forgotten: list[list[ModuleType]] = []


class Bug(NamedTuple):
    """A change of one place in one file, and the test that notices it."""

    name: str
    file: str
    old: str
    new: str
    test: str


def loop(case: str) -> str:
    """The exact distribution of texts over several steps, by the rule for single tokens."""
    name = "test_texts_have_the_targets_distribution"
    return f"tests/test_loop_distribution.py::{name}[{case}-token-]"


def rule(case: str) -> str:
    """The exact distribution of one step, by every rule."""
    return f"tests/test_verify.py::test_rules_emit_the_targets_joint_distribution[{case}]"


def head(case: str) -> str:
    """A head's drafts compared with those of a head that is driven as llama.cpp does it."""
    return f"tests/test_llama_heads.py::{case}"


def constrained(case: str) -> str:
    """The exact distribution of constrained texts over several steps."""
    name = "test_constrained_texts_have_the_law_of_masked_rows"
    return f"tests/test_constraint_law.py::{name}[{case}]"


READS = "test_greedy_text_is_plain_and_the_head_reads_rightly"

BUGS = [
    # 1. Dropping a sampled draft token because its probability is low.
    Bug(
        "drop an unlikely draft token",
        "speculative/proposers.py",
        "            drafted.append(draw(len(drafted), distribution))\n",
        "            drafted.append(draw(len(drafted), distribution))\n"
        "            if distribution.prob(drafted[-1]) < 0.4:\n"
        "                drafted.pop()\n                break\n",
        loop("an end token inside the draft"),
    ),
    # 2. Shared or recurring random numbers.
    Bug(
        "accept with the draft's numbers",
        "speculative/rules.py",
        "uniforms[Purpose.ACCEPT]",
        "uniforms[Purpose.DRAFT]",
        loop("an end token inside the draft"),
    ),
    Bug(
        "residual with the accept numbers",
        "speculative/rules.py",
        "uniforms[Purpose.RESIDUAL, 0]",
        "uniforms[Purpose.ACCEPT, 0]",
        loop("five tokens, K 3"),
    ),
    Bug(
        "the draft's numbers come again in the next step",
        "speculative/rules.py",
        "uniforms(start.step)[Purpose.DRAFT]",
        "uniforms(start.step // 2)[Purpose.DRAFT]",
        loop("five tokens, K 3"),
    ),
    Bug(
        "all numbers come again in the next step",
        "speculative/randomness.py",
        "self._uniforms[offset]",
        "self._uniforms[offset // 2]",
        "tests/test_randomness.py::test_no_two_addresses_share_a_number",
    ),
    Bug(
        "numbers of another chunk of steps",
        "speculative/randomness.py",
        "if chunk != self._uniforms_chunk:",
        "if chunk > self._uniforms_chunk:",
        "tests/test_randomness.py::test_an_address_always_holds_the_same_number",
    ),
    Bug(
        "the same numbers every turn",
        "speculative/randomness.py",
        "np.array([seed, turn]",
        "np.array([seed, 0]",
        "tests/test_randomness.py::test_no_two_addresses_share_a_number",
    ),
    Bug(
        "noise by step, not by index",
        "speculative/rules.py",
        "self._choose(start.num_emitted + index, distribution)",
        "self._choose(start.step + index, distribution)",
        "tests/test_speculative.py::test_coupled_text_is_that_of_plain_decoding",
    ),
    # 3. Draft distributions that are not those the tokens were drawn from; penalties that stand
    # still.
    Bug(
        "another distribution than the one drawn from",
        "speculative/proposers.py",
        "self.distributions.append(distribution)",
        "self.distributions.append(distribution._replace(probs=distribution.probs[::-1]))",
        loop("five tokens, K 3"),
    ),
    Bug(
        "penalties that do not advance along the draft",
        "sampling/chain.py",
        "self._distribution(row, tokens, draft_tokens[:i], must_fit=True)",
        "self._distribution(row, tokens, [], must_fit=True)",
        loop("penalties, a narrower draft"),
    ),
    # 4. Accepting with draft probability 0, dividing by a zero residual.
    Bug(
        "accept what the target excludes",
        "speculative/verify.py",
        "* draft.prob(drawn) >= target.prob(drawn)",
        "* draft.prob(drawn) > target.prob(drawn)",
        "tests/test_verify.py::test_a_token_the_target_excludes_is_refused",
    ),
    Bug(
        "divide by an empty residual",
        "speculative/verify.py",
        "weights / mass) if mass > 0.0 else target",
        "weights / mass)",
        "tests/test_verify.py::test_residual_of_equal_rows_is_the_target",
    ),
    # 5. Greedy as temperature 1.
    Bug(
        "greedy as a softmax",
        "sampling/filters.py",
        "return one_hot(best)",
        "return Distribution(np.arange(len(logits)), _softmax(logits, 1.0))",
        "tests/test_speculative.py::test_a_refused_draft_costs_one_token_a_step",
    ),
    # 6. Ignoring a refused or a falsely granted removal from the cache.
    Bug(
        "believe every cache removal",
        "llama/cache.py",
        "if self.is_recurrent and self.num_cached - num_cached > self._num_in_snapshots:",
        "if False:",
        "tests/test_hybrid.py::test_snapshots_are_of_the_last_decode_and_of_use_once",
    ),
    Bug(
        "go on from the state of a decode that was stopped",
        "llama/cache.py",
        "self._num_in_snapshots, self.is_settled = _UNKNOWN, False",
        "self._num_in_snapshots, self.is_settled = 0, False",
        "tests/test_hybrid.py::test_a_decode_that_was_stopped_half_way_is_not_believed",
    ),
    Bug(
        "let a hybrid draft go on from behind what was refused",
        "speculative/proposers.py",
        "self.model.checkpoint()",
        "pass",
        "tests/test_hybrid.py::test_a_hybrid_draft_reads_only_what_was_accepted",
    ),
    Bug(
        "take every sliding window for whole",
        "llama/cache.py",
        "return oldest <= oldest_needed",
        "return True",
        "tests/test_sliding_window.py::test_cut_at_every_depth",
    ),
    # 7. Padded vocabularies.
    Bug(
        "propose ids beyond the shared ones",
        "speculative/proposers.py",
        "[:, : self._shared_size]",
        "",
        loop("a wider draft"),
    ),
    Bug(
        "propose renamed tokens",
        "speculative/proposers.py",
        "rows[:, self._different] = -np.inf",
        "pass",
        "tests/test_speculative.py::test_renamed_tokens_are_never_proposed",
    ),
    # 8. A token after the end.
    Bug(
        "a token after the end token",
        "speculative/loop.py",
        "if not (tokens and request.is_end(tokens[-1])):",
        "if True:",
        loop("an end token inside the draft"),
    ),
    Bug(
        "draft past the end token",
        "speculative/proposers.py",
        "if num_worth == 1 or is_end(drafted[-1]):",
        "if num_worth == 1:",
        loop("an end token inside the draft"),
    ),
    Bug(
        "read the rows of the padding",
        "speculative/loop.py",
        "logits[: len(draft_tokens) + 1]",
        "logits[len(logits) - len(draft_tokens) - 1 :]",
        "tests/test_speculative.py::test_padding_may_go_beyond_the_answer_but_not_beyond_the_context",
    ),
    Bug(
        "replay with the draft's distribution alone",
        "speculative/proposers.py",
        "return min(1.0, distribution.prob(token) / max(prob, 1e-9))",
        "return min(1.0, distribution.prob(token))",
        "tests/test_replay.py::test_over_the_targets_distribution_they_add_up_to_the_acceptance",
    ),
    # 9. A cache of another text.
    Bug(
        "keep a cache that belongs to another text",
        "speculative/loop.py",
        "common = common_length(self.tokens, prompt_tokens)",
        "common = min(len(self.tokens), len(prompt_tokens))",
        "tests/test_speculative.py::test_another_text_is_decoded_from_where_it_differs",
    ),
    Bug(
        "truncate one token too late",
        "speculative/loop.py",
        "self._truncate_caches(length + verdict.num_accepted)",
        "self._truncate_caches(length + verdict.num_accepted + 1)",
        loop("five tokens, K 3"),
    ),
    # 12. A lossy knob.
    Bug(
        "accept a little more",
        "speculative/verify.py",
        "if accept_uniforms[index] * draft",
        "if accept_uniforms[index] * 0.99 * draft",
        rule("one-hot draft-V2-K1_1"),
    ),
    Bug(
        "a residual that is the target's distribution",
        "speculative/verify.py",
        "residual(target, draft).draw(residual_uniform)",
        "target.draw(residual_uniform)",
        rule("one-hot draft-V2-K1_1"),
    ),
    Bug(
        "block: forget the share in the residual",
        "speculative/verify.py",
        "distribution = residual(targets[kept], drafts[kept], shares[kept])",
        "distribution = residual(targets[kept], drafts[kept])",
        rule("random-V3-K2_2"),
    ),
    Bug(
        "block: let a share exceed 1",
        "speculative/verify.py",
        "min(1.0, shares[-1] * target / draft)",
        "(shares[-1] * target / draft)",
        rule("random-V2-K2_1"),
    ),
    Bug(
        "block: judge the last token like the others",
        "speculative/verify.py",
        "accept_uniforms[num_drafted - 1] < shares[num_drafted]",
        "accept_uniforms[num_drafted - 1] < shares[num_drafted] ** 2",
        rule("one-hot draft-V2-K1_1"),
    ),
    Bug(
        "block: stop at the first refusal",
        "speculative/verify.py",
        "range(num_drafted - 1, 0, -1)",
        "range(1, num_drafted)",
        rule("one-hot draft-V2-K3_1"),
    ),
    Bug(
        "judge by the row after",
        "speculative/verify.py",
        "own = choose(index, targets[index])",
        "own = choose(index, targets[index + 1])",
        "tests/test_speculative.py::test_an_identical_draft_is_kept_whole",
    ),
    # A head that is fed wrongly: what it says stays the target's, but it drafts badly.
    Bug(
        "head: rows of one token earlier",
        "llama/head.py",
        "self._target_rows.copy_to(out, position - 1)",
        "self._target_rows.copy_to(out, max(position - 2, 0))",
        head(f"{READS}[glm4moe-3]"),
    ),
    Bug(
        "head: its row of the step before",
        "llama/head.py",
        "            self._own_rows[0] = self._row_of_last(count, num_logits)\n",
        "            self._own_rows[0] += 0\n",
        head(f"{READS}[glm4moe-3]"),
    ),
    Bug(
        "head: its row of the draft token before",
        "llama/head.py",
        "            self._own_rows[0] = self._row_of_last(1, 1)\n",
        "",
        head(f"{READS}[glm4moe-3]"),
    ),
    Bug(
        "head: rows of the outputs alone, from a graph that computes all",
        "llama/head.py",
        "self._nextn.set_embeddings_nextn(handle.context, True, facts.is_cropped)",
        "self._nextn.set_embeddings_nextn(handle.context, True, True)",
        head(f"{READS}[glm4moe-3]"),
    ),
    Bug(
        "head: drafted tokens one position too far",
        "llama/head.py",
        "            self._decode_batch(tokens, position, 1, 0)",
        "            self._decode_batch(tokens, position + 1, 1, 0)",
        head(f"{READS}[glm4moe-3]"),
    ),
    Bug(
        "head: keep what it read with rows of its own",
        "llama/head.py",
        "min(num_cached, self.num_cached - len(self._drafted))",
        "min(num_cached, self.num_cached)",
        head(f"{READS}[glm4moe-3]"),
    ),
    Bug(
        "head: cut a late start's cache as if it began in front",
        "llama/head.py",
        "self._remove_from(self.begins_at + self.num_cached - self._lag)\n",
        "self._remove_from(self.num_cached - self._lag)\n",
        head("test_of_a_long_text_it_reads_the_end[glm4moe-513]"),
    ),
    Bug(
        "head: later layers do not read the text",
        "llama/head.py",
        "reversed(range(1, self._num_layers))",
        "()",
        head(f"{READS}[step35-3]"),
    ),
    Bug(
        "head: keep rows of tokens that were refused",
        "llama/hidden_rows.py",
        "        self.end = min(self.end, num_cached)\n",
        "        num_cached = self.end\n",
        head("test_after_cuts_cancels_and_another_conversation[glm4moe]"),
    ),
    # The same of EAGLE-3 and of Medusa.
    Bug(
        "EAGLE: rows of one token earlier",
        "llama/head.py",
        "copy_to(self._to_encode.rows[:count], position - 1)",
        "copy_to(self._to_encode.rows[:count], max(position - 2, 0))",
        head(f"{READS}[llama-3]"),
    ),
    Bug(
        "EAGLE: rows of one token later",
        "llama/head.py",
        "copy_to(self._to_encode.rows[:count], position - 1)",
        "copy_to(self._to_encode.rows[:count], position)",
        head(f"{READS}[llama-3]"),
    ),
    Bug(
        "EAGLE: logits of some tokens of a decode",
        "llama/head.py",
        "num_rows = len(tokens) if num_logits else 0",
        "num_rows = num_logits",
        head("test_of_a_long_text_it_reads_the_end[llama-513]"),
    ),
    Bug(
        "EAGLE: keep an entry too many",
        "llama/head.py",
        "self._remove_from(self.begins_at + self.num_cached - self._lag)\n",
        "self._remove_from(self.begins_at + self.num_cached)\n",
        head(f"{READS}[llama-3]"),
    ),
    Bug(
        "EAGLE: layers in another order",
        "llama/hidden_rows.py",
        "(self._given(layer, before + count) for layer in self._layers)",
        "(self._given(layer, before + count) for layer in self._layers[::-1])",
        head(f"{READS}[llama-3]"),
    ),
    Bug(
        "EAGLE: a layer beside the one it was trained on",
        "gguf_file/head_kinds.py",
        'return whole_numbers(shape.stated("target_layers"))',
        'return tuple(n - 1 for n in whole_numbers(shape.stated("target_layers")))',
        head(f"{READS}[llama-3]"),
    ),
    Bug(
        "DFlash: rows of one token earlier",
        "llama/dflash.py",
        "copy_to(self._features.rows[:size], position)",
        "copy_to(self._features.rows[:size], max(position - 1, 0))",
        head(f"{READS}[of a hybrid-3]"),
    ),
    Bug(
        "DFlash: the row of the place before",
        "llama/dflash.py",
        "(size, self.vocab_size))[first:]",
        "(size, self.vocab_size))[: size - first]",
        head(f"{READS}[of a windowed target-3]"),
    ),
    Bug(
        "DFlash: keep the masks of a block",
        "llama/dflash.py",
        "            self._cut(self.num_cached)\n",
        "            pass\n",
        head(f"{READS}[of a windowed target-3]"),
    ),
    Bug(
        "DFlash2: scores behind another candidate",
        "llama/dflash.py",
        "        begin = count * (1 + before)\n",
        "        begin = count\n",
        head(f"{READS}[pairs of candidates-3]"),
    ),
    Bug(
        "Medusa: the row of one token earlier",
        "llama/medusa.py",
        "self.begins_at + self.num_cached - 1)",
        "self.begins_at + self.num_cached - 2)",
        head(f"{READS}[medusa, some tokens-3]"),
    ),
    Bug(
        "Medusa: tokens of its own vocabulary, one too far",
        "llama/medusa.py",
        "self._logits[self._tokens] = products(output, row)",
        "self._logits[self._tokens - 1] = products(output, row)",
        head(f"{READS}[medusa, some tokens-3]"),
    ),
    Bug(
        "Medusa: a residual block without its row",
        "llama/medusa.py",
        "row = row + inner / (1.0 + np.exp(-inner))",
        "row = inner / (1.0 + np.exp(-inner))",
        head(f"{READS}[medusa, some tokens-3]"),
    ),
    Bug(
        "Medusa: a row that was written to",
        "llama/medusa.py",
        "        self._logits.fill(-np.inf)\n",
        "",
        head(f"{READS}[medusa, some tokens-3]"),
    ),
    Bug(
        "another tokenizer: a row that is not the draft's under the target's ids",
        "speculative/translated.py",
        "np.take(own_row, self.maps.own_ids,",
        "np.take(own_row, self.maps.own_ids[::-1],",
        "tests/test_translated.py::test_its_rows_are_the_drafts_under_the_targets_ids",
    ),
    Bug(
        "another tokenizer: a cut that leaves the draft's tokens beyond it",
        "speculative/own_text.py",
        "self._keep_own(bisect_right(self._own_ends, end) if num_tokens else 0)",
        "self._keep_own(bisect_right(self._own_ends, end + 1) if num_tokens else 0)",
        "tests/test_translated.py::test_both_have_the_same_bytes_however_the_text_grows_and_is_cut",
    ),
    # 13. Constrained answers.
    Bug(
        "a sampled draft is cut at a forbidden token",
        "speculative/loop.py",
        "        draft_tokens = proposal.draft_tokens\n",
        "        draft_tokens = proposal.draft_tokens\n"
        "        del draft_tokens[request.chain.num_allowed(draft_tokens) :]\n",
        constrained("words, K 2-token-FreeDraft"),
    ),
    Bug(
        "the mask of another row",
        "sampling/chain.py",
        "self._states.behind(draft_tokens)",
        "self._states.behind(draft_tokens[:-1])",
        constrained("words, K 2-token-DraftModel"),
    ),
    Bug(
        "what is forced is taken as certain",
        "speculative/verify.py",
        "        target, draft = targets[index], drafts[index]\n",
        "        target, draft = targets[index], drafts[index]\n"
        "        if len(draft.ids) == 1 and target.prob(drawn) > 0.0:\n            continue\n",
        "tests/test_constraint_law.py::test_what_is_forced_is_judged_like_any_draft[2-token]",
    ),
    Bug(
        "a token across the boundary is not looked at",
        "constraints/behind.py",
        "return token not in self._candidates() or self._may_pass(token)",
        "return True",
        "tests/test_constraint_law.py"
        "::test_what_stands_behind_a_thought_is_what_the_constraint_allows",
    ),
]

_HYBRID = "no cache of the demo pair is recurrent or a sliding window"
_NO_HEAD = "the demo pair has no head; a head that is fed wrongly drafts badly, and is lossless"
_SAME_WORDS = "the demo pair has one vocabulary"
_NUMBERS = "random numbers are the same on every machine: tests look at them"
_NO_SETTING = "verify has the user's samplers, which penalise nothing by default: tests do"
# What verify cannot notice there, and why.
NOT_BY_VERIFY = {
    "divide by an empty residual": "only rounding leads there, and no sampled row is equal",
    "the draft's numbers come again in the next step": _NUMBERS,
    "all numbers come again in the next step": _NUMBERS,
    "numbers of another chunk of steps": _NUMBERS,
    "the same numbers every turn": _NUMBERS,
    "penalties that do not advance along the draft": _NO_SETTING,
    "believe every cache removal": _HYBRID,
    "go on from the state of a decode that was stopped": _HYBRID,
    "let a hybrid draft go on from behind what was refused": _HYBRID,
    "take every sliding window for whole": _HYBRID,
    "propose ids beyond the shared ones": _SAME_WORDS,
    "propose renamed tokens": _SAME_WORDS,
    "replay with the draft's distribution alone": "policies alone use it: lossless, but slow",
    "a sampled draft is cut at a forbidden token": "the demo draft is masked, too: it has none",
    "a token across the boundary is not looked at": "it changes what may be said at all",
}
for _bug in BUGS:
    if _bug.name.startswith(("head:", "EAGLE:", "Medusa:", "DFlash")):
        NOT_BY_VERIFY[_bug.name] = _NO_HEAD
    elif _bug.name.startswith("another tokenizer:"):
        NOT_BY_VERIFY[_bug.name] = _SAME_WORDS

# What constrained answers are checked with; the others take no option.
SCHEMA = (
    '{"type": "string", "pattern": "^(fox|owl|whale|mouse|rain)( (a|the|fox|owl|sun)){30}$"}'
)


def is_noticed_by_verify(bug: Bug, folder: str) -> bool:
    """Whether `localspec verify` of the package in `folder` fails, or says not lossless."""
    command = [sys.executable, "-c", "from localspec.cli import main; main()", "verify"]
    if "Constraint" in bug.test or "constraint" in bug.test:
        (Path(folder) / "schema.json").write_text(SCHEMA, "utf-8")
        command += ["--json-schema", "schema.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("NOT lossless"):
        print((done.stdout or done.stderr).splitlines()[0])
    return done.returncode not in (0, exit_codes.NOT_ENOUGH_EVIDENCE)


def run_tests(folder: str, *tests: str) -> int:
    """pytest's exit code for the package in `folder`, with nothing imported from elsewhere."""
    found = [name for name, module in sys.modules.items() if is_replaced(name, module)]
    # Kept: libllama still calls functions of the package that was imported first.
    _forgotten.append([sys.modules.pop(name) for name in found])
    importlib.invalidate_caches()
    sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return pytest.main([*OPTIONS, *tests])
    finally:
        sys.path.remove(folder)


def is_replaced(name: str, module: ModuleType) -> bool:
    """Whether it belongs to the package or to the tests."""
    file = getattr(module, "__file__", None)
    return name.split(".")[0] == "localspec" or (
        file is not None and Path(file).is_relative_to(ROOT / "tests")
    )


def is_noticed_by_test(bug: Bug, folder: str) -> bool:
    """Whether its test fails for the package in `folder`."""
    code = run_tests(folder, bug.test)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"{bug.name}: pytest ended with {code} for {bug.test}")
    return code == pytest.ExitCode.TESTS_FAILED


def is_noticed(bug: Bug, folder: str, *, by_verify: bool) -> bool:
    """Whether it is noticed in the copy of the package that lies in `folder`."""
    place = Path(folder) / "localspec" / bug.file
    text, status = place.read_text("utf-8"), place.stat()
    if text.count(bug.old) != 1:
        sys.exit(f"{bug.name}: {bug.file} has its text {text.count(bug.old)} times")
    place.write_text(text.replace(bug.old, bug.new), "utf-8")
    noticed = (is_noticed_by_verify if by_verify else is_noticed_by_test)(bug, folder)
    place.write_text(text, "utf-8")
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))  # its bytecode is right again
    return noticed


def main() -> None:
    """Plant every bug, or those named."""
    by_verify, names = "--verify" in sys.argv, set(sys.argv[1:]) - {"--verify"}
    chosen = [bug for bug in BUGS if bug.name in names or not names]
    if by_verify:
        chosen = [bug for bug in chosen if bug.name not in NOT_BY_VERIFY]
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    if not by_verify and run_tests(
        str(PACKAGE.parent), *dict.fromkeys(bug.test for bug in chosen)
    ):
        sys.exit("the tests fail without a bug: run them, and install the package again")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder) / "localspec")  # with its bytecode
        for bug in chosen:
            started = time.monotonic()
            noticed = is_noticed(bug, folder, by_verify=by_verify)
            missed += not noticed
            took = f" ({time.monotonic() - started:.0f} s)" if by_verify else ""
            print(f"{'noticed' if noticed else 'MISSED '}  {bug.name}{took}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} bugs noticed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
