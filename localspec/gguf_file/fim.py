"""The tokens with which a model was trained to fill in a text between two others (FIM)."""

from __future__ import annotations

from typing import NamedTuple

from localspec.gguf_file.header import Header

# The keys of each token's id, and its texts where a file states none: libllama's.
_KEYS = {
    "prefix": ("fim_pre", "prefix"),
    "suffix": ("fim_suf", "suffix"),
    "middle": ("fim_mid", "middle"),
    "repo": ("fim_rep",),
    "file": ("fim_sep",),
}
_TEXTS = {
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
    """Ids of tokens. repo, file: before the names of a project and of each file, if any."""

    prefix: int
    suffix: int
    middle: int
    repo: int | None
    file: int | None


def fim_tokens(header: Header) -> FimTokens | None:
    """The tokens of a model; None if it has none for prefix, suffix and middle."""
    found = {role: _stated(header, role) for role in _KEYS}
    if missing := {role for role, token in found.items() if token is None}:
        roles = {text.encode(): role for role in missing for text in _TEXTS[role].split()}
        for token, text in enumerate(header.tokens):
            role = roles.get(text)
            if role is not None and found[role] is None:
                found[role] = token
    prefix, suffix, middle = found["prefix"], found["suffix"], found["middle"]
    if prefix is None or suffix is None or middle is None:
        return None
    return FimTokens(prefix, suffix, middle, found["repo"], found["file"])


def _stated(header: Header, role: str) -> int | None:
    for key in _KEYS[role]:
        token = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int) and 0 <= token < len(header.tokens):
            return token
    return None
