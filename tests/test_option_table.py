"""docs/options.md: flag, keyword and field of each option, as the code has them."""

from __future__ import annotations

from pathlib import Path

import option_table
import pytest
from click.testing import CliRunner

import localspec
from localspec.cli import main
from localspec.engine.sources import LoadKeywords
from localspec.sampling.params import SamplingKeywords
from localspec.server.fields import Fields
from localspec.server.question import answer_options
from localspec.streaming.options import answer_keywords

PACKAGE = Path(localspec.__file__).parent
# Keywords that take a whole object, or what no command line holds.
WITHOUT_A_FLAG = {
    "target_options",
    "draft_options",
    "kept_bytes",
    "memory",
    "parallel",  # of serve
    "cache_disk",  # of serve
    *option_table.ONLY_IN_PYTHON,
}


def test_the_page_has_the_table_as_it_is_now():
    text = option_table.PAGE.read_text("utf-8")
    assert text == option_table.page(text), "run: python scripts/develop/option_table.py"


def test_every_keyword_has_a_row():
    table = option_table.table()
    keywords = {*LoadKeywords.__annotations__, *answer_keywords()} - WITHOUT_A_FLAG
    assert [name for name in sorted(keywords) if f"`{name}=`" not in table] == []


def test_every_sampling_option_is_a_field_of_the_server():
    assert (
        SamplingKeywords.__annotations__.keys() - option_table.shared_fields().keys() == set()
    )


@pytest.mark.parametrize(
    ("usual", "keyword"),
    [("--ctx", "--context-length"), ("--threads", "--num-threads")],
)
def test_both_names_of_an_option_are_understood(usual, keyword):
    for flag in (usual, keyword):
        done = CliRunner().invoke(main, ["generate", flag, "x", "Hi"])
        assert done.exit_code == 2
        assert "is not a valid integer" in done.stderr
        assert f"'{usual}' / '{keyword}'" in done.stderr


@pytest.mark.parametrize(
    ("field", "keyword"),
    [
        ("repetition_penalty", "repetition_penalty"),
        ("repeat_penalty", "repetition_penalty"),
        ("typical_p", "typical_p"),
        ("typ_p", "typical_p"),
    ],
)
def test_each_of_two_names_of_a_field_counts(field, keyword):
    assert answer_options(Fields({field: 0.9}))[keyword] == 0.9
