"""The fields of an answer of OpenAI's Responses that repeat its request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.sampling.params import SamplingParams
from localspec.server.fields import Fields
from localspec.server.question import FUNCTION_TYPES, Question

# Fields of the schema that nothing here sets, or that have one value here.
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
_NAME_OF_FORM = "answer"  # of a schema without a name, which the protocol wants


class RequestEcho:
    """The fields of a response that say what was asked for, with defaults filled in.

    Args:
        fields: The request's.
        question: What was made of them.
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
        """All of these fields.

        Args:
            default: How the model samples where the request says nothing.
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
    holder = form.object("json_schema") if "json_schema" in form else form
    return {
        "type": kind,
        "name": holder.text("name") or _NAME_OF_FORM,
        "description": holder.text("description"),
        "schema": holder.any("schema"),
        "strict": holder.flag("strict") is True,
    }


def _functions(fields: Fields) -> list[dict[str, Any]]:
    """The tools that the model is given, namespaces as they came; other tools are ignored."""
    found = []
    for tool in fields.objects("tools"):
        if tool.any("type") == "namespace":
            within = [_function(each) for each in tool.objects("tools") if _is_function(each)]
            own = {"name": tool.any("name"), "description": tool.any("description") or ""}
            found.append({"type": "namespace", **own, "tools": within})
        elif _is_function(tool):
            found.append(_function(tool))
        elif tool.any("type") == "mcp":
            found.append({name: tool.any(name) for name in _OF_MCP})
    return found


def _is_function(tool: Fields) -> bool:
    return tool.any("type") in FUNCTION_TYPES


def _function(tool: Fields) -> dict[str, Any]:
    """A function with all fields of its schema, of which Chat Completions has some within."""
    given = tool.object("function") if "function" in tool else tool
    return {
        "type": "function",
        "name": given.any("name"),
        "description": given.any("description"),
        "parameters": given.any("parameters") or given.any("input_schema"),
        "strict": given.any("strict") is True,
    }


def _tool_choice(fields: Fields, question: Question) -> object:
    """The choice of a tool that counts: the choice of a tool that is ignored does not."""
    given = fields.any("tool_choice")
    if question.options.tool_choice is None:  # there is no tool to choose from
        if given == "none":
            return "none"
        return "auto"
    if not isinstance(question.options.tool_choice, Mapping) or not isinstance(given, Mapping):
        return question.options.tool_choice
    if given.get("type") == "allowed_tools":
        allowed = given.get("allowed_tools", given)
        tools = [each for each in allowed["tools"] if each.get("type") in FUNCTION_TYPES]
        return {"type": "allowed_tools", "mode": allowed.get("mode"), "tools": tools}
    return {"type": "function", "name": given.get("function", given).get("name")}
