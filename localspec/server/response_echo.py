"""The fields of a response of OpenAI's Responses that repeat its request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.sampling.params import SamplingParams
from localspec.server.fields import Fields
from localspec.server.mcp_calls import MCP_TYPE
from localspec.server.question import FUNCTION_TYPES, Question, schema_holder

# The fields that have the same value in every response, whatever the request says.
_FIXED: dict[str, Any] = {
    "background": False,
    "conversation": None,
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
# The fields of an MCP server that are repeated; its headers and keys are not.
_MCP_FIELDS = (
    "type",
    "server_label",
    "server_description",
    "allowed_tools",
    "require_approval",
)
_SCHEMA_NAME = "answer"  # of a schema that has no name in the request: the protocol demands one


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
            "max_tool_calls": fields.integer("max_tool_calls"),
            "metadata": fields.object("metadata").values,
            "reasoning": {"effort": fields.object("reasoning").text("effort"), "summary": None},
            "text": {"format": _text_format(fields.object("text").object("format"))},
            "tool_choice": _tool_choice(fields, question),
            "tools": _tools(fields),
        }

    def with_sampling(self, default: SamplingParams) -> dict[str, Any]:
        """All fields that repeat the request, with the sampling options that are used.

        Args:
            default: the model's sampling options, which hold where the request sets none.
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
    """The form of an answer (text or JSON) with all fields that Responses has for it.

    Args:
        form: the object in the request that describes the form, see `answer_form`.
    """
    form_type = form.text("type") or "text"
    if form_type != "json_schema":
        return {"type": form_type}
    holder = schema_holder(form)
    return {
        "type": form_type,
        "name": holder.text("name") or _SCHEMA_NAME,
        "description": holder.text("description"),
        "schema": holder.value("schema"),
        "strict": holder.flag("strict") is True,
    }


def _tools(fields: Fields) -> list[dict[str, Any]]:
    """The tools of a request that are not ignored: functions, namespaces and MCP servers."""
    tools = []
    for tool in fields.objects("tools"):
        if tool.value("type") == "namespace":
            tools.append(_namespace(tool))
        elif _is_function(tool):
            tools.append(_function(tool))
        elif tool.value("type") == "mcp":
            tools.append({name: tool.value(name) for name in _MCP_FIELDS})
    return tools


def _namespace(namespace: Fields) -> dict[str, Any]:
    """A namespace of a request with the functions in it."""
    functions = filter(_is_function, namespace.objects("tools"))
    return {
        "type": "namespace",
        "name": namespace.value("name"),
        "description": namespace.value("description") or "",
        "tools": [_function(tool) for tool in functions],
    }


def _is_function(tool: Fields) -> bool:
    return tool.value("type") in FUNCTION_TYPES


def _function(tool: Fields) -> dict[str, Any]:
    """A function of a request with all fields that Responses has for it."""
    function = tool
    if "function" in tool:  # as in Chat Completions, which puts all but the type into an object
        function = tool.object("function")
    return {
        "type": "function",
        "name": function.value("name"),
        "description": function.value("description"),
        "parameters": function.value("parameters") or function.value("input_schema"),
        "strict": function.value("strict") is True,
    }


def _tool_choice(fields: Fields, question: Question) -> object:
    """The choice of tools that the model follows, in the shape of Responses.

    The request's choice may be another: a choice of an ignored tool is ignored.

    Args:
        fields: the request.
        question: the question in it, whose options have the model's choice.
    """
    request_choice = fields.value("tool_choice")
    choice = question.options.tool_choice
    if choice is None:  # there is no tool to choose from
        if request_choice == "none":
            return "none"
        return "auto"
    if not isinstance(choice, Mapping) or not isinstance(request_choice, Mapping):
        return choice
    if request_choice.get("type") == "allowed_tools":
        # Chat Completions has the list in an object within the choice, Responses in the choice.
        holder = request_choice.get("allowed_tools", request_choice)
        types = {*FUNCTION_TYPES, MCP_TYPE}
        tools = [tool for tool in holder["tools"] if tool.get("type") in types]
        return {
            "type": "allowed_tools",
            "mode": holder.get("mode"),
            "tools": tools,
        }
    function = request_choice.get("function", request_choice)
    return {"type": "function", "name": function.get("name")}
