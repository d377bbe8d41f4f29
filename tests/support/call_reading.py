"""Reads an answer of a family of models, token by token, into text, thoughts and calls."""

from __future__ import annotations

from call_families import FAMILIES, TOOLS
from localspec.chat.call_forms import tools_of
from localspec.streaming.answer_text import AnswerText
from localspec.streaming.thinking import Thoughts
from localspec.streaming.thought_families import families_of
from localspec.tools.grammar import CallGrammar, Calls
from localspec.tools.tool import tool_use, whole_calls
from prompts import Spelled

USE = tool_use(TOOLS, "auto", is_parallel=True)


def answer_text(
    name, texts, use, stop=(), *, is_kept=True, has_tools=True, is_constrained=False
):
    """Reads the texts, each of which is a token, as an answer of the family."""
    form = tools_of(FAMILIES[name].template).form
    calls = Calls(form, use, grammar=CallGrammar("") if is_kept else None)
    thoughts = Thoughts(families_of(FAMILIES[name].template, ()))
    if form.recipient:
        thoughts = thoughts.after("<|start|>assistant")
    vocabulary = Spelled([each.encode() for each in texts])
    return AnswerText(
        vocabulary, thoughts, stop, calls if has_tools else None, is_constrained=is_constrained
    )


def read_answer(
    name, answer, *, use=USE, is_kept=False, sizes=None, stop=(), is_cut=False, **how
):
    """Text, thoughts and calls of an answer, whose tokens have one character or other sizes."""
    texts = []
    remaining = answer
    while remaining:
        size = sizes.choice([1, 2, 3, 7, 40]) if sizes else 1
        texts.append(remaining[:size])
        remaining = remaining[size:]
    text = answer_text(name, texts, use, stop, is_kept=is_kept, **how)
    parts = []
    for token in range(len(texts)):
        parts += text.push(token)
        if text.has_stopped:
            break
    parts += text.finish(is_cut=is_cut)
    said = "".join(part.text for part in parts if not part.is_thought)
    thought = "".join(part.text for part in parts if part.is_thought)
    calls = whole_calls(part.call for part in parts)
    return said, thought, [(call.name, call.arguments) for call in calls]
