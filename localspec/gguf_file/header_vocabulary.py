"""A vocabulary as the header of a model file states it, before the model is loaded."""

from __future__ import annotations

from localspec.gguf_file.header import Header

# libllama's numbers of tokenizers (enum llama_vocab_type), by the name in the file.
_SPM, _BPE, _WPM = 1, 2, 3
_KINDS = {
    "llama": _SPM, "gpt2": _BPE, "gemma4": _BPE, "hybriddna": _BPE, "whitespace": _BPE,
    "bert": _WPM, "t5": 4, "rwkv": 5, "plamo2": 6,
}  # fmt: skip
# Tokenizers that start a text with a token of its own unless the file says otherwise.
_ADD_BOS = frozenset(
    {
        "chameleon", "falcon-h1", "falcon3", "jina-v5-nano", "lfm2", "llama-bpe", "llama-v3",
        "llama3", "midm-2.0", "pixtral", "tekken",
    }
)  # fmt: skip


class HeaderVocabulary:
    """A `TokenTable`: the facts by which two models are compared."""

    def __init__(self, header: Header) -> None:
        self._tokens = list(header.tokens)
        stated = header.metadata.get
        self.kind = _KINDS.get(str(stated("tokenizer.ggml.model")), 0)
        self.size = len(self._tokens)
        bos = stated("tokenizer.ggml.bos_token_id")
        self.bos = bos if isinstance(bos, int) else -1
        add_bos = stated("tokenizer.ggml.add_bos_token")
        self.add_bos = add_bos if isinstance(add_bos, bool) else self._default_add_bos(header)

    def entries(self) -> list[bytes]:
        """The text of every id, in order: (size,)."""
        return self._tokens

    def _default_add_bos(self, header: Header) -> bool:
        if self.kind == _BPE:
            return header.metadata.get("tokenizer.ggml.pre") in _ADD_BOS
        return self.kind in (_SPM, _WPM)
