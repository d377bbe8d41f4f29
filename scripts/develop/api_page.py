"""Writes the reference of docs/api.md: signatures and docstrings of the public names.

`python scripts/develop/api_page.py` writes the page; tests/whole/test_docs.py holds it. A new
public name gets a place in `SECTIONS`.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, is_typeddict

import localspec
import localspec.errors
from marked_part import with_part

PAGE = Path(__file__).parents[2] / "docs/api.md"
BEGIN = "<!-- reference: scripts/develop/api_page.py -->"
END = "<!-- end of the reference -->"
TYPES = "Types in these signatures"
ERRORS = "Errors"
# A public name, or a type by its module and name. All errors follow in a section of their own.
SECTIONS = {
    "Loading": ("load", "load_embedder", "Embedder", "Embedded", "download", "Progress"),
    "Models": (
        *("list_models", "preset_state", "PresetState", "find_preset", "Preset"),
        *("HubModel", "HubFile", "LocalModel", "disk_usage", "DiskUsage", "free_disk"),
    ),
    "Before loading": (
        *("explain", "Explanation", "ModelFacts", "ExpectedGain", "AtOnce", "PairMemory"),
        "MemoryEstimate",
    ),
    "Asking": (
        "Engine",
        "IsolatedEngine",
        "EngineMemory",
        "localspec.exactness.Exactness",
        "Chat",
        *("run_tools", "run_tools_async", "tool_steps", "RequestedCall", "McpServers"),
    ),
    "Options": ("AnswerOptions", "LlamaOptions", "SamplingParams", "Adapter", "Picture"),
    "Answers": (
        *("Answer", "Piece", "Reply", "StepFacts", "Tool", "ToolCall", "CallPiece", "Stats"),
        *("PolicyEstimate", "ProposerKind", "Provenance", "DraftOff", "TokenLogprobs"),
        "TokenLogprob",
    ),
    TYPES: (
        "localspec.streaming.answer_options.AnswerKeywords",
        "localspec.sampling.params.SamplingKeywords",
        "localspec.engine.sources.LoadKeywords",
        "CacheDisk",
        "localspec.chat.template.Message",
        "localspec.vocabulary.Vocabulary",
        "localspec.llama.model_vocabulary.LlamaVocabulary",
        "localspec.tools.tool.ToolChoice",
        "localspec.tools.tool.AnyTool",
        "localspec.tools.tool.ToolUse",
        "localspec.tools.foreign.ForeignFunction",
        "localspec.tools.foreign.ForeignResult",
        "localspec.tool_servers.servers.ServerState",
        "localspec.streaming.cancellation.Watch",
        "localspec.streaming.cancellation.Cancellation",
        "localspec.streaming.reply.FinishReason",
        "localspec.speculative.policy_api.RuleName",
        "localspec.speculative.policy_api.ProposerName",
        "localspec.speculative.policy_api.ThreadUse",
        "localspec.llama.model_options.CacheType",
        "localspec.llama.model_options.FlashAttention",
        "localspec.presets.presets.PresetModel",
        "localspec.presets.presets.Role",
        "localspec.hub.transfer.OnProgress",
        "localspec.advice.explanation.HeadReport",
        "localspec.advice.explanation.ProjectorReport",
        "localspec.pictures.picture.Vision",
        "localspec.planning.free_memory.MemoryRoom",
        "localspec.speculative.shared_vocabulary.SharedVocabulary",
        # Used by checks and benchmarks
        "localspec.speculative.policy_api.Drafting",
        "localspec.speculative.loop.SpeculativeDecoder",
    ),
}
# Classes that applications are given and do not make
NOT_MADE = {"Answer", "Chat", "Embedder", "Engine", "LlamaVocabulary", "SpeculativeDecoder"}
WIDTH = 88  # of a signature
_PROPERTIES = (property, functools.cached_property)
_PART = re.compile("(Args|Raises|Returns|Yields):")
_ENTRY = re.compile(r"    (?P<name>[\w*]+): (?P<text>.*)")


def reference() -> str:
    """All sections in Markdown. Raises ValueError for a public name without a place."""
    placed = {name for names in SECTIONS.values() for name in names} | {*_errors()}
    if missing := {*localspec.__all__} - placed:
        raise ValueError(f"SECTIONS lacks {', '.join(sorted(missing))}")
    sections = {**SECTIONS, ERRORS: tuple(_errors())}
    return "\n\n".join(
        f"## {title}\n\n" + "\n\n".join(part for name in names for part in _entry(name))
        for title, names in sections.items()
    )


def page(text: str) -> str:
    """The page with the present reference."""
    return with_part(text, BEGIN, END, f"\n\n{reference()}\n\n")


def _errors() -> Iterator[str]:
    """The public errors in the order of their module."""
    for name, found in vars(localspec.errors).items():
        if name in localspec.__all__ and inspect.isclass(found):
            yield name


def _entry(path: str) -> Iterator[str]:
    """The paragraphs of a name: what it is, and its members."""
    module, _, name = path.rpartition(".")
    yield f"### `{name}`"
    if module:
        yield f"In `{module}`."
    source = importlib.import_module(module) if module else localspec
    found = getattr(source, name)
    if inspect.isfunction(found):
        yield _code(_signature(name, found))
        yield from _docstring(found)
    elif inspect.isclass(found):
        yield from _class(name, found)
    else:
        assert isinstance(source, ModuleType)
        yield from _alias(name, source)


def _class(name: str, found: type) -> Iterator[str]:
    if issubclass(found, enum.Enum):
        yield from _docstring(found)
        said = _said_of(found)
        members = found.__members__.items()
        yield _list((f"{key} = {member.value!r}", said.get(key, "")) for key, member in members)
        return
    if issubclass(found, Exception):
        bases = ", ".join(base.__name__ for base in found.__bases__)
        yield _code(f"class {name}({bases})")
        yield from _docstring(found)
        return
    if is_typeddict(found):
        yield _code("\n".join(f"{key}: {kind}" for key, kind in _keys(found).items()))
        yield from _docstring(found)
        return
    is_made = not getattr(found, "_is_protocol", False) and name not in NOT_MADE
    if is_made:
        yield _code(_signature(name, found))
    yield from (text for text in _docstring(found) if is_made or not text.startswith("Args:"))
    said = _said_of(found)
    if fields := [(field, said[field]) for field in said if not field.startswith("_")]:
        yield f"Fields:\n\n{_list(fields)}"
    members = dict(_members(found))
    properties = {key: one for key, one in members.items() if isinstance(one, _PROPERTIES)}
    if properties:
        described = (
            (_property(key, one), " ".join(" ".join(_docstring(one)).split()))
            for key, one in properties.items()
        )
        yield f"Properties:\n\n{_list(described)}"
    for key, one in members.items():
        if key not in properties:
            yield f"#### `{name}.{key}`"
            yield _code(_signature(key, one))
            yield from _docstring(one)


def _keys(found: type) -> dict[str, str]:
    """The keys of a TypedDict with their types, as the code has them."""
    return {
        statement.target.id: ast.unparse(statement.annotation)
        for base in reversed([found, *getattr(found, "__orig_bases__", ())])
        if inspect.isclass(base) and base.__module__.startswith("localspec")
        for statement in _body(base)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _members(found: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, those of base classes of localspec among them."""
    seen: set[str] = set()
    for base in found.__mro__:
        if not base.__module__.startswith("localspec"):
            continue
        for key, one in vars(base).items():
            is_property = isinstance(one, _PROPERTIES)
            is_method = inspect.isfunction(one) or isinstance(one, classmethod | staticmethod)
            if (is_property or is_method) and not key.startswith("_") and key not in seen:
                seen.add(key)
                yield key, one if is_property else getattr(found, key)


def _property(name: str, found: Any) -> str:
    getter = found.fget if isinstance(found, property) else found.func
    return f"{name}: {inspect.signature(getter).return_annotation}"


def _alias(name: str, module: ModuleType) -> Iterator[str]:
    """A name that stands for a type, as the code has it."""
    statements = ast.parse(inspect.getsource(module)).body
    for number, statement in enumerate(statements):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            yield _code(ast.unparse(statement))
            if text := _text_of(statements[number + 1 : number + 2]):
                yield _escaped(text)


def _said_of(found: type) -> dict[str, str]:
    """The docstrings of a class's fields or members."""
    body = _body(found)
    said: dict[str, str] = {}
    for number, statement in enumerate(body):
        target = None
        if isinstance(statement, ast.AnnAssign):
            target = statement.target
        elif isinstance(statement, ast.Assign):
            target = statement.targets[0]
        text = _text_of(body[number + 1 : number + 2])
        if isinstance(target, ast.Name) and text:
            said[target.id] = _escaped(" ".join(text.split()))
    return said


def _body(found: type) -> list[ast.stmt]:
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(definition, ast.ClassDef)
    return definition.body


def _text_of(statements: list[ast.stmt]) -> str:
    """The text that the first of the statements consists of."""
    for statement in statements:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return inspect.cleandoc(str(statement.value.value))
    return ""


def _signature(name: str, found: Any) -> str:
    signature = inspect.signature(found)
    arguments = [one for one in signature.parameters.values() if one.name != "self"]
    words: list[str] = []
    for number, one in enumerate(arguments):
        is_first_by_name = one.kind is one.KEYWORD_ONLY and not any(
            before.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
            for before in arguments[:number]
        )
        words += ["*"] if is_first_by_name else []
        words.append(_argument(one))
    result = signature.return_annotation
    arrow = "" if inspect.isclass(found) or result is signature.empty else f" -> {result}"
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){arrow}"])


def _argument(found: inspect.Parameter) -> str:
    star = {found.VAR_POSITIONAL: "*", found.VAR_KEYWORD: "**"}.get(found.kind, "")
    text = f"{star}{found.name}"
    has_type = found.annotation is not found.empty
    if has_type:
        text += f": {getattr(found.annotation, '__forward_arg__', found.annotation)}"
    if found.default is not found.empty:
        default = _default(found.default)
        text += f" = {default}" if has_type else f"={default}"
    return text


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value)
    # Functions, and what a dataclass makes for each object.
    if repr(value).startswith("<"):
        return "…"
    return repr(value)


def _docstring(found: Any) -> Iterator[str]:
    """The paragraphs of a docstring; arguments and errors as lists."""
    if dataclasses.is_dataclass(found) and str(found.__doc__).startswith(f"{found.__name__}("):
        return  # written by dataclass
    text = inspect.getdoc(found) or ""
    for paragraph in re.split(r"\n\n+", text):
        lines = paragraph.split("\n")
        if not _PART.fullmatch(lines[0]):
            yield paragraph if paragraph.startswith("    ") else _escaped(paragraph)
            continue
        entries: list[tuple[str, str]] = []
        for line in lines[1:]:
            if begun := _ENTRY.fullmatch(line):
                entries.append((begun["name"], begun["text"]))
            elif entries:
                entries[-1] = (entries[-1][0], f"{entries[-1][1]} {line.strip()}")
            else:
                entries.append(("", line.strip()))
        yield f"{lines[0]}\n\n{_list((name, _escaped(text)) for name, text in entries)}"


def _list(entries: Iterable[tuple[str, str]]) -> str:
    """A list of names, each with what is said of it; either may be empty."""
    return "\n".join(
        "- " + ": ".join(filter(None, (f"`{name}`" if name else "", text)))
        for name, text in entries
    )


def _escaped(text: str) -> str:
    """The text with stars and tags outside of code as they are."""
    parts = re.split("(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in parts
    )


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), encoding="utf-8")
