"""docs/policy.md has every constant that the policy was given by hand, as the code has it."""

from __future__ import annotations

from pathlib import Path

import constant_table
import pytest
from policy_scenarios import SCENARIOS

import localspec

POLICY = Path(localspec.__file__).parent / "policy"
CONSTANTS = [
    constant for name in constant_table.MODULES for constant in constant_table.constants(name)
]


def test_the_page_has_the_table_as_it_is_now():
    text = constant_table.PAGE.read_text("utf-8")
    assert text == constant_table.page(text), "run: python scripts/develop/constant_table.py"


def test_no_module_is_left_out():
    """But for the version of a file, and the precision of a number that is shown."""
    modules = {path.stem for path in POLICY.glob("*.py")} - {"profile", "speedup"}
    assert {name for name in modules if any(constant_table.constants(name))} == set(
        constant_table.MODULES
    )
    names = [constant.name for constant in CONSTANTS]
    assert len(names) > 50
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda constant: constant.name)
def test_a_constant_says_what_it_means_and_in_which_scenarios_it_matters(constant):
    """Or what else it is for."""
    assert len(constant.meaning) > 10
    reason, _, purpose = constant.scenarios.partition(": ")
    if reason != constant_table.NO_SCENARIO:
        assert [name for name in constant.scenarios.split(", ") if name not in SCENARIOS] == []
    else:
        assert purpose
