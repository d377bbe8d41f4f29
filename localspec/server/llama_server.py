"""What llama-server has beside OpenAI's protocols: tokens and templated prompts."""

from __future__ import annotations

from functools import partial
from typing import Any

from localspec.engine.isolated import IsolatedEngine
from localspec.server.answering import Service, in_thread, prompt_of
from localspec.server.chat_completions import plain_messages, thinks
from localspec.server.fields import Fields
from localspec.streaming.cancellation import never


async def tokenize(service: Service, fields: Fields) -> dict[str, Any]:
    """Token ids of a text, and their texts if those are asked for. Raises RequestError."""
    text = fields.text("content") or ""
    special = fields.flag("parse_special") is not False
    async with service.opened(fields.text("model")) as engine:
        tokens = await in_thread(partial(engine.tokenize, text, special=special))
        if fields.flag("add_special"):
            tokens = engine.with_bos(tokens)
        if not fields.flag("with_pieces"):
            return {"tokens": tokens}
        if len(tokens) > engine.context_length:  # each is asked for by itself
            fields.refuse("with_pieces", f"Ask for up to {engine.context_length} tokens.")
        return {"tokens": await in_thread(lambda: [_spelled(engine, each) for each in tokens])}


async def detokenize(service: Service, fields: Fields) -> dict[str, Any]:
    """The text of token ids. Raises RequestError."""
    tokens = fields.any("tokens")
    if not isinstance(tokens, list):
        fields.refuse("tokens", "Give a list of token ids.")
    async with service.opened(fields.text("model")) as engine:
        return {"content": await in_thread(partial(engine.detokenize, tokens, special=True))}


async def apply_template(service: Service, fields: Fields) -> dict[str, Any]:
    """The prompt that messages become. Raises RequestError."""
    messages = plain_messages(fields.any("messages"))
    async with service.opened(fields.text("model")) as engine:
        make = partial(prompt_of, engine, messages, never, think=thinks(fields))
        prompt = await in_thread(make)
        spell = partial(engine.detokenize, prompt.tokens, special=True)
        return {"prompt": await in_thread(spell)}


def _spelled(engine: IsolatedEngine, token: int) -> dict[str, Any]:
    return {"id": token, "piece": engine.detokenize([token], special=True)}
