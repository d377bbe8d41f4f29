"""The vocabulary of a model's file, without the model."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from localspec.llama.library import complaints, llama_cpp, own_process
from localspec.llama.vocabulary import LlamaVocabulary


@contextlib.contextmanager
def opened_vocabulary(path: Path) -> Iterator[LlamaVocabulary]:
    """The vocabulary of a file that `gguf_file.check` has checked, while the block runs.

    Raises ModelFileError, with libllama's own words, if it refuses the file.
    """
    own_process.require("libllama")
    complaints.clear()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise complaints.as_error(
            f"libllama cannot read the vocabulary of {path}",
            "The file may be damaged or newer than this llama-cpp-python.",
        )
    try:
        vocab = llama_cpp.llama_model_get_vocab(model)
        yield LlamaVocabulary(vocab, lambda: None, threading.Lock())
    finally:
        llama_cpp.llama_model_free(model)
