"""Makes a target, and a draft or a head for it, of real size and with chosen agreement.

    python scripts/measure/make_pair.py --target 1.5B --draft 0.5B --agreement 0.8 \\
        --out pairs --check
    python scripts/measure/make_pair.py --target 4B-qwen35 --head inside --agreement 0.8 \\
        --out pairs --check
    python scripts/measure/make_pair.py --target 8B-llama --head apart --agreement 0.8 \\
        --out pairs --check
    python scripts/measure/make_pair.py --target 8B-llama --head block --agreement 0.8 \\
        --out pairs --check

The files cost what files of the models in shape_pair/shapes.py cost in that quantization, and
say invented words: see shape_pair. A head (MTP; EAGLE-3 for shapes of llama) is in the target's
file or, with --head apart, in one of its own; --head block is a DSpark head, which drafts a
block in one decode. --draft is left out then. Needs `pip install gguf`; a 7B target takes 5 GB
of disk and 4 GB of memory for two minutes. Files that are there already are kept; the same
options give the same bytes. Prints the paths, and with --check what the pair was measured to
do.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from localspec.errors import LocalspecError
from shape_pair.bigrams import MAX_ENTROPY, TextSpec
from shape_pair.blocks import QUANTIZATIONS
from shape_pair.check import measure_draft, measure_head
from shape_pair.pair import HEADS, PairSpec, head_spec, make_pair, make_with_head
from shape_pair.shapes import SHAPES
from shape_pair.vocabulary import invent


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description="Make a pair of GGUF files of real shape for measuring speed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = made.add_argument
    add("--target", choices=SHAPES, default="1.5B", help="shape of the target")
    drafting = made.add_mutually_exclusive_group().add_argument
    drafting("--draft", choices=SHAPES, default="0.5B", help="shape of the draft")
    where = "no draft, but a head in the target's file or in one of its own, or a DSpark head"
    drafting("--head", choices=HEADS, help=where)
    add("--quantization", choices=QUANTIZATIONS, default="Q4_0", help="of the target")
    add("--draft-quantization", choices=QUANTIZATIONS, help="of the draft (default: the same)")
    share = "chance that a drafted token is kept; several take turns along the text"
    add("--agreement", type=float, nargs="+", default=[0.8], metavar="SHARE", help=share)
    add("--segment", type=int, default=64, help="tokens that each of several agreements lasts")
    entropy = f"of the next token at temperature 1, in nats, 0 to {MAX_ENTROPY:g}"
    add("--entropy", type=float, default=1.0, help=entropy)
    add("--period", type=int, help="greedy text repeats after so many tokens (default: never)")
    add("--seed", type=int, default=1, help="another seed makes another pair")
    add("--out", type=Path, required=True, help="the folder that gets the files")
    add("--check", action="store_true", help="load the pair and measure what was asked for")
    return made


def with_draft(asked: argparse.Namespace, text: TextSpec) -> dict[str, float]:
    """Make target and draft, and print the paths; what --check measures."""
    kinds = asked.quantization, asked.draft_quantization or asked.quantization
    target, draft = make_pair(PairSpec(asked.target, asked.draft, *kinds, text), asked.out)
    print(f"target {target}\ndraft  {draft}")
    if not asked.check:
        return {}
    words = invent(SHAPES[asked.target].num_ordinary).words
    return asdict(measure_draft(target, draft, words, asked.seed))


def with_head(asked: argparse.Namespace, text: TextSpec) -> dict[str, float]:
    """As `with_draft`, for a head."""
    spec = head_spec(asked.target, asked.quantization, text, asked.head)
    target, head = make_with_head(spec, asked.out)
    print(f"target {target}\nhead   {head or target}")
    return asdict(measure_head(target, head, asked.seed)) if asked.check else {}


def main() -> None:
    command_line = parser()
    asked = command_line.parse_args()
    try:
        text = TextSpec(
            asked.entropy, tuple(asked.agreement), asked.segment, asked.period, asked.seed
        )
        figures = with_head(asked, text) if asked.head else with_draft(asked, text)
        for name, value in figures.items():
            print(f"{name:12} {value:.3f}")
    except LocalspecError as error:
        command_line.exit(1, f"Error: {error}\nHint: {error.hint}\n")


if __name__ == "__main__":
    main()
