"""Grammars of calls for families of models, and whether they allow a text."""

from __future__ import annotations

import dataclasses

import pytest

from call_families import FAMILIES, TOOLS
from localspec.chat.call_forms import tools_of
from localspec.tools.grammar import call_grammar
from localspec.tools.tool import tool_use

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")

BYTES = llguidance.LLTokenizer("byte")


def grammar_of(name, choice="auto", tools=TOOLS, *, is_parallel=True, answer=None):
    use = tool_use(tools, choice, is_parallel=is_parallel)
    if answer is not None:
        use = dataclasses.replace(use, answer_schema=answer)
    form = tools_of(FAMILIES[name].template).form
    return form, call_grammar(form, use, {}, lambda tool: tool.parameters)


def allows(grammar, text):
    """Whether the grammar allows the whole text."""
    lark = llguidance.LLMatcher.grammar_from_lark(grammar.lark)
    matcher = llguidance.LLMatcher(BYTES, lark, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = BYTES.tokenize_str(text)
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    matcher.consume_tokens(tokens)
    return matcher.is_accepting()


def after_trigger(grammar, text):
    """The text after its first trigger, or all of it if it has none."""
    for trigger in grammar.triggers:
        _, trigger_found, remaining = text.partition(trigger)
        if trigger_found:
            return remaining
    return text
