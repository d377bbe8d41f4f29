"""Drafts and heads whose output layer knows only some of the tokens: what their files say.

The output layer is most of what a small draft or a head reads for a token. A law over some of
the tokens is as good to verify as one over all, so a file may hold the rows of those alone. To
libllama it is a model of so many tokens, which is given embeddings in place of ids: so it reads
every token, and proposes those. The layout is ours:

- a GGUF file of the draft's architecture, with its metadata and tokenizer, whose
  `token_embd.weight` and `output.weight` have the rows of the tokens that it proposes;
- `localspec.trimmed.tokens`: how many those are; `localspec.trimmed.kind`: ggml's number of
  the type of the embeddings of all tokens;
- behind the tensors, `localspec.bytes_behind_tensors`: the ids of those tokens (int32), then
  the embeddings of all tokens, as they were in the draft's file.

The output layer of an MTP head is a file of its own, beside the one that has the head: a
`llama` of one layer that changes nothing, with no embeddings behind its ids.
`localspec.trimmed.spared_bytes` is the size of the whole output layer.

`localspec.trimmed.source` is a hash of the content of the file that a trimmed one was made of
(`content`): it lies beside that file, and is not taken for another's.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf_file.content import FileContent
from localspec.gguf_file.header import BEHIND, Header, read_header
from localspec.gguf_file.tensor_types import row_bytes

NUM_TOKENS = "localspec.trimmed.tokens"
KIND = "localspec.trimmed.kind"
SOURCE = "localspec.trimmed.source"
SPARED_BYTES = "localspec.trimmed.spared_bytes"
DEFAULT_TOKENS = 32768  # of a trimmed file, if nobody says
_HEAD_ENDING, _COPY_ENDING = ".trimmed-head.gguf", "-trimmed.gguf"
_OF_OUTPUT = " tokens"


def num_proposed(header: Header) -> int | None:
    """How many tokens a trimmed draft proposes; None if the file is no trimmed draft."""
    return header.number(NUM_TOKENS) or None


def proposed_ids(header: Header) -> tuple[int, ...]:
    """The ids of the tokens that a trimmed file proposes, in the order of its rows."""
    count = header.number(NUM_TOKENS)
    with header.path.open("rb") as file:
        file.seek(header.size_bytes - header.number(BEHIND))
        return struct.unpack(f"<{count}i", file.read(4 * count))


def trimmed_fault(header: Header) -> str:
    """What is wrong with a trimmed draft's file, in words; empty if nothing is."""
    count = header.number(NUM_TOKENS)
    behind, num_all = header.number(BEHIND), len(header.tokens)
    width = header.number(f"{header.architecture}.embedding_length")
    wanted = 4 * count + row_bytes(header.number(KIND), width) * num_all
    if behind != wanted or wanted == 4 * count:
        return f"{behind} bytes are behind its tensors, not {wanted}"
    return _row_fault(header, width, num_all)


def _row_fault(header: Header, width: int, num_all: int) -> str:
    """What is wrong with the rows of the tokens, of num_all, that a trimmed file proposes."""
    count, ids = header.number(NUM_TOKENS), proposed_ids(header)
    if min(ids) < 0 or max(ids) >= num_all or len(set(ids)) < count:
        return f"it proposes tokens {min(ids)} to {max(ids)} of {num_all}"
    for name in ("token_embd.weight", "output.weight"):
        tensor = header.by_name().get(name)
        if tensor is not None and tensor.shape != (width, count):
            return f"its {name} has the shape {tensor.shape}, not {(width, count)}"
    return ""


def head_output_path(path: Path) -> Path:
    """Where the trimmed output layer of the head in a file is looked for."""
    return path.with_name(f"{path.stem}{_HEAD_ENDING}")


def copy_path(path: Path) -> Path:
    """Where the trimmed copy of a draft's or a head's file is looked for."""
    return path.with_name(f"{path.stem}{_COPY_ENDING}")


def found_trimmed(path: Path) -> Header | None:
    """The header, not checked, of a trimmed file; None if there is none, or nobody trimmed it.

    Raises ModelFileError.
    """
    if not path.is_file():
        return None
    found = read_header(path)
    return found if SOURCE in found.metadata else None


def trimmed_files(path: Path) -> list[Path]:
    """The trimmed files beside a model's."""
    found = []
    for beside in (copy_path(path), head_output_path(path)):
        with contextlib.suppress(ModelFileError):  # somebody else's
            if found_trimmed(beside) is not None:
                found.append(beside)
    return found


def is_beside_whole(path: Path) -> bool:
    """Whether a file is a trimmed one that lies beside the one it was made of, by its name."""
    for ending in (_HEAD_ENDING, _COPY_ENDING):
        if path.name.endswith(ending):
            whole = path.with_name(f"{path.name.removesuffix(ending)}.gguf")
            return whole.is_file() and path in trimmed_files(whole)
    return False


def is_made_of(trimmed: Header, source: Header) -> bool:
    """Whether a trimmed file was made of this very file, whose header was checked."""
    content = FileContent(source).digest()
    return content is not None and trimmed.metadata[SOURCE] == content


def output_setting(num_tokens: int) -> str:
    """What the identity of a head ends with whose output layer is trimmed."""
    return f" · {num_tokens}{_OF_OUTPUT}"


def is_of_output(identity: str) -> bool:
    """Whether a head's identity is of one with a trimmed output layer."""
    return identity.endswith(_OF_OUTPUT)


def checked_head_output(header: Header) -> Header | None:
    """The header of the trimmed output layer of a head, if there is one.

    header: of the file that has the head. Raises ModelFileError if it is damaged.
    """
    found = found_trimmed(head_output_path(header.path))
    if found is None:
        return None
    count, width = (
        found.number(NUM_TOKENS),
        header.number(f"{header.architecture}.embedding_length"),
    )
    fault = "it is not laid out as one"
    if found.architecture == "llama" and count and found.number(BEHIND) == 4 * count:
        fault = _row_fault(found, width, len(header.tokens))
    if fault:
        raise ModelFileError(
            f"{found.path} is damaged: {fault}", "Trim its model again, or delete it."
        )
    return found
