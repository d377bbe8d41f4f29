"""A vocabulary as the header of a model file states it, before the model is loaded."""

from __future__ import annotations

from typing import NamedTuple

from localspec.gguf_file.header import Header

# libllama's numbers of tokenizers (enum llama_vocab_type), by the name in the file.
_SPM = 1
_BPE = 2
_WPM = 3
_KINDS = {
    "llama": _SPM, "gpt2": _BPE, "gemma4": _BPE, "hybriddna": _BPE, "whitespace": _BPE,
    "bert": _WPM, "t5": 4, "rwkv": 5, "plamo2": 6,
}  # fmt: skip
# Tokenizers that start a text with a token of its own unless the file says otherwise.
_ADD_BOS = {
    "chameleon", "falcon-h1", "falcon3", "jina-v5-nano", "lfm2", "llama-bpe", "llama-v3",
    "llama3", "midm-2.0", "pixtral", "tekken",
}  # fmt: skip


class HeaderVocabulary:
    """A `TokenTable`: the facts by which two models are compared."""

    def __init__(self, header: Header) -> None:
        self._tokens = list(header.tokens)
        metadata = header.metadata
        model = str(metadata.get("tokenizer.ggml.model"))
        self.kind = _KINDS.get(model, 0)
        self.size = len(self._tokens)
        self.bos = -1
        bos = metadata.get("tokenizer.ggml.bos_token_id")
        if isinstance(bos, int):
            self.bos = bos
        add_bos = metadata.get("tokenizer.ggml.add_bos_token")
        if isinstance(add_bos, bool):
            self.add_bos = add_bos
        elif self.kind == _BPE:
            self.add_bos = metadata.get("tokenizer.ggml.pre") in _ADD_BOS
        else:
            self.add_bos = self.kind in (_SPM, _WPM)

    def entries(self) -> list[bytes]:
        """The text of every id, in order: (size,)."""
        return self._tokens


# libllama's keys of the tokens that fill in a text between two others (FIM), and their texts,
# where a file states none.
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
    """Ids of the fill-in tokens."""

    prefix: int
    suffix: int
    middle: int
    repo: int | None
    """The token before the name of a project, if any."""

    file: int | None
    """The token before the name of a file, if any."""


def fim_tokens(header: Header) -> FimTokens | None:
    """The fill-in tokens of a model; None if it has none for prefix, suffix and middle."""
    prefix = _fim_token(header, "prefix")
    suffix = _fim_token(header, "suffix")
    middle = _fim_token(header, "middle")
    if prefix is None or suffix is None or middle is None:
        return None
    repo = _fim_token(header, "repo")
    file = _fim_token(header, "file")
    return FimTokens(prefix, suffix, middle, repo, file)


def _fim_token(header: Header, role: str) -> int | None:
    """The first token that the header states, or else that has a known text."""
    for key in _FIM_KEYS[role]:
        token = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int) and 0 <= token < len(header.tokens):
            return token
    texts = set(_FIM_TEXTS[role].encode().split())
    for token, text in enumerate(header.tokens):
        if text in texts:
            return token
    return None
