"""Texts that a target writes itself, and the rows that heads read at their tokens."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import localspec
from localspec.chat.prompt import PromptMaker
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions
from localspec.tools.tool import ToolUse

CONTEXT = 1024
_ANSWER = 200  # tokens at most
_CHUNK = 16  # tokens that the target reads at once


def write_texts(target: Path, prompts: list[str], seconds: float) -> list[list[int]]:
    """Token ids of prompts and answers."""
    texts: list[list[int]] = []
    sampling = localspec.SamplingParams(temperature=0.8)
    with localspec.load(target=target, proposer="none", context_length=CONTEXT) as engine:
        maker = PromptMaker(engine.vocabulary, engine.chat_template, think=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            question = prompts[len(texts) % len(prompts)]
            tokens = maker.prompt([{"role": "user", "content": question}], ToolUse()).tokens
            reply = engine.generate_raw(
                tokens, sampling=sampling, seed=len(texts), max_tokens=_ANSWER
            ).reply()
            texts.append([*tokens, *reply.token_ids])
    return texts


def read_rows(
    target: Path, texts: list[list[int]], layers: tuple[int, ...] = ()
) -> list[NDArray[np.float32]]:
    """Of each text the rows (len, width) that a head sees: the last, or what layers read."""
    options = LlamaOptions(context_length=CONTEXT, max_outputs=_CHUNK)
    model = LlamaModel.open(target, options)
    kept = model.keep_rows(layers) if layers else model.keep_output_rows()
    rows = []
    for text in texts:
        model.truncate(0)
        of_text = np.empty((len(text), kept.width), dtype=np.float32)
        for begin in range(0, len(text), _CHUNK):
            chunk = text[begin : begin + _CHUNK]
            model.decode(chunk, len(chunk))
            kept.copy_to(of_text[begin : begin + len(chunk)], begin)
        rows.append(of_text)
    model.close()
    return rows
