"""A target, and a draft or a head for it: files that are made if they are not there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localspec.errors import OptionError
from shape_pair import blocks
from shape_pair.bigrams import PHASES, Bigrams, TextSpec
from shape_pair.block_head import write_block_head
from shape_pair.eagle import write_eagle_head
from shape_pair.model_file import Contents, Parts, check_room, write_model
from shape_pair.shapes import SHAPES
from shape_pair.vocabulary import invent
from shape_pair.weights import make_ends, make_head_ends


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
                "Tiny shapes go with tiny ones only.",
            )
        if SHAPES[self.draft].has_head:
            raise OptionError(
                f"{self.draft} is a shape of targets", "Choose a draft of Qwen2.5's shapes."
            )

    def target_name(self) -> str:
        """Says everything that the file depends on: not the agreement, so drafts share it."""
        return f"{self.target}-{self.quantization}-{_text_name(self.target, self.text)}.gguf"

    def draft_name(self) -> str:
        text = _text_name(self.target, self.text)
        shares = _shares(self.text)
        return f"{self.draft}-{self.draft_quantization}-{text}-agreement{shares}.gguf"


HEADS = ("inside", "apart", "block")  # where a head is; a block's has a file of its own


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A target with a head. where: one of HEADS; of block it is a DSpark head."""

    target: str
    quantization: str
    text: TextSpec
    where: str

    @property
    def is_apart(self) -> bool:
        """Whether the head has a file of its own."""
        return self.where != "inside"

    @property
    def is_block(self) -> bool:
        return self.where == "block"

    def __post_init__(self) -> None:
        if not SHAPES[self.target].has_head:
            names = ", ".join(name for name, shape in SHAPES.items() if shape.has_head)
            raise OptionError(f"{self.target} has no head", f"Choose one of {names}.")
        if SHAPES[self.target].has_eagle and not self.is_apart:
            raise OptionError(
                f"the head of {self.target} is in a file of its own", "Choose --head apart."
            )
        if self.is_block and not SHAPES[self.target].has_eagle:
            raise OptionError(
                f"no block head is made for {self.target}", "Choose a shape of llama."
            )

    def target_name(self) -> str:
        text = _text_name(self.target, self.text)
        head = "" if self.is_apart else f"-head{_shares(self.text)}"
        return f"{self.target}-{self.quantization}-{text}{head}.gguf"

    def head_name(self) -> str:
        """The name of the head's own file."""
        text = _text_name(self.target, self.text)
        kind = "eagle3" if SHAPES[self.target].has_eagle else "mtp"
        kind = "dspark" if self.is_block else kind
        shares = _shares(self.text)
        return f"{kind}-{self.target}-{self.quantization}-{text}-agreement{shares}.gguf"


def make_pair(spec: PairSpec, folder: Path) -> tuple[Path, Path]:
    """The paths of target and draft in `folder`. Files that are there are kept.

    The same spec gives the same bytes. Raises OptionError if the disk is too small.
    """
    target = folder / spec.target_name()
    draft = folder / spec.draft_name()
    _make_missing(
        {
            target: Contents(SHAPES[spec.target], spec.quantization, Parts.TRUNK),
            draft: Contents(SHAPES[spec.draft], spec.draft_quantization, Parts.TRUNK),
        },
        spec.target,
        spec.text,
        draft,
    )
    return target, draft


def make_with_head(spec: HeadSpec, folder: Path) -> tuple[Path, Path | None]:
    """The paths of the target and of its head, None if that is in the target's file.

    As `make_pair`.
    """
    shape = SHAPES[spec.target]
    kind = spec.quantization
    target = folder / spec.target_name()
    head = folder / spec.head_name()
    if spec.is_apart:
        files = {
            target: Contents(shape, kind, Parts.TRUNK),
            head: Contents(shape, kind, Parts.BLOCK if spec.is_block else Parts.HEAD),
        }
    else:
        files = {target: Contents(shape, kind, Parts.WHOLE)}
    _make_missing(files, spec.target, spec.text, None)
    return target, head if spec.is_apart else None


def _make_missing(
    files: dict[Path, Contents], target: str, text: TextSpec, draft: Path | None
) -> None:
    """draft: the one among the files that is a draft model."""
    missing = {path: contents for path, contents in files.items() if not path.exists()}
    for path in missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_room(path.parent, list(missing.values()))
    for path, contents in missing.items():
        _make(path, contents, text, num_phases=_num_phases(target), is_draft=path == draft)


def _make(
    path: Path, contents: Contents, text: TextSpec, *, num_phases: int, is_draft: bool
) -> None:
    shape = contents.shape
    words = invent(shape.num_ordinary)
    bigrams = Bigrams(text, words.words, shape.vocab_size, num_phases)
    seed = 2 * text.seed + is_draft  # else the two models' weights would be the same
    kind = blocks.fitting(blocks.head_kind(contents.quantization), shape.width)
    if shape.has_head:
        # EAGLE-3 has an embedding of its own for what it drafts.
        with_head = contents.parts is not Parts.TRUNK and not shape.has_eagle
        ends = make_head_ends(seed, kind, shape, bigrams, with_head=with_head)
    else:
        followers = bigrams.draft_followers if is_draft else bigrams.target_followers
        ends = make_ends(seed, kind, shape.width, shape.vocab_size, bigrams.logits, followers)
    if contents.parts is Parts.BLOCK:
        write_block_head(path, shape, contents.quantization, words, bigrams, ends)
    elif shape.has_eagle and contents.parts is Parts.HEAD:
        write_eagle_head(path, shape, contents.quantization, words, bigrams, ends)
    else:
        write_model(path, contents, words, ends, seed)


def _num_phases(target: str) -> int:
    if SHAPES[target].has_head:
        return PHASES
    return 1


def _shares(text: TextSpec) -> str:
    return "-".join(f"{share:g}" for share in text.agreement)


def _text_name(target: str, text: TextSpec) -> str:
    turn = f"-turn{text.turn}" if text.turn > 1 else ""
    period = f"-period{text.period}" if text.period else ""
    phases = f"-phases{PHASES}" if _num_phases(target) > 1 else ""
    return f"entropy{text.entropy:g}{turn}{period}{phases}-seed{text.seed}"
