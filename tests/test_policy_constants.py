"""Every constant that the policy was given by hand stands in docs/policy.md, as in the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest
from policy_scenarios import SCENARIOS

from localspec.policy import (
    acceptance,
    adaptive,
    budget,
    cost,
    prospect,
    step_ratios,
    step_times,
    threads,
)

MODULES = (acceptance, adaptive, budget, prospect, cost, step_ratios, step_times, threads)
PAGE = (Path(__file__).parent.parent / "docs/policy.md").read_text("utf-8")


def constants(module: ModuleType) -> dict[str, str]:
    """Name → value as written, of all that is not reckoned from others."""
    assert module.__file__ is not None
    found = {}
    for node in ast.parse(Path(module.__file__).read_text("utf-8")).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, numbers = node.targets[0].id, node.value
        if isinstance(numbers, ast.Call) and ast.unparse(numbers.func) == "np.array":
            numbers = numbers.args[0]
        is_given = any(isinstance(part, ast.Constant) for part in ast.walk(numbers))
        is_reckoned = any(isinstance(part, ast.Call) for part in ast.walk(numbers))
        if name.isupper() and is_given and not is_reckoned:
            found[name] = ast.unparse(numbers)
    return found


def table() -> dict[str, tuple[str, str]]:
    """Name → value and scenarios, as the page has them."""
    rows = re.findall(r"^\| `([A-Z_]+)` \| `(.+?)` \| .+? \| (.+?) \|$", PAGE, re.M)
    return {name: (value, scenarios) for name, value, scenarios in rows}


def test_the_page_has_every_constant_with_its_value():
    in_code = [pair for module in MODULES for pair in constants(module).items()]
    assert len({name for name, _ in in_code}) == len(in_code)
    assert {name: value for name, (value, _) in table().items()} == dict(in_code)


@pytest.mark.parametrize("name", table())
def test_a_constant_is_needed_by_a_scenario_that_there_is(name):
    """Or by something else that the page says in brackets."""
    _, scenarios = table()[name]
    named = re.sub(r"\(.+?\)", "", scenarios)
    assert named.strip() or "(" in scenarios
    for scenario in filter(None, (part.strip() for part in named.split(","))):
        assert scenario in SCENARIOS
