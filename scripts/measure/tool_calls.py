"""Checks calls of tools by really trained models, in the forms of any chat templates.

    python scripts/measure/tool_calls.py MODEL.gguf … --templates llama.cpp/models/templates
    python scripts/measure/tool_calls.py MODEL.gguf --templates FOLDER --exact --seeds 4
    python scripts/measure/tool_calls.py MODEL.gguf --draft DRAFT.gguf --templates FOLDER \
        --only GLM-4.7-Flash deepseek-ai-DeepSeek-V3.1

For each model and template a copy of the model's file is written that has this template, used,
and deleted: TMPDIR needs room for one. The copy's model is asked for calls at temperature 1
without filters, where a small model would write almost anything: it must call, it chooses, and
it must call a tool that is named. The grammar keeps it to the template's form. Each seed is
answered plainly, with the lookup, and with a draft model if there is one; without thoughts
where the template has a switch for them.

Prints a table as Markdown, as far as it got also after Ctrl-C:

- runs: answers, the plain ones among them.
- calls that fit: those whose tool and arguments fit the tool's schema, of all whole calls.
- none, cut: answers that ended without a call, and those that were cut off. An answer that has
  to call a tool is never among the first.
- same: drafted answers that are the plain one, token by token.
- gap: by how many logits the plain answer's token was ahead of the drafted answer's, in the
  seed's draw, where the two first differ; the widest. Rounding explains a part of a logit
  (docs/lossless.md); with --exact nothing may differ.

Needs the extras grammar and test. Exit code 1: a call does not fit, an answer that has to call
ended without one, or a text differs by more than rounding explains.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import jsonschema
import numpy as np
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

sys.path.append(str(Path(__file__).resolve().parents[1] / "compare"))

import localspec
from comparison.options import positive, run
from localspec.chat.call_forms import tools_of
from localspec.errors import OptionError
from localspec.speculative.randomness import Randomness

# One of each form that models of some family write.
TEMPLATES = (
    "Apertus-8B-Instruct",
    "ByteDance-Seed-OSS",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "GLM-4.6",
    "GLM-4.7-Flash",
    "HuggingFaceTB-SmolLM3-3B",
    "LFM2-8B-A1B",
    "LFM2.5-8B-A1B",
    "MiniMax-M2",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "Qwen3-Coder",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-4-31B-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "meetkai-functionary-medium-v3.1",
    "meta-llama-Llama-3.1-8B-Instruct",
    "moonshotai-Kimi-K2",
    "openai-gpt-oss-120b",
    "tencent-Hy3",
)
PLACE = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
    "required": ["street"],
    "additionalProperties": False,
}
# The first has texts, in which a small model goes on at temperature 1 until it is cut off.
TOOLS: Sequence[Mapping[str, Any]] = (
    {
        "name": "book_table",
        "description": "Books a table in a restaurant.",
        "parameters": {
            "type": "object",
            "properties": {
                "restaurant": {"type": "string"},
                "guests": {"type": "integer"},
                "place": {"$ref": "#/$defs/place"},
                "wishes": {"type": "array", "items": {"enum": ["window", "quiet", "garden"]}},
            },
            "required": ["restaurant", "guests"],
            "additionalProperties": False,
            "$defs": {"place": PLACE},
        },
    },
    {
        "name": "set_lamp",
        "description": "Sets how bright a lamp is.",
        "parameters": {
            "type": "object",
            "properties": {
                "level": {"enum": [0, 25, 50, 100]},
                "is_warm": {"type": "boolean"},
                "room": {"enum": ["kitchen", "hall", None]},
            },
            "required": ["level", "is_warm"],
            "additionalProperties": False,
        },
    },
    {
        "name": "read_clock",
        "description": "Says what time it is.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
)
SCHEMAS: Mapping[str, Mapping[str, Any]] = {tool["name"]: tool["parameters"] for tool in TOOLS}
CHOICES: Mapping[str, str] = {
    "required": "A quiet table for four at Luigi's, 12 Mill Lane, please.",
    "auto": "Call a tool: make the lamp in the kitchen half as bright, and warm.",
    "set_lamp": "It is too dark in here.",
}
PLAIN = "plain"
_ITSELF = Path()  # stands for the model as its own draft
_CONTEXT = 8192  # templates with long instructions take 2 000 tokens
_NUM_TOP = 8192  # likeliest tokens, among which the token of another answer is looked for
_ROUNDING = 1.0  # logits that two tokens may move towards each other: half of it each


@dataclass(slots=True)
class Row:
    """A line of the table."""

    num_runs: int = 0
    num_calls: int = 0
    num_fit: int = 0

    num_none: int = 0
    """Answers that ended without a call."""

    num_lacking: int = 0
    """Those of them that had to call."""

    num_cut: int = 0
    num_compared: int = 0
    num_same: int = 0

    widest_gap: float = 0.0
    """In logits, see `gap_between`."""

    def is_good(self, *, exact: bool) -> bool:
        """Whether nothing here is a fault."""
        all_fit = self.num_fit == self.num_calls and not self.num_lacking
        is_same = self.num_same == self.num_compared
        return all_fit and (is_same or (not exact and self.widest_gap <= _ROUNDING))

    def add(self, reply: localspec.Reply, choice: str) -> None:
        """Count an answer."""
        self.num_runs += 1
        self.num_calls += len(reply.tool_calls)
        self.num_fit += sum(fits(call, choice) for call in reply.tool_calls)
        if reply.finish_reason == "length":
            self.num_cut += 1
        elif not reply.tool_calls:
            self.num_none += 1
            self.num_lacking += choice != "auto"

    def compare(self, plain: localspec.Reply, drafted: localspec.Reply) -> bool:
        """Count whether a drafted answer is the plain one, and say so."""
        self.num_compared += 1
        is_same = plain.token_ids == drafted.token_ids
        self.num_same += is_same
        return is_same

    def cells(self) -> list[str]:
        """What stands in the table."""
        has_differing = self.num_same < self.num_compared
        return [
            str(self.num_runs),
            f"{self.num_fit} of {self.num_calls}",
            f"{self.num_none}, {self.num_cut}",
            f"{self.num_same} of {self.num_compared}",
            f"{self.widest_gap:.3f}" if has_differing else "",
        ]


def fits(call: localspec.ToolCall, choice: str) -> bool:
    """Whether a call is one of a tool that may be called, with arguments that fit it."""
    if call.name not in SCHEMAS or (choice in SCHEMAS and call.name != choice):
        return False
    try:
        jsonschema.validate(call.arguments, SCHEMAS[call.name])
    except jsonschema.ValidationError:
        return False
    return True


def gap_between(plain: localspec.Reply, drafted: localspec.Reply, seed: int) -> float:
    """How far the plain answer's token was ahead where two answers first differ, in logits.

    In the draw: the logarithm of each token's probability, and the seed's noise. 0 if they do
    not differ. Infinite if one only ends earlier, or if the other's token is unlikely.
    """
    if plain.token_ids == drafted.token_ids:
        return 0.0
    pairs = zip(plain.token_ids, drafted.token_ids, strict=False)
    index = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if index is None or plain.logprobs is None:
        return math.inf
    chosen = plain.token_ids[index]
    other = drafted.token_ids[index]
    after = {each.token_id: each.logprob for each in plain.logprobs[index].top_after}
    after[chosen] = plain.logprobs[index].after
    if other not in after:
        return math.inf
    uniforms = Randomness(seed).noise(index, np.array([chosen, other]))
    scores = [
        after[token] - math.log(-math.log1p(-uniform))
        for token, uniform in zip((chosen, other), uniforms, strict=True)
    ]
    return scores[0] - scores[1]


@contextlib.contextmanager
def copy_with(reader: gguf.GGUFReader, template: str) -> Iterator[Path]:
    """A copy of a model's file with another chat template, as long as it is used."""
    field = reader.get_field(gguf.Keys.General.ARCHITECTURE)
    assert field is not None, "loading would fail"
    details = MetadataDetails(gguf.GGUFValueType.STRING, template)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "copy.gguf"
        writer = gguf.GGUFWriter(path, arch=field.contents(), endianess=reader.endianess)
        copy_with_new_metadata(reader, writer, {gguf.Keys.Tokenizer.CHAT_TEMPLATE: details}, [])
        yield path


def checked(
    path: Path, choices: Sequence[str], asked: argparse.Namespace
) -> Iterator[tuple[str, Row]]:
    """The rows of a copy."""
    keywords: dict[str, Any] = {"context_length": _CONTEXT, "exact": asked.exact or None}
    drafting: dict[str, Mapping[str, Any]] = {
        PLAIN: {"draft_tokens": 0},
        "lookup": {"proposer": "lookup"},
    }
    if asked.draft is not None:
        keywords["draft"] = path if asked.draft == _ITSELF else asked.draft
        drafting["draft"] = {"proposer": "draft", "draft_tokens": 3}
    with localspec.load(target=path, **keywords) as engine:
        for choice in choices:
            row = Row()
            for seed in range(asked.seeds):
                add_answers(row, engine, choice, seed, asked.tokens, drafting)
            yield choice, row


def add_answers(
    row: Row,
    engine: localspec.Engine,
    choice: str,
    seed: int,
    num_tokens: int,
    drafting: Mapping[str, Mapping[str, Any]],
) -> None:
    """Count the answers of a seed, the plain one first."""
    plain: localspec.Reply | None = None
    for how in drafting.values():
        reply = answer(engine, choice, seed, num_tokens, how)
        row.add(reply, choice)
        if plain is None:
            plain = reply
        elif not row.compare(plain, reply):
            listing = {**drafting[PLAIN], "logprobs": _NUM_TOP}
            again = answer(engine, choice, seed, num_tokens, listing)
            row.widest_gap = max(row.widest_gap, gap_between(again, reply, seed))


def answer(
    engine: localspec.Engine,
    choice: str,
    seed: int,
    num_tokens: int,
    drafting: Mapping[str, Any],
) -> localspec.Reply:
    """An answer that calls tools, or may."""
    question = [{"role": "user", "content": CHOICES[choice]}]
    return engine.generate(
        question,
        think=not engine.has_think_switch,
        tools=TOOLS,
        tool_choice=choice,
        sampling=localspec.SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
        seed=seed,
        max_tokens=num_tokens,
        **drafting,
    ).reply()


def measure(asked: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    sources = {name: source_of(asked.templates, name) for name in asked.only}
    print("| model | template | choice | runs | calls that fit | none, cut | same | gap |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    is_good = True
    for model in asked.models:
        reader = gguf.GGUFReader(model)
        for name, source in sources.items():
            known = tools_of(source)
            shown = name if known.are_shown else f"{name} (in words)"
            with copy_with(reader, source) as path:
                for choice, row in checked(path, asked.choices, asked):
                    cells = [model.stem, shown, choice, *row.cells()]
                    print(f"| {' | '.join(cells)} |", flush=True)
                    is_good = is_good and row.is_good(exact=asked.exact)
    if not is_good:
        raise OptionError("not all calls and texts are as they have to be", "See the table.")


def source_of(folder: Path, name: str) -> str:
    """A template of the folder. Raises OptionError if it is not there."""
    path = folder / f"{name}.jinja"
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}", "Give llama.cpp's folder.") from error


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("models", type=Path, nargs="+", metavar="MODEL", help="GGUF files")
    folder = "of templates, as models/templates in llama.cpp's source"
    add("--templates", type=Path, required=True, metavar="FOLDER", help=folder)
    add("--only", nargs="+", default=TEMPLATES, metavar="NAME", help="of files, without .jinja")
    add("--choices", nargs="+", default=tuple(CHOICES), choices=CHOICES, metavar="CHOICE")
    draft = "a draft model; without a FILE the model drafts for itself"
    add("--draft", type=Path, nargs="?", const=_ITSELF, metavar="FILE", help=draft)
    add("--exact", action="store_true", help="exact settings, see docs/lossless.md")
    add("--seeds", type=positive, default=2, help="of each choice (default: 2)")
    add("--tokens", type=positive, default=128, help="of an answer (default: 128)")
    run(parser, measure)


if __name__ == "__main__":
    main()
