"""Lossless speculative decoding for llama.cpp models on your own machine.

    import localspec

    with localspec.load() as engine:
        chat = engine.chat()
        for piece in chat.stream("Tell me a story about a fox."):
            print(piece.text, end="", flush=True)

Everything is loaded on first use: importing this package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.async_stream import AsyncStream
    from localspec.chat import Chat
    from localspec.draft_length import DraftOff
    from localspec.engine import Engine
    from localspec.errors import (
        CacheError,
        ContextError,
        DecodeError,
        DownloadError,
        EngineError,
        Interrupted,
        LocalspecError,
        MemoryLimitError,
        ModelFileError,
        OptionError,
        PairError,
        PresetError,
        SessionError,
        TemplateError,
        TemplateLimitError,
    )
    from localspec.explanation import Explanation, explain
    from localspec.fetch import download
    from localspec.isolated import IsolatedEngine
    from localspec.loading import load
    from localspec.logprobs import TokenLogprob, TokenLogprobs
    from localspec.metrics import Provenance, Stats
    from localspec.preset import Preset
    from localspec.progress import Progress
    from localspec.sampling import SamplingParams
    from localspec.stream import Piece, Reply, Stream

__version__ = "0.1.0"

__all__ = [
    "AsyncStream",
    "CacheError",
    "Chat",
    "ContextError",
    "DecodeError",
    "DownloadError",
    "DraftOff",
    "Engine",
    "EngineError",
    "Explanation",
    "Interrupted",
    "IsolatedEngine",
    "LocalspecError",
    "MemoryLimitError",
    "ModelFileError",
    "OptionError",
    "PairError",
    "Piece",
    "Preset",
    "PresetError",
    "Progress",
    "Provenance",
    "Reply",
    "SamplingParams",
    "SessionError",
    "Stats",
    "Stream",
    "TemplateError",
    "TemplateLimitError",
    "TokenLogprob",
    "TokenLogprobs",
    "download",
    "explain",
    "load",
]

_MODULE_OF = {
    "AsyncStream": "async_stream",
    "Chat": "chat",
    "DraftOff": "draft_length",
    "Engine": "engine",
    "Explanation": "explanation",
    "IsolatedEngine": "isolated",
    "Piece": "stream",
    "Preset": "preset",
    "Progress": "progress",
    "Provenance": "metrics",
    "Reply": "stream",
    "SamplingParams": "sampling",
    "Stats": "metrics",
    "Stream": "stream",
    "TokenLogprob": "logprobs",
    "TokenLogprobs": "logprobs",
    "download": "fetch",
    "explain": "explanation",
    "load": "loading",
}


# Type checkers see the imports above, and with this would take any name to be there.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'localspec' has no attribute {name!r}")
        # What has no entry is an error class.
        return getattr(
            importlib.import_module(f"localspec.{_MODULE_OF.get(name, 'errors')}"), name
        )


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
