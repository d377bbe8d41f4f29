"""Lossless speculative decoding for llama.cpp models on your own machine.

    import localspec

    with localspec.load() as engine:
        print(engine.generate("Name three rivers.").reply().text)

Everything is loaded on first use: importing this package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from localspec._version import __version__ as __version__

if TYPE_CHECKING:
    from localspec.chat.chat import Chat
    from localspec.engine.disk_usage import DiskUsage, disk_usage, free_disk
    from localspec.engine.engine import Engine
    from localspec.engine.loading import load
    from localspec.engine.memory import EngineMemory
    from localspec.errors import (
        BusyError,
        CacheError,
        ClosedError,
        ConstraintError,
        ContextError,
        CrashedError,
        DecodeError,
        DownloadError,
        EngineError,
        ForkedError,
        Interrupted,
        LocalspecError,
        MemoryLimitError,
        ModelFileError,
        ModelNotFoundError,
        OptionError,
        PairError,
        PresetError,
        RpcError,
        SessionError,
        TemplateError,
        TemplateLimitError,
        UnknownKeywordError,
        UnknownPresetError,
    )
    from localspec.hub.hub_file import HubFile, HubModel
    from localspec.hub.progress import Progress
    from localspec.isolated.isolated_engine import IsolatedEngine
    from localspec.llama.options import LlamaOptions
    from localspec.preflight.explanation import ExpectedGain, Explanation, ModelFacts, explain
    from localspec.preflight.memory import MemoryEstimate
    from localspec.preflight.room import PairMemory
    from localspec.presets.downloads import download
    from localspec.presets.installed import PresetState, list_models, preset_state
    from localspec.presets.preset import LocalModel, Preset
    from localspec.presets.presets import find_preset
    from localspec.sampling.logprobs import TokenLogprob, TokenLogprobs
    from localspec.sampling.params import SamplingParams
    from localspec.speculative.metrics import Provenance, Stats
    from localspec.speculative.policy_api import (
        DraftOff,
        PolicyEstimate,
        ProposerKind,
    )
    from localspec.streaming.answer import Answer
    from localspec.streaming.options import AnswerOptions
    from localspec.streaming.reply import Piece, Reply
    from localspec.tools.calls import CallPiece
    from localspec.tools.tool import Tool, ToolCall

__all__ = [
    "Answer",
    "AnswerOptions",
    "BusyError",
    "CacheError",
    "CallPiece",
    "Chat",
    "ClosedError",
    "ConstraintError",
    "ContextError",
    "CrashedError",
    "DecodeError",
    "DiskUsage",
    "DownloadError",
    "DraftOff",
    "Engine",
    "EngineError",
    "EngineMemory",
    "ExpectedGain",
    "Explanation",
    "ForkedError",
    "HubFile",
    "HubModel",
    "Interrupted",
    "IsolatedEngine",
    "LlamaOptions",
    "LocalModel",
    "LocalspecError",
    "MemoryEstimate",
    "MemoryLimitError",
    "ModelFacts",
    "ModelFileError",
    "ModelNotFoundError",
    "OptionError",
    "PairError",
    "PairMemory",
    "Piece",
    "PolicyEstimate",
    "Preset",
    "PresetError",
    "PresetState",
    "Progress",
    "ProposerKind",
    "Provenance",
    "Reply",
    "RpcError",
    "SamplingParams",
    "SessionError",
    "Stats",
    "TemplateError",
    "TemplateLimitError",
    "TokenLogprob",
    "TokenLogprobs",
    "Tool",
    "ToolCall",
    "UnknownKeywordError",
    "UnknownPresetError",
    "disk_usage",
    "download",
    "explain",
    "find_preset",
    "free_disk",
    "list_models",
    "load",
    "preset_state",
]

_MODULE_OF = {
    "Answer": "streaming.answer",
    "AnswerOptions": "streaming.options",
    "CallPiece": "tools.calls",
    "Chat": "chat.chat",
    "DiskUsage": "engine.disk_usage",
    "DraftOff": "speculative.policy_api",
    "Engine": "engine.engine",
    "EngineMemory": "engine.memory",
    "ExpectedGain": "preflight.explanation",
    "Explanation": "preflight.explanation",
    "HubFile": "hub.hub_file",
    "HubModel": "hub.hub_file",
    "IsolatedEngine": "isolated.isolated_engine",
    "LlamaOptions": "llama.options",
    "LocalModel": "presets.preset",
    "MemoryEstimate": "preflight.memory",
    "ModelFacts": "preflight.explanation",
    "PairMemory": "preflight.room",
    "Piece": "streaming.reply",
    "PolicyEstimate": "speculative.policy_api",
    "Preset": "presets.preset",
    "PresetState": "presets.installed",
    "Progress": "hub.progress",
    "ProposerKind": "speculative.policy_api",
    "Provenance": "speculative.metrics",
    "Reply": "streaming.reply",
    "SamplingParams": "sampling.params",
    "Stats": "speculative.metrics",
    "TokenLogprob": "sampling.logprobs",
    "TokenLogprobs": "sampling.logprobs",
    "Tool": "tools.tool",
    "ToolCall": "tools.tool",
    "disk_usage": "engine.disk_usage",
    "download": "presets.downloads",
    "explain": "preflight.explanation",
    "find_preset": "presets.presets",
    "free_disk": "engine.disk_usage",
    "list_models": "presets.installed",
    "load": "engine.loading",
    "preset_state": "presets.installed",
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
