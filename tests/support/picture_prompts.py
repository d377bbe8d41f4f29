"""Prompts with pictures, and what an engine answers."""

from __future__ import annotations

import inside
import localspec
from localspec.chat.prompt_source import ReadySource
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.answer_text import Prompt
from localspec.streaming.record import AnswerRecord

GREEDY = localspec.SamplingParams(temperature=0)


def prompt_of(engine, *pieces):
    """A prompt of texts and pictures."""
    tokens, pictures = [engine.vocabulary.bos], []
    for piece in pieces:
        if isinstance(piece, str):
            tokens += engine.tokenize(piece)
        else:
            tokens += engine.vision.cells(piece)
            pictures.append(piece)
    return Prompt(tokens, pictures=tuple(pictures))


def asked(engine, prompt, owner=None, **options):
    """The reply to a prompt, and the tokens that were decoded of it."""
    options = {"sampling": GREEDY, "max_tokens": 8} | options
    exchange = AnswerRecord(AnswerOptions.of(**options), ReadySource(prompt))
    exchange.owner = owner
    reply = inside.answer(engine, exchange).reply()
    return reply, reply.stats.prompt_tokens - reply.stats.cached_prompt_tokens
