"""Forms of calls that cannot be read off a template, each with the reason; tools in words.

`chat.call_forms` reads all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.tools.arguments import TagArguments, Tags
from localspec.tools.call_form import CallForm

# gpt-oss: a message whose header names the recipient. The call is header and text.
_MESSAGES = CallForm(
    before="",
    start="NAME\n",
    marks=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
    recipient=r" to=(?P<space>functions\.)?(?P<name>[A-Za-z0-9_.:/-]+)",
    is_single=True,
)
# Llama 3.1 to 3.3: the answer is the call, without a mark; but models write a mark sometimes.
_BARE = CallForm(
    before="",
    start='{"name": "NAME", "parameters": ',
    end="}",
    openings=("<|python_tag|>",),
    marks=("<|python_tag|>",),
    is_bare=True,
    is_single=True,
)
# Forms of models whose templates show tools, but not the calls of earlier answers.
# LFM2, LFM2.5
_PYTHON = CallForm(
    before="<|tool_call_start|>[",
    start="NAME(",
    end=")",
    between=", ",
    after="]<|tool_call_end|>",
    openings=("<|tool_call_start|>",),
    closing="<|tool_call_end|>",
    notation=TagArguments,
    tags=Tags("", "=", "=", "", ", ", ")", is_quoted=True),
    marks=("<|tool_call_start|>", "<|tool_call_end|>"),
    is_shown=False,
)
# Granite 3.3
_LIST = CallForm(
    before="<|tool_call|>[",
    start='{"name": "NAME", "arguments": ',
    end="}",
    between=", ",
    after="]",
    openings=("<|tool_call|>",),
    marks=("<|tool_call|>",),
    is_shown=False,
)
# Tools in the words of `chat.tool_words`. SmolLM3's template describes the same form.
IN_WORDS = CallForm(
    before="<tool_call>\n",
    start='{"name": "NAME", "arguments": ',
    end="}\n</tool_call>",
    between="\n<tool_call>\n",
    openings=("<tool_call>",),
    closing="</tool_call>",
    marks=("<tool_call>", "</tool_call>"),
    is_shown=False,
)

# By texts of the template's source: families that write calls otherwise than they show them.
_UNLIKE_TEMPLATE = (
    (("<|channel|>", "<|message|>", '"functions."'), _MESSAGES),
    (('"parameters": ', "<|start_header_id|>"), _BARE),
)
# Families whose templates show no calls.
_UNSHOWN = (
    (("List of tools: ",), _PYTHON),
    (("respond only with <|tool_call|> followed by a JSON list",), _LIST),
    (("xml_tools", "<tool_call>"), IN_WORDS),
)


def unlike_template(source: str) -> CallForm | None:
    """The form of a family that writes calls otherwise than its template shows them.

    Args:
        source: The template's source.

    Returns:
        The form; None for other families.
    """
    return _by_signs(source, _UNLIKE_TEMPLATE)


def unshown_form(source: str) -> CallForm | None:
    """The form of a family whose template shows no calls; None for other families."""
    return _by_signs(source, _UNSHOWN)


def _by_signs(source: str, table: Sequence[tuple[Sequence[str], CallForm]]) -> CallForm | None:
    """The first form whose texts are all in the source; None if there is no such form."""
    unescaped = source.replace('\\"', '"')
    for signs, form in table:
        if all(sign in unescaped for sign in signs):
            return form
    return None
