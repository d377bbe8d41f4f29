"""Writes the table of docs/options.md: each option, in Python, and as a field of the server.

Flags come from the commands, keywords from the library, and fields from what the server reads.
`python scripts/develop/option_table.py` writes the page; tests/whole/test_docs.py holds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from localspec.cli import main
from localspec.cli.help import HEADINGS
from localspec.engine.sources import LoadKeywords
from localspec.errors import LocalspecError
from localspec.llama.model_options import LlamaOptions
from localspec.server.fields import Fields
from localspec.server.question import answer_options
from localspec.streaming.answer_options import answer_keywords
from marked_part import with_part

PAGE = Path(__file__).parents[2] / "docs/options.md"
BEGIN = "<!-- table: scripts/develop/option_table.py -->"
END = "<!-- end of the table -->"
COMMANDS = ("generate", "chat")

# Options without a keyword of the same name, and what they are in Python.
IN_PYTHON = {
    "model": "`load(MODEL)`",
    "preset": "`load(NAME)`",
    "no_draft": "`draft_tokens=0`",
    "cpu_moe": "`num_cpu_moe_layers=512`",
    "ban": "`logit_bias={ID: -inf}`",
    "template_name": "`chat(template=…)`",
    "system": "`chat(system=…)`",
    "no_think": "`chat(think=False)`",
    "mcp_source": "`McpServers(FILE)`",
    "mcp_tools": "`McpServers(allowed_tools=[…])`",
    "raw": "`generate_raw(…)`",
}
# Options of a terminal, which say how an answer is shown or where a text comes from.
OF_A_TERMINAL = {
    *("files", "as_json", "stats", "show_draft", "session", "keep_caches", "quiet", "prompt"),
}
# Fields that each protocol has for itself, by keyword.
OF_PROTOCOLS = {
    "model": ("model",),
    "system": ("system",),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict",
                   "num_predict"),
    "stop": ("stop", "stop_sequences"),
    "logprobs": ("logprobs", "top_logprobs"),
    "draft_tokens": ("draft_num_predict",),
    "json_schema": ("response_format", "json_schema", "format", "guided_json",
                    "structured_outputs"),
    "regex": ("guided_regex", "structured_outputs"),
    "choices": ("guided_choice", "structured_outputs"),
    "strict": ("strict",),
    "grammar": ("grammar", "guided_grammar", "structured_outputs"),
    "no_think": ("enable_thinking", "reasoning_effort", "think"),
    "prediction": ("prediction",),
    "adapter_scales": ("lora",),
    "tools": ("tools",),
    "tool_choice": ("tool_choice",),
    "parallel_tool_calls": ("parallel_tool_calls",),
    "raw": ("raw",),
}  # fmt: skip
# Keywords of an answer that only code in this process can use.
ONLY_IN_PYTHON = ("sampling", "on_prompt", "queue", "trigger")
NONE = "none"


class _Noting(Fields):
    """Records which fields are read."""

    def __init__(self, names: dict[str, None]) -> None:
        super().__init__({})
        self._names = names

    def value(self, name: str) -> Any:
        self._names[name] = None


def shared_fields() -> dict[str, list[str]]:
    """The fields that every protocol of the server has, by the keyword that each sets."""
    names: dict[str, None] = {}
    answer_options(_Noting(names))
    fields: dict[str, list[str]] = {}
    for name in names:
        for value in (1, True, False, "auto", {"1": 1}):
            try:
                found = answer_options(Fields({name: value}))
            except LocalspecError:  # of another type, or refused whatever it is
                continue
            for keyword in found:
                if name not in fields.setdefault(keyword, []):
                    fields[keyword].append(name)
    return fields


def options() -> Iterator[tuple[str, click.Option]]:
    """Each visible option of the commands that answer, once, with its heading."""
    found = {
        param.name: param
        for name in COMMANDS
        for param in main.commands[name].params
        if isinstance(param, click.Option) and not param.hidden
    }
    for heading in (*HEADINGS[1:], HEADINGS[0]):
        for option in found.values():
            if getattr(option, "heading", HEADINGS[0]) == heading:
                yield "The answer" if heading == HEADINGS[0] else heading, option


def in_python(name: str) -> str:
    """The Python keyword of an option. Raises KeyError if there is none."""
    if name in IN_PYTHON:
        return IN_PYTHON[name]
    of_draft = name.removeprefix("draft_")
    model_fields = [field.name for field in dataclasses.fields(LlamaOptions)]
    if name in answer_keywords() or name in LoadKeywords.__annotations__:
        return f"`{name}=`"
    if name in model_fields:
        return f"`LlamaOptions({name}=…)`"
    if of_draft in model_fields:
        return f"`draft_options=LlamaOptions({of_draft}=…)`"
    raise KeyError(name)


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Heading, flags, Python, fields of the server."""
    shared = shared_fields()
    shown = set(ONLY_IN_PYTHON)
    for heading, option in options():
        name = option.name or ""
        if name in OF_A_TERMINAL:
            continue
        flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
        yield heading, flags, in_python(name), _fields(name, shared)
        shown.add(name)
    for name in answer_keywords():
        if name not in shown:
            yield "Only in Python and on the server", NONE, f"`{name}=`", _fields(name, shared)


def _fields(name: str, shared: dict[str, list[str]]) -> str:
    names = dict.fromkeys((*OF_PROTOCOLS.get(name, ()), *shared.get(name, ())))
    return ", ".join(f"`{each}`" for each in names) or NONE


def table() -> str:
    """The table in Markdown, a part for each heading."""
    parts: dict[str, list[str]] = {}
    for heading, *cells in rows():
        parts.setdefault(heading, []).append(f"| {' | '.join(cells)} |")
    head = "| option | Python | field of the server |\n|---|---|---|"
    return "\n\n".join(
        f"### {heading}\n\n{head}\n" + "\n".join(lines) for heading, lines in parts.items()
    )


def page(text: str) -> str:
    """The page with the present table."""
    return with_part(text, BEGIN, END, f"\n\n{table()}\n\n")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), encoding="utf-8")
