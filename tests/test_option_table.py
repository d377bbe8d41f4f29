"""docs/options.md: flag, keyword and field of each option, as the code has them."""

from __future__ import annotations

import option_table

from localspec.sampling.params import SamplingKeywords


def test_the_page_has_the_table_as_it_is_now():
    text = option_table.PAGE.read_text("utf-8")
    assert text == option_table.page(text), "run: python scripts/develop/option_table.py"


def test_every_sampling_option_is_a_field_of_the_server():
    assert SamplingKeywords.__annotations__.keys() <= option_table.shared_fields().keys()
