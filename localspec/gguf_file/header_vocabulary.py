"""The vocabulary that the header of a model file states, read before the model is loaded."""

from __future__ import annotations

from typing import NamedTuple

from localspec.gguf_file.header import Header

# libllama's numbers for the types of tokenizers (enum llama_vocab_type).
_UNKNOWN = 0
_SPM = 1
_BPE = 2
_WPM = 3
_TOKENIZER_TYPES = {  # by the name in the file
    "llama": _SPM, "gpt2": _BPE, "gemma4": _BPE, "hybriddna": _BPE, "whitespace": _BPE,
    "bert": _WPM, "t5": 4, "rwkv": 5, "plamo2": 6,
}  # fmt: skip
# BPE tokenizers that start a text with the BOS token unless the file says otherwise.
_BPE_WITH_BOS = {
    "chameleon", "falcon-h1", "falcon3", "jina-v5-nano", "lfm2", "llama-bpe", "llama-v3",
    "llama3", "midm-2.0", "pixtral", "tekken",
}  # fmt: skip


class HeaderVocabulary:
    """A `TokenTable` of a header: the facts by which two models' vocabularies are compared."""

    def __init__(self, header: Header) -> None:
        self._tokens = list(header.tokens)
        metadata = header.metadata
        tokenizer = str(metadata.get("tokenizer.ggml.model"))
        self.kind = _TOKENIZER_TYPES.get(tokenizer, _UNKNOWN)
        self.size = len(self._tokens)
        self.bos = -1
        stated_bos = metadata.get("tokenizer.ggml.bos_token_id")
        if isinstance(stated_bos, int):
            self.bos = stated_bos
        stated_add_bos = metadata.get("tokenizer.ggml.add_bos_token")
        if isinstance(stated_add_bos, bool):
            self.add_bos = stated_add_bos
        elif self.kind == _BPE:
            pre_tokenizer = metadata.get("tokenizer.ggml.pre")
            self.add_bos = pre_tokenizer in _BPE_WITH_BOS
        else:
            self.add_bos = self.kind in (_SPM, _WPM)

    def entries(self) -> list[bytes]:
        """The text of every token in the order of their ids: (size,)."""
        return self._tokens


# Tokens for filling in the middle of a text (FIM): libllama's keys for their ids, and the
# texts by which libllama finds them if a file states no ids.
_FIM_KEYS = {
    "prefix": ("fim_pre", "prefix"),
    "suffix": ("fim_suf", "suffix"),
    "middle": ("fim_mid", "middle"),
    "repo": ("fim_rep",),
    "file": ("fim_sep",),
}
_FIM_TEXTS = {
    "prefix": "<|fim_prefix|> <fim-prefix> <fim_prefix> <\uff5cfim▁begin\uff5c> <PRE> ▁<PRE> "
    "<|code_prefix|> <|prefix|>",
    "suffix": "<|fim_suffix|> <fim-suffix> <fim_suffix> <\uff5cfim▁hole\uff5c> <SUF> ▁<SUF> "
    "<|code_suffix|> <|suffix|>",
    "middle": "<|fim_middle|> <fim-middle> <fim_middle> <\uff5cfim▁end\uff5c> <MID> ▁<MID> "
    "<|code_middle|> <|middle|>",
    "repo": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "file": "<|file_sep|>",
}


class FimTokens(NamedTuple):
    """Ids of the tokens for filling in the middle of a text."""

    prefix: int
    suffix: int
    middle: int
    repo: int | None
    """The token before the name of a repository; None if the model has none."""

    file: int | None
    """The token before the name of a file; None if the model has none."""


def fim_tokens(header: Header) -> FimTokens | None:
    """The fill-in tokens of a model; None if it has none for prefix, suffix or middle."""
    prefix = _fim_token(header, "prefix")
    suffix = _fim_token(header, "suffix")
    middle = _fim_token(header, "middle")
    if prefix is None or suffix is None or middle is None:
        return None
    repo = _fim_token(header, "repo")
    file = _fim_token(header, "file")
    return FimTokens(prefix, suffix, middle, repo, file)


def _fim_token(header: Header, role: str) -> int | None:
    """The id of a model's fill-in token; None if there is none.

    It is the first id that the header states and that is valid, else the first token with one
    of the known texts.

    Args:
        header: The model's header.
        role: A key of `_FIM_KEYS`.
    """
    vocabulary = header.tokens
    for key in _FIM_KEYS[role]:
        stated = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(stated, int) and 0 <= stated < len(vocabulary):
            return stated
    known_texts = set(_FIM_TEXTS[role].encode().split())
    for token, text in enumerate(vocabulary):
        if text in known_texts:
            return token
    return None
