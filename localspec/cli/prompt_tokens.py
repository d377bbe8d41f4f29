"""A prompt of `verify` or `bench` as the pair would get it in a conversation."""

from __future__ import annotations

from localspec.cli.options import PairOptions
from localspec.engine import Engine


def prompt_tokens(engine: Engine, options: PairOptions, text: str) -> list[int]:
    """Through the chat template, or as it is where there is none."""
    if engine.chat_template is None and options.chat_template is None:
        return engine.with_bos(engine.vocabulary.tokenize(text, parse_special=False))
    return engine.chat(system=options.system, template=options.template()).prompt_tokens(text)
