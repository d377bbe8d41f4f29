"""What people do on the page with fingers, menus, settings and files."""

from __future__ import annotations

import pytest
from page_driver import ask_slowly, begin, ended, last_text, played, set_option, visitor

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
        page.keyboard.press("Escape")
        page.tap("#show-list")
        page.keyboard.press("Escape")
        assert page.is_hidden("#sidebar")
    with visitor(browser, server.url) as page:
        shown = page.get_attribute("#question", "placeholder")
        assert shown == "Ask something. Enter sends, Shift+Enter begins a line."


def test_the_menu_closes_by_escape_by_a_click_elsewhere_and_when_it_is_left(page):
    """Escape then neither stops the answer nor leaves an edit."""
    ask_slowly(page, "word 3")
    page.click("#menu summary")
    page.click("#scroll")
    assert page.get_attribute("#menu", "open") is None
    page.click("#menu summary")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    assert page.get_attribute("#menu", "open") is None
    assert page.evaluate("document.activeElement.textContent") == "More"
    assert page.is_visible("#stop")
    page.keyboard.press("Enter")
    assert page.get_attribute("#menu", "open") is not None
    page.focus("#show-live")
    assert page.get_attribute("#menu", "open") is None
    page.keyboard.press("Escape")
    ended(page)


WEATHER = '[{"type": "function", "function": {"name": "weather"}}]'


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("tools", WEATHER[:-1], "The tools in the settings are no JSON"),
        ("tools", WEATHER[1:-1], "The tools in the settings are no list"),
        ("schema", '{"type": ', "The schema in the settings is no JSON"),
        ("choices", " \n", "There are no choices"),
    ],
)
def test_settings_that_are_wrong_are_refused_at_their_field(page, name, wrong, words):
    """Before the question is sent, which stays where it is."""
    if name != "tools":
        set_option(page, "form", name)
    set_option(page, name, wrong)
    begin(page, "Rain?")
    page.wait_for_selector("#settings[open]")
    assert page.evaluate("document.activeElement.name") == name
    field = page.locator(f"#settings [name={name}]")
    assert field.get_attribute("aria-describedby") == "settings-error"
    assert words in page.inner_text("#settings-error")
    assert page.locator("#messages li").count() == 0
    right = {"tools": WEATHER, "schema": "{}", "choices": "yes"}[name]
    field.fill(right)
    assert page.inner_text("#settings-error") == ""
    page.keyboard.press("Escape")
    assert page.input_value("#question") == "Rain?"
    played(page, {"content": "no"})
    page.press("#question", "Enter")
    ended(page)
    assert last_text(page) == "no"


def test_results_of_tools_are_not_lost_where_the_settings_are_wrong(page):
    function = {"name": "weather", "arguments": "{}"}
    played(page, {"tool_calls": [{"index": 0, "id": "c1", "function": function}]})
    begin(page, "Rain?")
    ended(page)
    page.click("text=Give the result")
    page.fill(".results textarea", "dry")
    set_option(page, "tools", "[")
    page.click(".results button")
    page.wait_for_selector("#settings[open]")
    page.fill("#settings [name=tools]", "")
    page.keyboard.press("Escape")
    played(page, {"content": "no"})
    page.click(".results button")
    page.wait_for_selector("#messages li:nth-child(4):has-text('no')")
    assert page.inner_text("#messages li:nth-child(3) .text") == "dry"
