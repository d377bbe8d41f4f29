"""A byte-level BPE vocabulary of Qwen's size, made of invented words.

A text of its words is one token a word and comes back from the tokenizer as it went in.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import gguf
import numpy as np
from numpy.typing import NDArray

from shape_pair.shapes import Shape

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SPACE = "Ġ"  # how byte-level BPE writes it


@dataclass(frozen=True)
class WordList:
    """texts: every token, in order. merges: "left right". words: ids of whole words."""

    texts: list[str]
    merges: list[str]
    words: NDArray[np.int64]


def invent(num_ordinary: int) -> WordList:
    """Bytes, then syllables, then words of two and three syllables: num_ordinary tokens."""
    syllables = [a + b for a, b in itertools.product("bdfghjklmnprstvz", "aeiou")]
    merges = [(syllable[0], syllable[1]) for syllable in syllables]
    first = [(_SPACE, syllable) for syllable in syllables]
    merges += first
    start = 256 + len(merges)
    stems = ["".join(pair) for pair in first]
    two = list(itertools.product(stems, syllables))
    merges += two
    three = itertools.product(map("".join, two), syllables)
    merges += itertools.islice(three, max(0, num_ordinary - 256 - len(merges)))
    merges = merges[: num_ordinary - 256]
    texts = [*_byte_texts(), *map("".join, merges)]
    return WordList(texts, [f"{a} {b}" for a, b in merges], np.arange(start, num_ordinary))


def _byte_texts() -> list[str]:
    """A printable character for each byte, in byte-level BPE's order of ids.

    Bytes that print as Latin-1 stand for themselves; the others are moved up after it.
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [*map(chr, printing), *(chr(0x100 + i) for i in range(256 - len(printing)))]


def add_tokenizer(writer: gguf.GGUFWriter, shape: Shape, words: WordList) -> None:
    """Write the tokenizer's part of the header, padded to the shape's vocabulary."""
    padding = range(shape.num_ordinary + len(CONTROL), shape.vocab_size)
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*words.texts, *CONTROL, *(f"[PAD{i}]" for i in padding)])
    writer.add_token_types(
        [kinds.NORMAL] * shape.num_ordinary
        + [kinds.CONTROL] * len(CONTROL)
        + [kinds.UNUSED] * len(padding)
    )
    writer.add_token_merges(words.merges)
    writer.add_bos_token_id(shape.num_ordinary)
    writer.add_eos_token_id(shape.num_ordinary + CONTROL.index("<|im_end|>"))
    writer.add_pad_token_id(shape.num_ordinary)
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(CHAT_TEMPLATE)
