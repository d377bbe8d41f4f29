"""Reads fields about tools, and about the form of an answer, as options of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from localspec.server.fields import Fields
from localspec.server.refusal import RequestError

_FUNCTIONS = (None, "function")  # types of tools
_ANTHROPIC_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def openai_tools(fields: Fields) -> dict[str, Any]:
    """The tools of Chat Completions and Responses. Raises RequestError.

    Functions in a namespace have their `flat_name`. Other tools are ignored, and a choice of
    one of them: nothing here could run it.
    """
    given: list[Mapping[str, Any]] = []
    for tool, raw in zip(fields.objects("tools"), fields.any("tools") or (), strict=True):
        members = (tool.objects("tools") and raw["tools"]) if _is_space(raw) else None
        given += [raw] if members is None else map(partial(_in_space, raw.get("name")), members)
    tools = [tool for tool in given if tool.get("type") in _FUNCTIONS]
    ignored = [tool for tool in given if tool.get("type") not in _FUNCTIONS]
    choice = fields.any("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "allowed_tools":
        choice = _allowed_functions(choice)
    is_ignored = any(tool["type"] == kind for tool in ignored)
    if is_ignored or (ignored and not tools and choice == "required"):
        choice = "auto"
    return _options(tools, choice, is_parallel=fields.flag("parallel_tool_calls"))


def namespaced(fields: Fields) -> dict[str, dict[str, Any]]:
    """Name and namespace of the functions in namespaces, by their flat names."""
    return {
        flat_name(each.get("name"), space.get("name")): {
            "name": each.get("name"),
            "namespace": space.get("name"),
        }
        for space in filter(_is_space, fields.any("tools") or ())
        for each in space["tools"]
    }


def flat_name(name: object, namespace: object) -> str:
    """A function's name to the model, which knows no namespaces; as Codex joins the two."""
    own = str(name or "")
    return f"{str(namespace).rstrip('_')}__{own.lstrip('_')}" if namespace else own


def _is_space(tool: Mapping[str, Any]) -> bool:
    return tool.get("type") == "namespace" and tool.get("tools") is not None


def _in_space(namespace: object, tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**tool, "name": flat_name(tool.get("name"), namespace)} if namespace else tool


def _allowed_functions(choice: Mapping[str, Any]) -> object:
    """A choice among tools, without ignored ones; "none" where no other is left."""
    given = choice.get("allowed_tools", choice)
    tools = given.get("tools") if isinstance(given, Mapping) else None
    if not isinstance(tools, list) or not all(isinstance(each, Mapping) for each in tools):
        return choice  # which is refused
    kept = [each for each in tools if each.get("type") in _FUNCTIONS]
    named = [_in_space(each.get("namespace"), each) for each in kept]
    return {"type": "allowed_tools", **given, "tools": named} if named else "none"


def anthropic_tools(fields: Fields) -> dict[str, Any]:
    """The tools of Messages; Anthropic's own are ignored. Raises RequestError."""
    given = fields.any("tools") if fields.objects("tools") else []
    tools = [tool for tool in given if tool.get("input_schema") is not None]
    ignored = [tool for tool in given if tool.get("input_schema") is None]
    choice = fields.object("tool_choice")
    kind = choice.text("type") or "auto"
    is_disabled = choice.flag("disable_parallel_tool_use")
    is_parallel = None if is_disabled is None else not is_disabled
    name = choice.text("name") if kind == "tool" else _ANTHROPIC_CHOICES.get(kind)
    if name is None:
        fields.refuse("tool_choice", "Choose auto, any, none, or a tool by its name.")
    is_ignored = kind == "tool" and any(tool.get("name") == name for tool in ignored)
    if is_ignored or (ignored and not tools and name == "required"):
        name = "auto"
    return _options(tools, name, is_parallel=is_parallel)


def _options(
    tools: Sequence[Mapping[str, Any]], choice: object, *, is_parallel: bool | None
) -> dict[str, Any]:
    if not tools and choice in (None, "auto", "none"):
        return {}
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": is_parallel}


def answer_form(form: Fields) -> dict[str, Any]:
    """The form of an answer, from the object that describes it. Raises RequestError.

    Its schema is in it, or, in Chat Completions, in an object within it.
    """
    kind = form.text("type")
    holder = form.object("json_schema") if "json_schema" in form else form
    schema = holder.any("schema")
    if kind in (None, "text"):
        return {}
    if kind == "json_object":
        return {"json_schema": schema or {"type": "object"}}
    if kind == "json_schema" and isinstance(schema, Mapping):
        return {"json_schema": schema, "strict": holder.flag("strict") is True}
    raise RequestError(
        f"the form of the answer is {kind!r:.80}, with the schema {schema!r:.80}",
        "Choose text, json_object, or json_schema with its schema.",
        code="unsupported_value",
        param="response_format",
    )


def own_form(fields: Fields) -> dict[str, Any]:
    """The form of an answer, from llama-server's own fields. Raises RequestError."""
    schema, grammar = fields.any("json_schema"), fields.text("grammar")
    if schema is not None and not isinstance(schema, Mapping):
        fields.refuse("json_schema", "Give a JSON schema.")
    found = {"json_schema": schema, "grammar": grammar or None}
    return {name: value for name, value in found.items() if value is not None}
