"""What llama-server has beside OpenAI's protocols: tokens and templated prompts."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from localspec.chat.messages import checked_messages
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.answering import Service, in_thread, prompt_of
from localspec.server.chat_completions import thinks
from localspec.server.fields import Fields
from localspec.server.question import PromptQuestion
from localspec.server.refusal import RequestError
from localspec.server.tool_fields import openai_tools
from localspec.streaming.cancellation import never
from localspec.streaming.options import AnswerOptions


class TextQuestion(NamedTuple):
    """A text that is to be tokenised, and how."""

    model: str | None
    text: str
    special: bool
    has_bos: bool
    has_pieces: bool


class TokenQuestion(NamedTuple):
    """Token ids that are to be spelled."""

    model: str | None
    ids: list[Any]


def read_text(fields: Fields) -> TextQuestion:
    """What a request to /tokenize asks. Raises RequestError."""
    return TextQuestion(
        model=fields.text("model"),
        text=fields.text("content") or "",
        special=fields.flag("parse_special") is not False,
        has_bos=bool(fields.flag("add_special")),
        has_pieces=bool(fields.flag("with_pieces")),
    )


async def tokenize(service: Service, asked: TextQuestion) -> dict[str, Any]:
    """Token ids of a text, and their texts if those are asked for. Raises RequestError."""
    async with service.opened(asked.model) as engine:
        tokens = await in_thread(partial(engine.tokenize, asked.text, special=asked.special))
        if asked.has_bos:
            tokens = engine.with_bos(tokens)
        if not asked.has_pieces:
            return {"tokens": tokens}
        if len(tokens) > engine.context_length:  # each is asked for by itself
            raise RequestError(
                f"the text has {len(tokens)} tokens",
                f"With pieces up to {engine.context_length} can be asked for.",
                param="with_pieces",
            )
        return {"tokens": await in_thread(lambda: [_spelled(engine, each) for each in tokens])}


def _spelled(engine: IsolatedEngine, token: int) -> dict[str, Any]:
    return {"id": token, "piece": engine.detokenize([token], special=True)}


def read_tokens(fields: Fields) -> TokenQuestion:
    """What a request to /detokenize asks. Raises RequestError."""
    ids = fields.any("tokens")
    if not isinstance(ids, list):
        fields.refuse("tokens", "Give a list of token ids.")
    return TokenQuestion(fields.text("model"), ids)


async def detokenize(service: Service, asked: TokenQuestion) -> dict[str, Any]:
    """The text of token ids. Raises OptionError for what is none."""
    async with service.opened(asked.model) as engine:
        spell = partial(engine.detokenize, asked.ids, special=True)
        return {"content": await in_thread(spell)}


def read_prompt_question(fields: Fields) -> PromptQuestion:
    """What a request to /apply-template asks. Raises RequestError."""
    messages = checked_messages(fields.any("messages"))
    use = AnswerOptions.of(**openai_tools(fields)).tool_use(())
    return PromptQuestion(fields.text("model"), messages, use, thinks(fields))


async def apply_template(service: Service, asked: PromptQuestion) -> dict[str, Any]:
    """The prompt that messages become. Raises TemplateError."""
    async with service.opened(asked.model) as engine:
        make = partial(prompt_of, engine, asked.messages, asked.use, never, think=asked.think)
        prompt = await in_thread(make)
        spell = partial(engine.detokenize, prompt.tokens, special=True)
        return {"prompt": await in_thread(spell)}
