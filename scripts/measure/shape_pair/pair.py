"""A pair of files, made if they are not there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localspec.errors import OptionError
from shape_pair import blocks
from shape_pair.bigrams import Bigrams, TextSpec
from shape_pair.model_file import check_room, write_model
from shape_pair.shapes import SHAPES
from shape_pair.vocabulary import WordList, invent
from shape_pair.weights import make_ends


@dataclass(frozen=True, slots=True)
class PairSpec:
    """Names of SHAPES and QUANTIZATIONS for both models, and what their text is like."""

    target: str
    draft: str
    quantization: str
    draft_quantization: str
    text: TextSpec

    def __post_init__(self) -> None:
        if SHAPES[self.target].num_ordinary != SHAPES[self.draft].num_ordinary:
            raise OptionError(
                f"{self.target} and {self.draft} have different vocabularies",
                "The tiny shape goes with itself only.",
            )

    def target_name(self) -> str:
        """Says everything that the file depends on: not the agreement, so drafts share it."""
        return f"{self.target}-{self.quantization}-{self._text_name()}.gguf"

    def draft_name(self) -> str:
        shares = "-".join(f"{share:g}" for share in self.text.agreement)
        return (
            f"{self.draft}-{self.draft_quantization}-{self._text_name()}-agreement{shares}.gguf"
        )

    def _text_name(self) -> str:
        text = self.text
        turn = f"-turn{text.turn}" if text.turn > 1 else ""
        period = f"-period{text.period}" if text.period else ""
        return f"entropy{text.entropy:g}{turn}{period}-seed{text.seed}"


def make_pair(spec: PairSpec, folder: Path) -> tuple[Path, Path]:
    """The paths of target and draft in `folder`. Files that are there are kept.

    The same spec gives the same bytes. Raises OptionError if the disk is too small.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, draft = folder / spec.target_name(), folder / spec.draft_name()
    wanted = [
        (target, spec.target, spec.quantization),
        (draft, spec.draft, spec.draft_quantization),
    ]
    missing = [(SHAPES[shape], kind) for path, shape, kind in wanted if not path.exists()]
    check_room(folder, missing)
    words = invent(SHAPES[spec.target].num_ordinary)
    if not target.exists():
        _make(target, spec.target, spec.quantization, words, spec.text, is_draft=False)
    if not draft.exists():
        _make(draft, spec.draft, spec.draft_quantization, words, spec.text, is_draft=True)
    return target, draft


def _make(
    path: Path,
    shape_name: str,
    quantization: str,
    words: WordList,
    text: TextSpec,
    *,
    is_draft: bool,
) -> None:
    shape = SHAPES[shape_name]
    bigrams = Bigrams(text, words.words, shape.vocab_size)
    seed = 2 * text.seed + is_draft  # else the two models' weights would be the same
    head = blocks.fitting(blocks.head_kind(quantization), shape.width)
    followers = bigrams.draft_followers if is_draft else bigrams.target_followers
    ends = make_ends(seed, head, shape.width, shape.vocab_size, bigrams.logits, followers)
    write_model(path, shape, quantization, words, ends, seed)
