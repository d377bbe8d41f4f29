"""The fields of an answer of OpenAI's Responses that repeat its request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.sampling.params import SamplingParams
from localspec.server.fields import Fields
from localspec.server.question import FUNCTION_TYPES, Question, schema_holder

# Fields of the schema that no request can set here.
_FIXED: dict[str, Any] = {
    "background": False,
    "conversation": None,
    "max_tool_calls": None,
    "previous_response_id": None,
    "prompt": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
    "user": None,
}
# Fields of a tool that is an MCP server; its headers and keys are not repeated.
_OF_MCP = ("type", "server_label", "server_description", "allowed_tools", "require_approval")
_NAME_OF_FORM = "answer"  # for a schema without a name: the protocol demands one


class RequestEcho:
    """The fields of a response that repeat its request, with defaults filled in.

    Args:
        fields: the request.
        question: the question in it.
    """

    def __init__(self, fields: Fields, question: Question) -> None:
        self._question = question
        self._request = {
            "instructions": fields.text("instructions"),
            "metadata": fields.object("metadata").values,
            "reasoning": {"effort": fields.object("reasoning").text("effort"), "summary": None},
            "text": {"format": _text_format(fields.object("text").object("format"))},
            "tool_choice": _tool_choice(fields, question),
            "tools": _functions(fields),
        }

    def with_sampling(self, default: SamplingParams) -> dict[str, Any]:
        """All fields that repeat the request.

        Args:
            default: the sampling options of a request that sets none.
        """
        options = self._question.options
        sampling = options.sampling_from(default)
        return {
            **_FIXED,
            **self._request,
            "frequency_penalty": sampling.frequency_penalty,
            "max_output_tokens": options.max_tokens,
            "parallel_tool_calls": self._question.use.is_parallel,
            "presence_penalty": sampling.presence_penalty,
            "temperature": sampling.temperature,
            "top_logprobs": options.logprobs or 0,
            "top_p": sampling.top_p,
        }


def _text_format(form: Fields) -> dict[str, Any]:
    """The form of the answer, as `answer_form` reads it, with all fields of its schema."""
    kind = form.text("type") or "text"
    if kind != "json_schema":
        return {"type": kind}
    holder = schema_holder(form)
    return {
        "type": kind,
        "name": holder.text("name") or _NAME_OF_FORM,
        "description": holder.text("description"),
        "schema": holder.value("schema"),
        "strict": holder.flag("strict") is True,
    }


def _functions(fields: Fields) -> list[dict[str, Any]]:
    """The tools that the model gets, with namespaces as they came; other tools are ignored."""
    tools = []
    for tool in fields.objects("tools"):
        if tool.value("type") == "namespace":
            tools.append(_namespace(tool))
        elif _is_function(tool):
            tools.append(_function(tool))
        elif tool.value("type") == "mcp":
            tools.append({name: tool.value(name) for name in _OF_MCP})
    return tools


def _namespace(space: Fields) -> dict[str, Any]:
    functions = filter(_is_function, space.objects("tools"))
    return {
        "type": "namespace",
        "name": space.value("name"),
        "description": space.value("description") or "",
        "tools": [_function(tool) for tool in functions],
    }


def _is_function(tool: Fields) -> bool:
    return tool.value("type") in FUNCTION_TYPES


def _function(tool: Fields) -> dict[str, Any]:
    """A function of a request, with all fields that Responses has for it, given or not."""
    given = tool
    if "function" in tool:  # Chat Completions puts all but the type into this object
        given = tool.object("function")
    return {
        "type": "function",
        "name": given.value("name"),
        "description": given.value("description"),
        "parameters": given.value("parameters") or given.value("input_schema"),
        "strict": given.value("strict") is True,
    }


def _tool_choice(fields: Fields, question: Question) -> object:
    """The choice of a tool that counts; the choice of an ignored tool does not."""
    given = fields.value("tool_choice")
    choice = question.options.tool_choice
    if choice is None:  # there is no tool to choose from
        if given == "none":
            return "none"
        return "auto"
    if not isinstance(choice, Mapping) or not isinstance(given, Mapping):
        return choice
    if given.get("type") == "allowed_tools":
        allowed = given.get("allowed_tools", given)
        tools = [tool for tool in allowed["tools"] if tool.get("type") in FUNCTION_TYPES]
        return {
            "type": "allowed_tools",
            "mode": allowed.get("mode"),
            "tools": tools,
        }
    function = given.get("function", given)
    return {"type": "function", "name": function.get("name")}
