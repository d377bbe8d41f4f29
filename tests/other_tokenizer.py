"""Writes a model anew with a tokenizer of its own: the same network, other ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from model_writer import ModelWriter

_TOKENIZER = "tokenizer.ggml."


def write_renumbered(
    path: Path, source: Path, *, seed: int = 0, num_lost: int = 0, sentencepiece: bool = False
) -> Path:
    """A copy of a model of byte-level BPE whose ids are shuffled.

    num_lost: of its long tokens, how many have names that are no text. sentencepiece: with a
    tokenizer of that kind, which has byte tokens, begins texts with a token and a space, and
    knows no splits of words.
    """
    reader = gguf.GGUFReader(source)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    random = np.random.default_rng(seed)
    old = random.permutation(len(fields[_TOKENIZER + "tokens"]))  # by new id
    entries, kinds = _entries(source, fields, old, sentencepiece=sentencepiece)
    long = [place for place, kind in enumerate(kinds) if kind == 1 and len(entries[place]) > 2]
    for place in random.choice(long, num_lost, replace=False):
        entries[place], kinds[place] = f"[lost {place}]", 5
    if sentencepiece:
        entries[long[0]], kinds[long[0]] = "<0x20>", 6
    writer = ModelWriter(path, str(fields["general.architecture"]))
    _copy_fields(writer, reader, np.argsort(old))
    writer.add_token_list(entries)
    writer.add_token_types(kinds)
    writer.add_tokenizer_model("llama" if sentencepiece else "gpt2")
    if sentencepiece:
        writer.add_token_scores([-float(token) for token in old])
    else:
        writer.add_tokenizer_pre(str(fields[_TOKENIZER + "pre"]))
        writer.add_token_merges(fields[_TOKENIZER + "merges"])
        writer.add_add_bos_token(False)
    for tensor in reader.tensors:
        is_by_id = tensor.name in ("token_embd.weight", "output.weight")
        rows = tensor.data[old] if is_by_id else tensor.data
        writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
    writer.finish()
    return path


def _entries(
    source: Path, fields: dict[str, Any], old: NDArray[np.int64], *, sentencepiece: bool
) -> tuple[list[str], list[int]]:
    """The entries and their types, by new id."""
    pieces = HeaderVocabulary(check_model_file(source)).spelled_out()
    entries = [fields[_TOKENIZER + "tokens"][token] for token in old]
    kinds = [fields[_TOKENIZER + "token_type"][token] for token in old]
    if sentencepiece:
        for place, token in enumerate(old):
            if kinds[place] == 1:
                entries[place], kinds[place] = _as_sentencepiece(pieces[token], place)
    return entries, kinds


def _copy_fields(writer: ModelWriter, reader: gguf.GGUFReader, new: NDArray[np.int64]) -> None:
    """What the file states, with the new ids. new: by old id."""
    for key, field in reader.fields.items():
        is_own = key.startswith(_TOKENIZER) and key.rpartition(".")[2] in _REPLACED
        if not (key.startswith("GGUF.") or key == "general.architecture" or is_own):
            value = field.contents()
            if key.endswith("_token_id"):
                value = int(new[value])
            is_list = len(field.types) > 1
            kind = field.types[1] if is_list else None
            writer.add_key_value(key, value, field.types[0], kind)


_REPLACED = ("tokens", "token_type", "merges", "model", "pre", "add_bos_token")


def _as_sentencepiece(piece: bytes, place: int) -> tuple[str, int]:
    """An entry of such a vocabulary and its type."""
    if piece == b"\0":  # which ends an entry in C
        return "<0x00>", 6
    try:
        return piece.decode().replace(" ", "▁"), 1
    except UnicodeDecodeError:
        return (f"<0x{piece[0]:02X}>", 6) if len(piece) == 1 else (f"[part {place}]", 5)
