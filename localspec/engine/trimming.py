"""Makes trimmed drafts and heads: chooses the tokens that they may propose.

Vocabularies are made so that frequent tokens have low ids: byte-pair encoding numbers its
merges in the order of their frequency. Texts say better what one writes oneself, and memories
what models answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from localspec.engine.memory_file import remembered_tokens
from localspec.errors import ModelFileError, OptionError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.trimmed import DEFAULT_TOKENS
from localspec.gguf_file.trimming import (
    output_bytes,
    trimmed_path,
    why_not_trimmed,
    write_trimmed,
)


class TrimReport(NamedTuple):
    """What was made. output_bytes: of the whole output layer; trimmed_bytes: of what is left.

    num_seen: different tokens of texts and memories that are among the chosen.
    """

    path: Path
    num_tokens: int
    num_all: int
    num_seen: int
    output_bytes: int
    trimmed_bytes: int


def trim(
    model: Path,
    *,
    num_tokens: int = DEFAULT_TOKENS,
    texts: Iterable[str] = (),
    out: Path | None = None,
) -> TrimReport:
    """Write a copy of a draft or a head that proposes so many tokens only.

    model: a draft's file, an EAGLE-3 head's, or one with an MTP head, whose output layer then
    is a file beside it. texts: their tokens are chosen first, the most frequent ones before
    others, together with those of all memories on disk that have the same tokenizer. out: for
    another place. Raises ModelFileError for a file that cannot be trimmed, OptionError for a
    number of tokens that leaves nothing out, CacheError for a damaged memory.
    """
    header = check_model_file(model)
    if why_not := why_not_trimmed(header):
        raise ModelFileError(
            f"{model} cannot be trimmed: {why_not}",
            "Name a draft's file, an EAGLE-3 head's, or one with an MTP head.",
        )
    num_all = len(header.tokens)
    if not 0 < num_tokens < num_all:
        raise OptionError(
            f"{num_tokens} tokens of {num_all} are to stay",
            f"Choose num_tokens=N below {num_all}.",
        )
    ids, num_seen = _chosen(model, num_all, num_tokens, texts)
    path = trimmed_path(header) if out is None else out
    write_trimmed(header, ids, path)
    whole = output_bytes(header)
    return TrimReport(path, len(ids), num_all, num_seen, whole, whole * len(ids) // num_all)


def _chosen(
    model: Path, num_all: int, num_tokens: int, texts: Iterable[str]
) -> tuple[Sequence[int], int]:
    """The tokens that stay, and how many of them are in texts and memories."""
    from localspec.llama.vocabulary_file import opened_vocabulary  # loads libllama

    counts: Counter[int] = Counter()
    with opened_vocabulary(model) as vocabulary:
        for text in texts:
            counts.update(vocabulary.tokenize(text, parse_special=False))
        for tokens in remembered_tokens(vocabulary):
            counts.update(tokens)
        # An answer ends by one of them.
        always = [*vocabulary.ends(), *vocabulary.control_ids()]
    seen = [token for token, _count in counts.most_common()]
    # In this order, each once.
    ordered = dict.fromkeys(chain(always, seen, range(num_all)))
    ids = list(ordered)[:num_tokens]
    return ids, len(counts.keys() & set(ids))
