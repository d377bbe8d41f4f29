"""The models that an engine owns, their memory, and the limits of caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from localspec.errors import CacheError, OptionError, is_whole
from localspec.gguf_file.file_content import require_unwritten
from localspec.pictures.cells import HIGHEST_CELL

if TYPE_CHECKING:
    from localspec.llama.head import LlamaHead
    from localspec.llama.medusa import MedusaHeads
    from localspec.llama.model import LlamaModel
    from localspec.llama.projector import PicturePart
    from localspec.planning.free_memory import PairMemory
    from localspec.streaming.answer_text import Prompt


class Models(NamedTuple):
    """A target, and the models that draft for it: a draft, a head, or both."""

    target: LlamaModel
    draft: LlamaModel | None
    head: LlamaHead | MedusaHeads | None
    memory: PairMemory | None = None
    """The memory that they take; None unless all were opened from files."""

    @property
    def saved(self) -> list[LlamaModel]:
        """The models whose caches are kept while texts wait: all but the head.

        A head soon fills its cache again.
        """
        if self.draft is None:
            return [self.target]
        return [self.target, self.draft]

    @property
    def all(self) -> list[LlamaModel | LlamaHead | MedusaHeads]:
        """All models, in the order in which they are opened."""
        models: list[LlamaModel | LlamaHead | MedusaHeads] = [*self.saved]
        if self.head is not None:
            models.append(self.head)
        return models

    def show(self, prompt: Prompt) -> list[PicturePart]:
        """Load the pictures of a prompt. They stay loaded as long as the returned parts live.

        Raises OptionError if there are pictures and the target has no projector, if the prompt
        has cells of a picture that is not loaded, or if it ends with a picture.
        """
        vision = self.target.vision
        tokens = prompt.tokens
        parts: list[PicturePart] = []
        if vision is not None:
            parts = vision.load_parts(prompt.pictures)
        elif prompt.pictures or min(tokens, default=0) <= HIGHEST_CELL:
            raise OptionError(
                f"the prompt has pictures, and {self.target.name} was loaded without a "
                "projector for them",
                "Load it with mmproj=….",
            )
        readable, _ = self.readable(tokens)
        if readable != tokens:
            raise OptionError(
                "the prompt has the cells of a picture that was not given",
                "Give the pictures with it.",
            )
        if tokens and tokens[-1] <= HIGHEST_CELL:
            raise OptionError("the prompt ends with a picture", "Put text after it.")
        return parts

    def readable(self, tokens: list[int]) -> tuple[list[int], list[PicturePart]]:
        """The longest beginning of a text of which all pictures are loaded.

        Without a projector it is the whole text.

        Returns the beginning, and the parts of its pictures: they stay loaded as long as these
        parts live.
        """
        if self.target.vision is None:
            return tokens, []
        num_readable, parts = self.target.vision.readable(tokens)
        return tokens[:num_readable], parts

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
        """Views of these models at the sequence of that number, for another text."""
        target = self.target.sibling(number)
        draft = None
        if self.draft is not None:
            draft = self.draft.sibling(number)
        head = None
        if self.head is not None:
            head = self.head.sibling(number, target)
        return Models(target, draft, head, self.memory)

    def identities(self, scales: Sequence[float] = ()) -> list[str]:
        """The identities of the saved models, the target's first: see `LlamaModel.identity`.

        Args:
            scales: The scales of the target's adapters.

        Raises:
            CacheError: If the file of a model was removed or changed.
        """
        identities = []
        count = self.num_sequences
        suffix = ""
        if count > 1:  # libllama's states depend on the number of sequences
            suffix = f" · {count} sequences"
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
            identities.append(identity + suffix)
        return identities

    @property
    def num_sequences(self) -> int:
        """How many texts every context can hold side by side."""
        return min(model.num_sequences for model in self.all)


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory of an open engine, in bytes."""

    models: PairMemory | None
    """Weights, caches and buffers of target, draft and head for the whole context, estimated
    from their files' headers; None if an application's own `Llama` is among them."""

    kept_bytes: int
    """Main memory that the caches of waiting conversations take; `free_kept` frees them."""

    most_kept_bytes: int
    """The most that these caches may take."""


class CacheDisk(NamedTuple):
    """Limit of an engine's caches on disk."""

    num_bytes: int
    """The most bytes of all files together; 0 keeps none."""

    owner: str = ""
    """The owner of the texts; texts of other owners are never used."""

    @classmethod
    def of(cls, value: int | CacheDisk) -> CacheDisk:
        """The limit that `load` got as its argument `cache_disk`.

        Args:
            value: The limit, or its number of bytes.

        Raises:
            OptionError: If the number of bytes is not a whole number from 0 on, or the owner
                is not a text.
        """
        disk = value
        if not isinstance(disk, CacheDisk):
            disk = cls(disk)
        if not is_whole(disk.num_bytes, 0):
            raise OptionError(f"cache_disk is {value!r}", "Give bytes: 0 (none) or more.")
        if not isinstance(disk.owner, str):
            raise OptionError(f"the owner of cache_disk is {disk.owner!r}", "Give a text.")
        return disk


class CacheRoom(NamedTuple):
    """Limits for the caches of conversations that wait."""

    memory_bytes: int
    """The most bytes of main memory; 0 keeps none."""

    disk: CacheDisk = CacheDisk(0)
