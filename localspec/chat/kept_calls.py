"""The grammar that keeps calls of tools to their schemas, as far as llguidance can."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping
from typing import Any

from localspec.constraints.guidance import is_installed, problem_with
from localspec.constraints.spec import ConstraintSpec, constraint_spec, with_spacing
from localspec.errors import ConstraintError
from localspec.tools.forms import CallForm
from localspec.tools.grammar import CallGrammar, call_grammar
from localspec.tools.tool import Tool, ToolUse

logger = logging.getLogger(__name__)

_ANY_OBJECT = {"type": "object"}
# Where one of these says which arguments there are besides the properties, or may.
_SAYS_MORE = frozenset(
    ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")
)


def kept_calls(form: CallForm, use: ToolUse, tokens: Mapping[str, int]) -> CallGrammar | None:
    """The grammar of calls; None where they cannot be kept to one, and need not.

    A schema that says nothing of other arguments than its properties' allows none here.
    A tool whose schema cannot be kept to gets any object, and the log a line on it, unless it
    is strict or has to be called. tokens: as for `call_grammar`. Raises ConstraintError where
    something has to be kept to: such a tool, a call that has to be made, another answer's form.
    """
    has_to = use.must or use.answer_schema is not None
    if not is_installed():
        if use.must:
            raise ConstraintError(
                "a call that has to be made needs llguidance, which is not installed",
                "Install it: pip install 'localspec[grammar]'. Tools to choose from need none.",
            )
        return None
    try:
        grammar = call_grammar(form, use, tokens, functools.partial(_schema, use))
        spec = constraint_spec(None, None, grammar.lark, None)
        assert spec is not None
        if (problem := problem_with(spec)) is not None:
            raise problem
    except ConstraintError as error:
        if has_to or any(tool.is_strict for tool in use.callable):
            raise ConstraintError(f"the tools: {error}", error.hint) from error
        logger.debug("calls are not kept to the tools' schemas: %s", error)
        return None
    return grammar


def _schema(use: ToolUse, tool: Tool) -> Mapping[str, Any]:
    """The schema that the tool's arguments are kept to."""
    schema = tool.parameters
    if _SAYS_MORE.isdisjoint(schema):
        schema = {**schema, "additionalProperties": False}
    spec = ConstraintSpec("json_schema", json.dumps(schema), is_strict=True)
    problem = problem_with(spec)
    if problem is None:
        return with_spacing(spec).schema
    if use.must or tool.is_strict:
        raise ConstraintError(
            f"the parameters of the tool {tool.name}: {problem}",
            "Leave that out of the schema, and check the arguments for it.",
        )
    logger.debug("calls of the tool %s are not kept to its schema: %s", tool.name, problem)
    return _ANY_OBJECT
