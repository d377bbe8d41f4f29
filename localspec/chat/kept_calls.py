"""What the calls of an answer are kept to, as far as llguidance can."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping
from typing import Any

from localspec.constraints.guidance import is_installed, schema_problem
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
    """The grammar of calls; None without llguidance, where none has to be made.

    A schema that says nothing of other arguments than its properties' allows none here.
    A tool whose schema cannot be kept to gets any object, and the log a line on it, unless it
    is strict or has to be called. tokens: as for `call_grammar`. Raises ConstraintError for
    such a one, and without llguidance where a call has to be made.
    """
    if is_installed():
        return call_grammar(form, use, tokens, functools.partial(_schema, use))
    if use.must:
        raise ConstraintError(
            "a call that has to be made needs llguidance, which is not installed",
            "Install it: pip install 'localspec[grammar]'. Tools to choose from do without.",
        )
    return None


def _schema(use: ToolUse, tool: Tool) -> Mapping[str, Any]:
    """What the tool's arguments are kept to."""
    schema = tool.parameters
    if _SAYS_MORE.isdisjoint(schema):
        schema = {**schema, "additionalProperties": False}
    problem = schema_problem(json.dumps(schema))
    if problem is None:
        return schema
    if use.must or tool.is_strict:
        raise ConstraintError(
            f"the parameters of the tool {tool.name}: {problem}", problem.hint
        )
    logger.debug("calls of the tool %s are not kept to its schema: %s", tool.name, problem)
    return _ANY_OBJECT
