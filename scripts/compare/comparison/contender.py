"""The common part of a comparison's runtimes: the work, the question, the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

from localspec.gguf_file.check import check_model_file
from localspec.llama.model_options import FlashAttention, LlamaOptions
from localspec.planning.free_memory import uses_gpu, with_suited_attention
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS


@dataclass(frozen=True, slots=True)
class Setup:
    """The files that both sides load, by absolute paths, and their devices.

    head: a file of its own, or the target's, that holds one. There is a draft or a head or
    neither. num_gpu_layers None: what each side takes by itself. rpc: addresses of RPC servers
    that hold the target.
    """

    target: Path
    draft: Path | None
    head: Path | None
    num_threads: int
    context_length: int
    num_gpu_layers: int | None
    rpc: tuple[str, ...] = ()

    def alone(self) -> Setup:
        """The target without what proposes."""
        return replace(self, draft=None, head=None)

    @property
    def drafts(self) -> bool:
        """Whether there is what proposes."""
        return self.draft is not None or self.head is not None

    @property
    def flash_attention(self) -> FlashAttention:
        """The settings that localspec chooses for the target; the other side gets the same."""
        options = LlamaOptions(
            num_gpu_layers=self.num_gpu_layers, rpc=self.rpc, max_outputs=MAX_DRAFT_TOKENS + 1
        )
        header = check_model_file(self.target)
        is_on_gpu = uses_gpu(options)
        chosen = with_suited_attention(options, header, self.context_length, uses_gpu=is_on_gpu)
        return chosen.flash_attention


@dataclass(frozen=True, slots=True)
class Request:
    """A question. temperature 0 is greedy; above it all filters are off."""

    prompt: str
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens_per_s: tokens decoded after the prompt ÷ the time that took, the same for all.

    Who answers token by token has the first one from the prompt's own decode, so it and its
    time are left out. num_drafted and num_kept are 0 where nothing is proposed.
    """

    num_tokens: int
    tokens_per_s: float
    num_drafted: int
    num_kept: int


class Contender(Protocol):
    """A runtime with its models. Entered, it is loaded; left, it is gone."""

    name: str
    must_draft: bool  # an answer without any proposal would be a mistake of the set-up
    peak_bytes: int | None  # of its process, once it is gone; None where it cannot be had

    def __enter__(self) -> Contender:
        """Load. Raises LocalspecError if that fails."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every process."""

    def answer(self, request: Request) -> Answer:
        """Raises LocalspecError if no answer comes."""
