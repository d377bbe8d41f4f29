"""What can be seen in the text of a GBNF grammar before libllama, which trusts it, reads it."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r'(?P<skipped>\s+|\#[^\n]*)|(?P<text>"(?:\\.|[^"\\])*")|(?P<set>\[(?:\\.|[^\]\\])*\]|\.|!?<[^>]*>)'
    r"|(?P<define>::=)|(?P<name>[\w-]+)|(?P<repeat>[*+?]|\{[^}]*\})|(?P<sign>[|()])",
    re.ASCII,
)
_MAY_BE_NONE = re.compile(r"[*?]|\{\s*0*\s*(,|\})")  # a repetition


class _Item(NamedTuple):
    """A part of an alternative. rule: a name, if it is none by itself."""

    rule: str | None
    may_be_empty: bool


_Rules = dict[str, list[list[_Item]]]  # alternatives by name; groups have names of their own


def endless_rule(text: str) -> str | None:
    """A rule that can begin with itself, with nothing before; None if there is none.

    libllama finds most of them. Where what stands before may be empty in a roundabout way it
    does not, and takes memory until the process ends.
    """
    rules = _rules(text)
    empty: set[str] = set()
    while True:
        found = {
            name
            for name, alternatives in rules.items()
            if any(all(_is_empty(item, empty) for item in each) for each in alternatives)
        }
        if found == empty:
            break
        empty = found
    firsts = {name: _firsts(alternatives, empty) for name, alternatives in rules.items()}
    return _in_circle(firsts)


def _is_empty(item: _Item, empty: set[str]) -> bool:
    return item.may_be_empty or item.rule in empty


def _firsts(alternatives: list[list[_Item]], empty: set[str]) -> set[str]:
    """Rules that an alternative can begin with."""
    found = set()
    for alternative in alternatives:
        for item in alternative:
            if item.rule is not None:
                found.add(item.rule)
            if not _is_empty(item, empty):
                break
    return found


def _in_circle(firsts: dict[str, set[str]]) -> str | None:
    """A name from which a way leads back to it."""
    left = {name: {each for each in after if each in firsts} for name, after in firsts.items()}
    while True:
        ends = {name for name, after in left.items() if not after}
        if not left:
            return None
        if not ends:
            break
        left = {name: after - ends for name, after in left.items() if name not in ends}
    path = [min(left)]  # all that are left lead on, so a way comes back to where it was
    while (name := min(left[path[-1]])) not in path:
        path.append(name)
    return max(path[path.index(name) :])  # a rule, not a group, whose name is a bracket


def _rules(text: str) -> _Rules:
    tokens = [found for found in _TOKEN.finditer(text) if found.lastgroup != "skipped"]
    rules: _Rules = {}
    open_: list[str] = []  # the rule, and the groups in it
    for index, found in enumerate(tokens):
        kind, word = found.lastgroup, found[0]
        follows = tokens[index + 1].lastgroup if index + 1 < len(tokens) else None
        if kind == "name" and follows == "define":
            open_ = [word]
            rules[word] = [[]]
        elif kind == "define" or not open_:
            continue
        elif word == "(":
            open_.append(f"({index}")
            rules[open_[-1]] = [[]]
        elif word == ")":
            group = open_.pop()
            if not open_:
                return {}  # libllama refuses it
            rules[open_[-1]][-1].append(_Item(group, may_be_empty=False))
        elif word == "|":
            rules[open_[-1]].append([])
        elif kind == "repeat":
            last = rules[open_[-1]][-1]
            if last and _MAY_BE_NONE.match(word):
                last[-1] = last[-1]._replace(may_be_empty=True)
        else:
            rule = word if kind == "name" else None
            rules[open_[-1]][-1].append(_Item(rule, may_be_empty=word == '""'))
    return rules
