"""A process that answers with llama-cpp-python's own prompt lookup decoding.

Started by `comparison.workers`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from comparison.contender import Answer, Request
from comparison.worker import serve


def make(options: dict[str, Any]) -> Callable[[Request], Answer]:
    """options: target, num_draft_tokens, context_length, num_threads, num_gpu_layers,
    flash_attention."""
    # It keeps an AMX build of libllama from crashing, here as in its own processes.
    importlib.import_module("localspec.llama.model")
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafted = {"calls": 0, "tokens": 0}

    class CountingLookup(LlamaPromptLookupDecoding):
        """The lookup, and how many tokens it proposed."""

        def __call__(self, input_ids: Any, /, **options: Any) -> Any:
            found = super().__call__(input_ids, **options)
            drafted["calls"] += 1
            drafted["tokens"] += len(found)
            return found

    model = Llama(
        options["target"],
        draft_model=CountingLookup(num_pred_tokens=options["num_draft_tokens"]),
        n_ctx=options["context_length"],
        n_threads=options["num_threads"],
        n_threads_batch=options["num_threads"],
        n_gpu_layers=-1 if options["num_gpu_layers"] is None else options["num_gpu_layers"],
        logits_all=True,  # else it fails when the text is longer than a batch
        flash_attn=options["flash_attention"] != "off",  # which "auto" comes to
        verbose=False,
    )

    def answer(request: Request) -> Answer:
        drafted.update(calls=0, tokens=0)
        model.reset()  # type: ignore[no-untyped-call]
        model.set_seed(request.seed)
        tokens = model.tokenize(request.prompt.encode(), special=True)
        num_tokens, first = 0, 0.0
        for token in model.generate(
            tokens, top_k=1 if request.temperature == 0.0 else 0, top_p=1.0, min_p=0.0,
            temp=request.temperature, repeat_penalty=1.0, reset=False,
        ):  # fmt: skip
            num_tokens += 1
            if num_tokens == 1:
                first = time.perf_counter()
            if num_tokens == request.max_tokens or token == model.token_eos():
                break
        seconds = time.perf_counter() - first
        # Each call proposes for one decode, which yields one token that was not proposed.
        kept = max(0, num_tokens - 1 - drafted["calls"])
        return Answer(num_tokens, (num_tokens - 1) / seconds, drafted["tokens"], kept)

    return answer


if __name__ == "__main__":
    serve(make)
