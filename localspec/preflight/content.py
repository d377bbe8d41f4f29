"""Identifies models that an application opened, and what is kept of a model by its content."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import ModelFileError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.content import FileContent

if TYPE_CHECKING:
    from localspec.speculative.model import Model

logger = logging.getLogger(__name__)

_NUM_TRIED = 16  # tokens that an adopted model decodes


def content_of_adopted(model: Model, path: str) -> str | None:
    """A hash of the file at `path` and of the logits of an application's `model`.

    Adapters, control vectors and other settings of the application change the content of a
    cache, as does a file that was replaced since, and libllama reports none of that: so the
    logits after a few tokens count as well. The cache is emptied. None, and a reason in the
    log, as from `FileContent.digest`.
    """
    try:
        in_file = FileContent(check_model_file(Path(path))).digest()
    except ModelFileError as error:
        logger.warning("the loaded model cannot be identified by its file: %s", error)
        return None
    return None if in_file is None else f"{in_file} {_behaviour(model)}"


def are_of(identities: Sequence[str], contents: Sequence[str]) -> bool:
    """Whether the models with these identities are among those with these contents.

    identities, contents: the target's first; see `LlamaModel.identity`.
    """
    own = [identity.partition(" · ")[0] for identity in identities]
    return own[:1] == list(contents[:1]) and set(own) <= set(contents)


def _behaviour(model: Model) -> str:
    """A hash of the logits after tokens from all over the vocabulary."""
    count = min(_NUM_TRIED, model.vocab_size, model.context_length)
    tokens = [model.vocab_size * index // count for index in range(count)]
    row = model.decode(tokens, 1)
    model.truncate(0)
    return hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest()
