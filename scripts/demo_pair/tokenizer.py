"""The pair's tokenizer: byte-level BPE cut as llama.cpp's `qwen2` pre-tokenizer cuts."""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

NUM_VOCAB = 4096
END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
SPECIAL = (END_OF_TEXT, IM_START, IM_END)  # ids 0, 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Copied from llama.cpp's LLAMA_VOCAB_PRE_TYPE_QWEN2, so that both cut text at the same places.
_QWEN2 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(texts: Iterator[str]) -> Tokenizer:
    """A tokenizer of exactly `NUM_VOCAB` entries with the whole byte alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_VOCAB,
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != NUM_VOCAB:
        raise ValueError(
            f"the corpus gave {tokenizer.get_vocab_size()} tokens, not {NUM_VOCAB}"
        )
    return tokenizer


def load(path: Path) -> Tokenizer:
    """The tokenizer saved at `path`."""
    return Tokenizer.from_file(str(path))
