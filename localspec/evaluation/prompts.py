"""The prompts of `verify` and `bench`: built in, of several kinds of text, or from a file."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from localspec.chat.attachment import read_text_file
from localspec.errors import ContextError, OptionError
from localspec.presets.presets import parse_toml

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine
    from localspec.streaming.answer import Answer
    from localspec.streaming.answer_options import AnswerOptions

KindOfText = Literal["code", "chat", "edit", "arithmetic", "json", "tool", "summary", "own"]
KINDS: tuple[KindOfText, ...] = get_args(KindOfText)  # "own": a user's prompts, from a file


@dataclass(frozen=True, slots=True)
class Task:
    """A question to a model: its messages and their options."""

    kind: KindOfText
    messages: tuple[Mapping[str, str], ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of `BaseEngine.generate`, such as json_schema or tools; empty for most kinds."""

    @property
    def text(self) -> str:
        """The user's last message."""
        return self.messages[-1]["content"]

    def suits(self, engine: BaseEngine, template: str | None = None) -> bool:
        """Whether the task has no tools, or the model's template takes tools.

        Args:
            engine: The model's engine.
            template: The template, as for `ask`.
        """
        from localspec.chat.call_forms import takes_tools  # loads NumPy
        from localspec.chat.template import BUILT_IN

        if "tools" not in self.keywords:
            return True
        if template is None:
            return engine.takes_tools
        return takes_tools(BUILT_IN.get(template, template))

    def ask(
        self,
        engine: BaseEngine,
        options: AnswerOptions | None = None,
        *,
        system: str | None = None,
        template: str | None = None,
        **keywords: Any,
    ) -> Answer:
        """The answer to the task. Without a chat template the model continues the task's text.

        The arguments are those of `BaseEngine.generate`; the task's keywords are added.
        """
        keywords = {**self.keywords, **keywords}
        if engine.chat_template is None and template is None:
            return engine.generate_raw(self.text, options, **keywords)
        return engine.generate(
            self.messages,
            options,
            system=system,
            template=template,
            **keywords,
        )


@functools.cache
def built_in_tasks() -> tuple[Task, ...]:
    """Three tasks of each kind of text, except the user's own."""
    file = resources.files("localspec.evaluation") / "prompts.toml"
    entries = parse_toml(file.read_text(encoding="utf-8"))
    tasks = []
    for kind in KINDS:
        for entry in entries.get(kind, ()):
            messages = tuple(_messages(entry.pop("turns")))
            keywords = {name: json.loads(text) for name, text in entry.items()}
            tasks.append(Task(kind, messages, keywords))
    return tuple(tasks)


def _messages(turns: Sequence[str]) -> list[dict[str, str]]:
    """The messages of a conversation in which user and assistant take turns, the user first."""
    messages = []
    for role, text in zip(cycle(("user", "assistant")), turns, strict=False):
        messages.append({"role": role, "content": text.strip()})
    return messages


def own_tasks(path: Path) -> tuple[Task, ...]:
    """The prompts of a file, as `read_prompts` reads it. Raises OptionError."""
    tasks = []
    for text in read_prompts(path):
        tasks.append(Task("own", tuple(_messages([text]))))
    return tuple(tasks)


def built_in_texts() -> list[str]:
    """The user's last message of each built-in task: code first, and shorter before longer.

    Drafts guess most of code right, so `verify` has enough accepted tokens sooner.
    """

    def order(task: Task) -> tuple[bool, int]:
        return task.kind != "code", len(task.text)

    return [task.text for task in sorted(built_in_tasks(), key=order)]


def check_lengths(prompts: Sequence[list[int]], context_length: int) -> None:
    """Raise ContextError for a prompt of token ids that leaves no context for an answer."""
    for prompt in prompts:
        if len(prompt) >= context_length:
            raise ContextError(
                f"a prompt has {len(prompt)} tokens; the context holds {context_length}",
                "Leave it out, or use a larger context (--ctx).",
            )


def read_prompts(path: Path) -> list[str]:
    """The prompts of a text file: its lines that are not empty.

    Raises OptionError if the file cannot be read or has no prompt.
    """
    try:
        lines = read_text_file(path).splitlines()
    except (OSError, ValueError) as error:
        raise OptionError(
            f"{path}: {error}",
            "Give a text file with one prompt per line.",
        ) from error
    stripped = [line.strip() for line in lines]
    prompts = [line for line in stripped if line]
    if not prompts:
        raise OptionError(f"{path} has no prompts", "Write one prompt per line.")
    return prompts
