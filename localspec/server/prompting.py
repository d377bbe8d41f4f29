"""Makes the prompt that a model reads: of messages, a raw text, or a text to be filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from localspec.chat.messages import as_text
from localspec.chat.template import Message
from localspec.gguf_file.fim import FimTokens
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.refusal import RequestError
from localspec.streaming.cancellation import CancelCheck, never
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt
from localspec.tools.tool import ToolUse
from localspec.vocabulary import with_bos


def templated(
    messages: Sequence[Message], tools: Mapping[str, Any], variables: Mapping[str, Any]
) -> Callable[[IsolatedEngine], list[int]]:
    """A function that gives the tokens of the prompt, for requests that want no answer.

    messages: as `checked_messages` returns them. tools: options by keyword. variables: of the
    template. Raises OptionError; the function RequestError, TemplateError.
    """
    use = AnswerOptions.of(**tools).tool_use(())
    return lambda engine: prompt_of(engine, messages, use, never, variables).tokens


def raw_prompt(engine: IsolatedEngine, given: str | Sequence[int | str]) -> Prompt:
    """The prompt without a template; a text that begins it begins as any text does.

    Raises OptionError for an unknown id.
    """
    if isinstance(given, str):
        return engine._raw_prompt(given)
    tokens: list[int] = []
    for part in given:
        if isinstance(part, int):
            tokens.append(part)
        else:
            found = engine.tokenize(part, special=True)
            tokens += found if tokens else with_bos(found, engine.vocabulary)
    return engine._raw_prompt(tokens)


def prompt_of(
    engine: IsolatedEngine,
    messages: Sequence[Message],
    use: ToolUse,
    is_cancelled: CancelCheck,
    variables: Mapping[str, Any],
) -> Prompt:
    """The prompt by `BaseEngine._make_prompt`, whatever the model's template supports.

    variables: of the template, which passes over those that it does not know. If it has no
    tools, it gets none, and earlier calls as text; then RequestError is raised if the model has
    to call a tool.
    """
    if not engine.takes_tools:
        if use.must:
            raise RequestError(
                "a tool has to be called, but the model's chat template has no tools, or the "
                "form of its calls is not known here",
                "Choose another model, or auto; or describe the call in a response_format.",
                code="unsupported_value",
                param="tool_choice",
            )
        messages, use = [as_text(message) for message in messages], ToolUse()
    return engine._make_prompt(
        messages, use, is_cancelled, template=None, think=True, variables=variables
    )


_ANSWER = 256  # tokens that are left free for an answer, or more if it may be longer
_MARKS = 8  # tokens that the model's own marks take
_PART = 4  # the text behind may take 1/4 of the context; what is cut comes in such parts, too


class FimPrompt(NamedTuple):
    """A text to be filled in behind `before` and before `after`.

    files: names and texts of other files, the least useful first. No text can name a token.
    """

    before: str
    after: str
    files: Sequence[tuple[str, str]] = ()


def required_fim(fim: FimTokens | None, name: str) -> FimTokens:
    """The model's fill-in-the-middle tokens. Raises RequestError for a model without."""
    if fim is None:
        raise RequestError(
            f"the model {name} has no tokens for a text to be filled in",
            "Choose a model that has, such as Qwen2.5-Coder; or leave out the text behind.",
            code="unsupported_value",
            param="suffix",
        )
    return fim


def fim_prompt(
    engine: IsolatedEngine, given: FimPrompt, fim: FimTokens, max_tokens: int | None
) -> tuple[list[int], int]:
    """The tokens of the prompt, and how many of them stay as the text grows.

    What does not fit is cut: other files first, then the beginning of the text before and the
    end of the text behind. max_tokens: of the answer.
    """
    tokenize = engine.vocabulary.tokenize
    context = engine.context_length
    # Also for a shorter answer: an editor that only reads beforehand asks for one token.
    answer = min(max(max_tokens or 0, _ANSWER), context // _PART)
    left = max(context - answer - _MARKS, 0)
    after = tokenize(given.after, parse_special=False, after=fim.suffix)[: left // _PART]
    before = tokenize(given.before, parse_special=False, after=fim.prefix)
    before = _end_of(before, left - len(after))
    # In parts, so that as many files fit while the text grows, from its first token on.
    part = max(left // _PART, 1)
    taken = -(-max(len(before) + len(after), 1) // part) * part
    front = _files(engine, given.files, fim, left - taken)
    stable = [*front, fim.prefix, *before]
    if engine.vocabulary.add_bos and engine.vocabulary.bos >= 0:
        stable.insert(0, engine.vocabulary.bos)
    return [*stable, fim.suffix, *after, fim.middle], len(stable)


def _end_of(tokens: list[int], left: int) -> list[int]:
    """The last of the tokens, up to `left`.

    The cut stays at its position while the text grows a little, and the rest stays cached.
    """
    surplus, part = len(tokens) - left, max(left // _PART, 1)
    return tokens if surplus <= 0 else tokens[-(-surplus // part) * part :]


def _files(
    engine: IsolatedEngine, files: Sequence[tuple[str, str]], fim: FimTokens, left: int
) -> list[int]:
    """The other files that fit, each with its name, as the model knows projects."""
    tokenize = engine.vocabulary.tokenize
    begin = [] if fim.repo is None else [fim.repo, *tokenize("project\n", parse_special=False)]
    end = [] if fim.file is None else [fim.file, *tokenize("file\n", parse_special=False)]
    left -= len(begin) + len(end)
    kept: list[int] = []
    for name, text in reversed(files):
        if fim.file is None:
            chunk = tokenize(f"{name}\n{text}\n\n", parse_special=False)
        else:
            chunk = [fim.file, *tokenize(f"{name}\n{text}", parse_special=False)]
        if len(chunk) > left:
            break
        kept, left = [*chunk, *kept], left - len(chunk)
    return [*begin, *kept, *end] if kept else []
