"""Makes trimmed drafts and heads: chooses the tokens that they may propose.

Vocabularies are made so that frequent tokens have low ids: byte-pair encoding numbers its
merges in the order of their frequency. Texts say better what one writes oneself, and memories
what models answered. Code has tokens that are frequent there and have high ids, such as long
indents, so the sources of Python's own library, which are on every machine, count as well.
"""

from __future__ import annotations

import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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

_MOST_USUAL, _MOST_OF_ONE = 1_500_000, 100_000  # characters of all usual texts, and of each


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


def _usual_texts() -> Iterator[str]:
    """Code, and prose about it: sources of Python's library; none in a frozen program."""
    library = Path(sysconfig.get_paths()["stdlib"])
    left = _MOST_USUAL
    for path in (library / "pydoc_data" / "topics.py", *sorted(library.glob("*.py"))):
        if left > 0 and path.is_file():
            text = path.read_text(encoding="utf-8", errors="ignore")[:_MOST_OF_ONE]
            left -= len(text)
            yield text


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
        usual: Counter[int] = Counter()
        for text in _usual_texts():
            usual.update(vocabulary.tokenize(text, parse_special=False))
    seen = [token for token, _count in counts.most_common()]
    common = [token for token, _count in usual.most_common(num_tokens // 2)]
    # In this order, each once.
    ordered = dict.fromkeys(chain(always, seen, common, range(num_all)))
    ids = list(ordered)[:num_tokens]
    return ids, len(counts.keys() & set(ids))
