"""Makes a target, and a draft or a head for it, of real size and with chosen agreement.

    python scripts/measure/make_pair.py --target 1.5B --draft 0.5B --agreement 0.8 --out pairs
    python scripts/measure/make_pair.py --target 8B-llama --head apart --out pairs

The files cost what files of the models in shape_pair/shapes.py cost in that quantization, and
say invented words: see shape_pair. A head (MTP; EAGLE-3 for shapes of llama) is in the target's
file or, with --head apart, in one of its own; --head block is a DSpark head, which drafts a
block in one decode. --draft is left out then. Needs `pip install gguf`; a 7B target takes 5 GB
of disk and 4 GB of memory for two minutes. Files that are there already are kept; the same
options give the same bytes. Prints the paths. `localspec bench` says how often a drafted token
is kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from localspec.errors import LocalspecError
from shape_pair.bigrams import MAX_ENTROPY, TextSpec
from shape_pair.blocks import QUANTIZATIONS
from shape_pair.pair import HEADS, HeadSpec, PairSpec, make_pair, make_with_head
from shape_pair.shapes import SHAPES


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
    return made


def main() -> None:
    """Make what the command line asks for, and print the paths."""
    command_line = parser()
    asked = command_line.parse_args()
    kind = asked.quantization
    out = asked.out
    try:
        text = TextSpec(
            asked.entropy, tuple(asked.agreement), asked.segment, asked.period, asked.seed
        )
        if asked.head:
            target, head = make_with_head(HeadSpec(asked.target, kind, text, asked.head), out)
            print(f"target {target}\nhead   {head or target}")
        else:
            kinds = kind, asked.draft_quantization or kind
            target, draft = make_pair(PairSpec(asked.target, asked.draft, *kinds, text), out)
            print(f"target {target}\ndraft  {draft}")
    except LocalspecError as error:
        command_line.exit(1, f"Error: {error}\nHint: {error.hint}\n")


if __name__ == "__main__":
    main()
