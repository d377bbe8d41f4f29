"""How to open a model with libllama."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    """Settings of one model's context. None leaves the choice to us.

    context_length: tokens, at most what the model was trained for (default: that, up to
    8192). max_outputs: rows of logits a decode may return; compute buffers grow with it.

    Raises OptionError for a value outside its range.
    """

    context_length: int | None = None
    num_threads: int | None = None
    num_gpu_layers: int | None = None
    max_outputs: int = 1

    def __post_init__(self) -> None:
        if self.context_length is not None and self.context_length < 1:
            raise OptionError(
                f"the context is {self.context_length} tokens", "Choose 1 or more."
            )
        if self.num_threads is not None and not 1 <= self.num_threads <= 512:
            raise OptionError(
                f"the number of threads is {self.num_threads}", "Choose 1 to 512."
            )
        if self.num_gpu_layers is not None and not 0 <= self.num_gpu_layers <= 10_000:
            raise OptionError(
                f"the number of GPU layers is {self.num_gpu_layers}",
                "Choose 0 (CPU only) or more.",
            )
