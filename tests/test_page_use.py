"""What people do on the page with fingers, menus, settings and files."""

from __future__ import annotations

import pytest
from page_driver import ended, played, visitor

pytestmark = pytest.mark.process


def test_on_a_telephone_enter_begins_a_line_and_the_button_sends(browser, server):
    size = {"width": 390, "height": 844}
    with visitor(browser, server.url, viewport=size, has_touch=True, is_mobile=True) as page:
        assert page.evaluate("matchMedia('(pointer: coarse)').matches")
        shown = page.get_attribute("#question", "placeholder")
        assert shown == "Ask something. Enter begins a line, the button sends."
        played(page, {"content": "yes"})
        page.tap("#question")
        page.keyboard.type("one\ntwo")
        assert page.input_value("#question") == "one\ntwo"
        page.tap("#send")
        ended(page)
        assert page.inner_text("#messages li:first-child .text") == "one\ntwo"
        page.fill("#question", "by keyboard")
        page.press("#question", "Control+Enter")
        page.wait_for_selector("#messages li:nth-child(4)")
        page.tap("#show-settings")
        page.tap("#settings details summary")
        assert "Enter\na new line\nCtrl+Enter\nsend" in page.inner_text(".keys")
    with visitor(browser, server.url) as page:
        shown = page.get_attribute("#question", "placeholder")
        assert shown == "Ask something. Enter sends, Shift+Enter begins a line."
