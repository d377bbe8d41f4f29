"""The models that an engine owns, their memory, and the limits of caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from localspec.errors import CacheError, OptionError, is_whole
from localspec.gguf_file.file_content import require_unwritten
from localspec.pictures.cells import LAST_CELL

if TYPE_CHECKING:
    from localspec.llama.head import LlamaHead
    from localspec.llama.medusa import MedusaHeads
    from localspec.llama.model import LlamaModel
    from localspec.llama.projector import PicturePart
    from localspec.planning.free_memory import PairMemory
    from localspec.streaming.answer_text import Prompt


class Models(NamedTuple):
    """A target, and what may draft for it."""

    target: LlamaModel
    draft: LlamaModel | None
    head: LlamaHead | MedusaHeads | None
    memory: PairMemory | None = None
    """The memory that they take, if all were opened from files."""

    @property
    def saved(self) -> list[LlamaModel]:
        """Models whose caches are kept while texts wait; a head soon fills its cache again."""
        if self.draft is None:
            return [self.target]
        return [self.target, self.draft]

    @property
    def all(self) -> list[LlamaModel | LlamaHead | MedusaHeads]:
        """All models, in the order in which they are opened."""
        heads = [] if self.head is None else [self.head]
        return [*self.saved, *heads]

    def show(self, prompt: Prompt) -> list[PicturePart]:
        """Load the pictures of a prompt. They stay loaded as long as the returned parts live.

        Raises OptionError if the target does not see, or the prompt lacks a picture.
        """
        vision = self.target.vision
        tokens = prompt.tokens
        parts: list[PicturePart] = []
        if vision is not None:
            parts = vision.load_parts(prompt.pictures)
        elif prompt.pictures or min(tokens, default=0) <= LAST_CELL:
            raise OptionError(
                f"the prompt has pictures, and {self.target.name} was loaded without a "
                "projector for them",
                "Load it with mmproj=….",
            )
        if self.readable(tokens)[0] != tokens:
            raise OptionError(
                "the prompt has the cells of a picture that was not given",
                "Give the pictures with it.",
            )
        if tokens and tokens[-1] <= LAST_CELL:
            raise OptionError("the prompt ends with a picture", "Put text after it.")
        return parts

    def readable(self, tokens: list[int]) -> tuple[list[int], list[PicturePart]]:
        """The beginning of a text whose pictures are loaded, as long as the parts live."""
        if self.target.vision is None:
            return tokens, []
        count, parts = self.target.vision.readable(tokens)
        return tokens[:count], parts

    def require_unwritten(self) -> None:
        """Raise ModelFileError if a mapped file was written to."""
        for model in self.all:
            require_unwritten(model.mapped)

    def close(self) -> None:
        """Free all models. Idempotent."""
        if self.target.vision is not None:
            self.target.vision.close()
        for model in reversed(self.all):  # a head before its target
            model.close()

    def sibling(self, number: int) -> Models:
        """Views of these models at another sequence, for another text."""
        target = self.target.sibling(number)
        draft = None
        if self.draft is not None:
            draft = self.draft.sibling(number)
        head = None
        if self.head is not None:
            head = self.head.sibling(number, target)
        return Models(target, draft, head, self.memory)

    def identities(self, scales: Sequence[float] = ()) -> list[str]:
        """Identities of the saved models.

        Args:
            scales: The scales of the target's adapters.

        Raises:
            CacheError: If the file of a model was removed or changed.
        """
        identities = []
        count = self.num_sequences
        sequences = ""
        if count > 1:  # libllama's states depend on it
            sequences = f" · {count} sequences"
        for model in self.saved:
            identity = model.identity
            if model is self.target:
                identity = model.identity_under(scales)
            if identity is None:
                raise CacheError(
                    f"the file of {model.name} was removed or changed while it was loaded, so "
                    "its caches could be mistaken for another model's",
                    "Load it again from a file that does not change.",
                )
            identities.append(identity + sequences)
        return identities

    @property
    def num_sequences(self) -> int:
        """Texts that every context can hold side by side."""
        return min(model.num_sequences for model in self.all)


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory of an open engine, in bytes."""

    models: PairMemory | None
    """Weights, caches and buffers of target, draft and head for the whole context, estimated
    from their files' headers; None if an application's own `Llama` is among them."""

    kept_bytes: int
    """Main memory of the caches of conversations that wait, which `free_kept` frees."""

    most_kept_bytes: int
    """The most that these caches may take."""


class CacheDisk(NamedTuple):
    """Limit of an engine's caches on disk."""

    num_bytes: int
    """The limit; 0 keeps none."""

    owner: str = ""
    """The owner of the texts; texts of other owners are never used."""

    @classmethod
    def of(cls, value: int | CacheDisk) -> CacheDisk:
        """Check the argument of `load`. Raises OptionError for anything but 0 or more."""
        disk = value
        if not isinstance(disk, CacheDisk):
            disk = cls(disk)
        if not (is_whole(disk.num_bytes, 0) and isinstance(disk.owner, str)):
            raise OptionError(f"cache_disk is {value!r}", "Give bytes: 0 (none) or more.")
        return disk


class CacheRoom(NamedTuple):
    """Limits for the caches of conversations that wait."""

    memory_bytes: int
    disk: CacheDisk = CacheDisk(0)
