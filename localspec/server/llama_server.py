"""What llama-server has beside OpenAI's protocols: tokens and templated prompts."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from localspec.chat.messages import checked_messages
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.answering import Service
from localspec.server.chat_completions import may_think
from localspec.server.event_loop import in_thread
from localspec.server.fields import Fields
from localspec.server.form import Aside
from localspec.server.prompting import TemplatedPrompt
from localspec.server.refusal import RequestError
from localspec.server.tool_fields import openai_tools
from localspec.vocabulary import with_bos


class Tokenize(Aside):
    """A request to /tokenize: the token ids of a text, with their texts if wanted."""

    example: ClassVar = {"content": "Hello"}

    def __init__(self, fields: Fields) -> None:
        self.model = fields.text("model")
        self._text = fields.text("content") or ""
        self._special = fields.flag("parse_special") is not False
        self._has_bos = bool(fields.flag("add_special"))
        self._has_pieces = bool(fields.flag("with_pieces"))

    async def result(self, service: Service) -> dict[str, Any]:
        async with service.opened(self.model) as engine:
            return {"tokens": await in_thread(partial(self._tokens, engine))}

    def _tokens(self, engine: IsolatedEngine) -> list[Any]:
        tokens = engine.tokenize(self._text, special=self._special)
        if self._has_bos:
            tokens = with_bos(tokens, engine.vocabulary)
        if not self._has_pieces:
            return tokens
        if len(tokens) > engine.context_length:  # each is asked for by itself
            raise RequestError(
                f"the text has {len(tokens)} tokens",
                f"with_pieces takes up to {engine.context_length}.",
                param="with_pieces",
            )
        return [
            {"id": token, "piece": engine.detokenize([token], special=True)} for token in tokens
        ]


class Detokenize(Aside):
    """A request to /detokenize: the text of token ids."""

    example: ClassVar = {"tokens": [100]}

    def __init__(self, fields: Fields) -> None:
        self.model = fields.text("model")
        self._ids = fields.any("tokens")
        if not isinstance(self._ids, list):
            fields.refuse("tokens", "Give a list of token ids.")

    async def result(self, service: Service) -> dict[str, Any]:
        async with service.opened(self.model) as engine:
            spell = partial(engine.detokenize, self._ids, special=True)
            return {"content": await in_thread(spell)}


class ApplyTemplate(Aside):
    """A request to /apply-template: the prompt that messages become."""

    example: ClassVar = {"messages": [{"role": "user", "content": "Hello!"}]}

    def __init__(self, fields: Fields) -> None:
        self.model = fields.text("model")
        messages = checked_messages(fields.any("messages"))
        tools = openai_tools(fields)
        self._prompt = TemplatedPrompt(messages, tools, think=may_think(fields))

    async def result(self, service: Service) -> dict[str, Any]:
        async with service.opened(self.model) as engine:
            tokens = await self._prompt.tokens(engine)
            spell = partial(engine.detokenize, tokens, special=True)
            return {"prompt": await in_thread(spell)}
