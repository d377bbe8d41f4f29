"""Filling in between two texts, as editors ask for it while a person types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from localspec.gguf_file.fim import FimTokens
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.refusal import RequestError

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
    """The model's tokens. Raises RequestError for a model that has none."""
    if fim is None:
        raise RequestError(
            f"the model {name} has no tokens for a text to be filled in",
            "Ask a model that was, such as Qwen2.5-Coder; or leave the text behind out.",
            code="unsupported_value",
            param="suffix",
        )
    return fim


def fim_prompt(
    engine: IsolatedEngine, given: FimPrompt, fim: FimTokens, max_tokens: int | None
) -> tuple[list[int], int]:
    """The tokens to read, and how many of them the same request repeats as its text grows.

    What does not fit is cut: other files first, then the beginning of the text before and the
    end of the text behind. max_tokens: of the answer.
    """
    tokenize = engine.vocabulary.tokenize
    context = engine.context_length
    # Also for a shorter answer: an editor that only reads beforehand asks for one token.
    answer = min(max(max_tokens or 0, _ANSWER), context // _PART)
    room = max(context - answer - _MARKS, 0)
    after = tokenize(given.after, parse_special=False, after=fim.suffix)[: room // _PART]
    before = tokenize(given.before, parse_special=False, after=fim.prefix)
    before = _end_of(before, room - len(after))
    # In parts, so that as many files fit while the text grows, from its first token on.
    part = max(room // _PART, 1)
    taken = -(-max(len(before) + len(after), 1) // part) * part
    front = _files(engine, given.files, fim, room - taken)
    stable = [*front, fim.prefix, *before]
    if engine.vocabulary.add_bos and engine.vocabulary.bos >= 0:
        stable.insert(0, engine.vocabulary.bos)
    return [*stable, fim.suffix, *after, fim.middle], len(stable)


def _end_of(tokens: list[int], room: int) -> list[int]:
    """The last of them, up to `room`. The cut stays where it is while the text grows a little:
    what is behind it stays cached."""
    surplus, part = len(tokens) - room, max(room // _PART, 1)
    return tokens if surplus <= 0 else tokens[-(-surplus // part) * part :]


def _files(
    engine: IsolatedEngine, files: Sequence[tuple[str, str]], fim: FimTokens, room: int
) -> list[int]:
    """The other files that fit, each with its name, as the model knows projects."""
    tokenize = engine.vocabulary.tokenize
    begin = [] if fim.repo is None else [fim.repo, *tokenize("project\n", parse_special=False)]
    end = [] if fim.file is None else [fim.file, *tokenize("file\n", parse_special=False)]
    room -= len(begin) + len(end)
    kept: list[int] = []
    for name, text in reversed(files):
        if fim.file is None:
            chunk = tokenize(f"{name}\n{text}\n\n", parse_special=False)
        else:
            chunk = [fim.file, *tokenize(f"{name}\n{text}", parse_special=False)]
        if len(chunk) > room:
            break
        kept, room = [*chunk, *kept], room - len(chunk)
    return [*begin, *kept, *end] if kept else []
