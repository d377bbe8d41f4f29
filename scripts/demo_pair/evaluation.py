"""What the finished files can do, measured through llama.cpp itself."""

import time
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .corpus.conversation import conversation_at
from .dataset import HELD_OUT_EVERY, SEED, answer_mask, render
from .parity import logits_of
from .tokenizer import IM_END, IM_START

MAX_ANSWER = 200  # tokens
_OPEN = f"{IM_START}assistant\n"


@dataclass(frozen=True)
class Acceptance:
    """How often the draft's tokens would be kept on the target's own answers."""

    temperature: float
    num_tokens: int
    rate: float  # mean over positions of the sum of min(target, draft)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log probabilities of each row, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def file_loss(llama: llama_cpp.Llama, tokenizer: Tokenizer, texts: list[str]) -> float:
    """Mean loss in nats over the answers' tokens of rendered conversations."""
    assistant, start, end = (
        tokenizer.token_to_id(text) for text in ("assistant", IM_START, IM_END)
    )
    losses = []
    for text in texts:
        ids = np.array(tokenizer.encode(text).ids[:2048])
        rows = log_softmax(logits_of(llama, ids.tolist()))[:-1]
        learned = answer_mask(ids, assistant, start, end)[1:]
        losses.append(-rows[np.arange(len(rows)), ids[1:]][learned])
    return float(np.concatenate(losses).mean())


def prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Token ids of held-out conversations, each cut before its last answer."""
    cut = []
    for i in range(count):
        messages = conversation_at(SEED, (i + 5000) * HELD_OUT_EVERY)
        ids = tokenizer.encode(render(messages[:-1]) + _OPEN).ids
        if len(ids) < 2048 - MAX_ANSWER:
            cut.append(ids)
    return cut


def answer(
    llama: llama_cpp.Llama,
    prompt: list[int],
    end: int,
    temperature: float,
    rng: np.random.Generator,
) -> list[int]:
    """An answer of the model to the prompt, without filters; its end token included."""
    llama.reset()
    llama.eval(prompt)
    written: list[int] = []
    while len(written) < MAX_ANSWER and end not in written[-1:]:
        logits = llama.scores[llama.n_tokens - 1]
        token = int(logits.argmax())
        if temperature > 0:
            probs = np.exp(log_softmax(logits / temperature))
            token = int(rng.choice(len(probs), p=probs / probs.sum()))
        written.append(token)
        llama.eval([token])
    return written


def acceptance(
    target: llama_cpp.Llama,
    draft: llama_cpp.Llama,
    tokenizer: Tokenizer,
    temperature: float,
    count: int,
) -> Acceptance:
    """Acceptance of the rule `token` along answers drawn from the target."""
    rng = np.random.default_rng(7)
    end = tokenizer.token_to_id(IM_END)
    kept = []
    for prompt in prompts(tokenizer, count):
        written = answer(target, prompt, end, temperature, rng)
        rows = slice(len(prompt) - 1, len(prompt) + len(written) - 1)
        ids = prompt + written
        target_logits, draft_logits = logits_of(target, ids)[rows], logits_of(draft, ids)[rows]
        if temperature == 0:
            kept.append(target_logits.argmax(-1) == draft_logits.argmax(-1))
        else:
            target_probs = np.exp(log_softmax(target_logits / temperature))
            draft_probs = np.exp(log_softmax(draft_logits / temperature))
            kept.append(np.minimum(target_probs, draft_probs).sum(-1))
    each = np.concatenate(kept)
    return Acceptance(temperature, len(each), float(each.mean()))


def decode_ms(path: Path, num_threads: int, num_decodes: int = 200) -> float:
    """Median time of a single-token decode at 100 to 300 cached tokens, in milliseconds."""
    llama = llama_cpp.Llama(
        str(path),
        n_ctx=2048,
        n_threads=num_threads,
        n_threads_batch=num_threads,
        n_gpu_layers=0,
        verbose=False,
    )
    llama.eval([5] * 100)
    times = []
    for _ in range(num_decodes):
        start = time.perf_counter()
        llama.eval([7])
        times.append(time.perf_counter() - start)
    llama.close()
    return float(np.median(times)) * 1e3


def transcript(
    llama: llama_cpp.Llama, questions: list[str], sampling: dict[str, float], system: str = ""
) -> str:
    """A conversation with the target, written down as it came."""
    messages = [{"role": "system", "content": system}] if system else []
    lines = [f"[{system}]"] if system else []
    for question in questions:
        messages.append({"role": "user", "content": question})
        choice = llama.create_chat_completion(
            messages, max_tokens=300, repeat_penalty=1.0, **sampling
        )["choices"][0]
        text = choice["message"]["content"]
        messages.append({"role": "assistant", "content": text})
        lines += [
            f"> {question}",
            text + ("" if choice["finish_reason"] == "stop" else " [cut off]"),
        ]
    return "\n".join(lines)
