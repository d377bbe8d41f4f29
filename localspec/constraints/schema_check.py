"""Whether an answer can be kept to a JSON schema, asked before there is one."""

from __future__ import annotations

import functools

from localspec.constraints.asked import Asked
from localspec.constraints.guidance import compiled, refused
from localspec.errors import ConstraintError


@functools.lru_cache(maxsize=256)
def schema_problem(schema: str) -> ConstraintError | None:
    """Why not, with the keyword that is to blame; None if it can.

    schema: as JSON. Raises ImportError without llguidance.
    """
    from llguidance import LLMatcher

    asked = Asked("json_schema", schema)
    message = LLMatcher.validate_grammar(compiled(asked))
    return refused(asked, message) if message else None
