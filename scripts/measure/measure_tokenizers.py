"""How a draft with another tokenizer does on real prompts: acceptance, identity, cost.

    python scripts/measure/measure_tokenizers.py T.gguf D.gguf humaneval.jsonl mt-bench.jsonl

Files of prompts are as for `count_identical.py`. Each prompt is answered greedily with exact
settings by the target alone, and with the draft; the texts are compared token by token. Then
the draft is asked at each place of the answer which token it finds likeliest: the share that is
the target's is its acceptance at temperature 0. Beside it stands the share of the answers'
tokens that the draft has, too: nobody could accept more. A decode of the target and a row of
the draft are timed in turn there, in seconds of processor time with one thread, so that other
programs hardly matter. From that and v(n) of some machines follows what
there is to gain.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from count_identical import read_prompts

import localspec
from localspec.chat.template import BUILT_IN, ChatTemplate
from localspec.engine.engine import Engine
from localspec.gguf_file.check import check_model_file
from localspec.policy.speedup import Curve, best_draft_tokens, expected_speedup
from localspec.sampling.distribution import Logits
from localspec.speculative.translated import TranslatedDraft

# v(1), v(2) … as measured on each.
MACHINES = {
    "EPYC, 1.5B": (1.0, 1.40, 1.73, 2.39, 2.54, 2.98),
    "EPYC, 7B": (1.0, 1.92, 2.73, 2.73, 3.94, 4.51, 5.10, 5.18, 5.93),
    "Xeon, 7B": (1.0, 1.53, 1.84, 0.93, 1.57, 1.84, 2.29, 1.85, 2.21),
    "a decode that costs the same up to 9 tokens": (1.0,) * 9,
}
_CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_BARE = "{% for message in messages %}{{ message.content + '\n' }}{% endfor %}"
_EVERY = 4  # places: where the target is timed


@dataclass
class Found:
    """Of the answers to one file of prompts.

    target_s, draft_s: of one token each. overhead_s: of a draft's token but for its decode.
    """

    num_texts: int = 0
    num_same: int = 0
    num_places: int = 0
    num_agreed: int = 0
    num_common: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    target_s: list[float] = field(default_factory=list)
    draft_s: list[float] = field(default_factory=list)
    overhead_s: list[float] = field(default_factory=list)


class DecodeClock:
    """Adds up what the draft's own decodes take, so that the rest is known."""

    def __init__(self, draft: TranslatedDraft) -> None:
        self.seconds = 0.0
        self._model = draft.translated.own_model
        self._decode = self._model.decode
        self._model.decode = self._timed  # type: ignore[method-assign]

    def _timed(self, tokens: Sequence[int], num_logits: int) -> Logits:
        started = time.process_time()
        rows = self._decode(tokens, num_logits)
        self.seconds += time.process_time() - started
        return rows

    def stop(self) -> None:
        """Leave the model as it was."""
        self._model.decode = self._decode  # type: ignore[method-assign]


def look(
    engine: Engine, prompt: list[int], answer: list[int], found: Found, *, times: bool = True
) -> None:
    """Ask the draft at each place of the answer but the first, which it never drafts.

    prompt: what the draft reads in front of it, in the target's tokens. times: whether the
    target is timed beside it.
    """
    whole = [*prompt, *answer]
    with engine.exclusively() as loop:
        draft = next(p for p in loop.proposers if isinstance(p, TranslatedDraft))
        draft.truncate(0)
        clock = DecodeClock(draft)
        if times:
            loop.target.truncate(0)
            loop.target.decode(prompt, 0)
        for end in range(len(prompt) + 1, len(whole)):
            clock.seconds = 0.0
            started = time.process_time()
            draft.state(whole[:end])
            row = draft.rows(whole[:end], 1)[0]
            drafted = time.process_time()
            found.overhead_s.append(drafted - started - clock.seconds)
            if times and (end - len(prompt)) % _EVERY == 1:
                loop.target.truncate(len(prompt))
                timed = time.process_time()
                loop.target.decode([whole[end - 1]], 1)
                found.target_s.append(time.process_time() - timed)
                if end > len(prompt) + 1:  # then it reads the prompt
                    found.draft_s.append(drafted - started)
            found.num_places += 1
            found.num_agreed += int(row.argmax()) == whole[end]
            found.num_common += bool(row[whole[end]] > -np.inf)
        clock.stop()


def ask(
    engine: Engine, text: str, max_tokens: int, draft_tokens: int, found: Found
) -> list[int]:
    """Answer a prompt without and with the draft, and look at the answer, which is returned."""
    prompt = engine.tokenize(_CHAT.format(text), special=True)
    options = {"temperature": 0, "max_tokens": max_tokens}
    plain = engine.generate_raw(prompt, draft_tokens=0, **options).reply()
    asked = {"proposer": "draft", "draft_tokens": draft_tokens}
    drafted = engine.generate_raw(prompt, **asked, **options).reply()
    found.num_texts += 1
    found.num_same += plain.token_ids == drafted.token_ids
    found.num_drafted += drafted.stats.num_draft_tokens
    found.num_accepted += drafted.stats.num_accepted
    answer = list(plain.token_ids)
    look(engine, prompt, answer, found)
    return answer


def question_forms(draft: Path, names: Sequence[str]) -> dict[str, Callable[[str], str]]:
    """How the draft is to read a question, by name: "own" is its template's form."""
    metadata = check_model_file(draft).metadata
    sources = {
        **BUILT_IN,
        "own": str(metadata.get("tokenizer.chat_template", "")),
        "bare": _BARE,
    }
    templates = {name: ChatTemplate(sources[name], bos="", eos="") for name in names}
    return {
        name: functools.partial(lambda one, text: one.render([_asked(text)]), template)
        for name, template in templates.items()
    }


def _asked(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def show_form(name: str, found: Found) -> None:
    """Print how often the draft was right with that form in front."""
    print(f"  read as {name}: acceptance {found.num_agreed / found.num_places:.3f}")


def show(name: str, found: Found) -> None:
    """Print what was found."""
    cost = statistics.median(found.draft_s) / statistics.median(found.target_s)
    overhead_us = 1e6 * statistics.median(found.overhead_s)
    acceptance, common = (n / found.num_places for n in (found.num_agreed, found.num_common))
    print(
        f"{name}: {found.num_same} of {found.num_texts} texts the same; acceptance "
        f"{acceptance:.3f} at {found.num_places} places, {common:.3f} of them of tokens that "
        f"both have; {found.num_accepted} of {found.num_drafted} drafted tokens accepted; a "
        f"draft token costs {cost:.3f} of a target's, {overhead_us:.0f} µs of it for aligning "
        f"and renaming"
    )
    for machine, steps in MACHINES.items():
        curve = Curve((0.0, *steps), cost)
        best = best_draft_tokens(curve, acceptance, len(steps) - 1)
        gain = expected_speedup(curve, acceptance, best)
        print(f"  {machine}: best with {best} draft tokens, {gain:.2f} times plain decoding")


def main() -> None:
    """Measure for the models and prompts that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--prompts-per-file", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--draft-tokens", type=int, default=3)
    parser.add_argument("--read-as", nargs="*", default=(), choices=("own", "bare", *BUILT_IN))
    asked = parser.parse_args()
    forms = question_forms(Path(asked.draft), asked.read_as)
    with localspec.load(
        target=asked.target, draft=asked.draft, exact=True, num_threads=1, context_length=4096
    ) as engine:
        print(engine.shared_vocabulary)
        for path in asked.prompts:
            found, with_forms = Found(), {name: Found() for name in forms}
            for text in read_prompts(path, asked.prompts_per_file):
                answer = ask(engine, text, asked.max_tokens, asked.draft_tokens, found)
                for name, form in forms.items():
                    read = engine.tokenize(form(text), special=True)
                    look(engine, read, answer, with_forms[name], times=False)
            show(path.name, found)
            for name, one in with_forms.items():
                show_form(name, one)


if __name__ == "__main__":
    main()
