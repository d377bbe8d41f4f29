"""The page for everybody: widths, colours, zoom, directions, and who does not see it."""

from __future__ import annotations

import json
import re

import pytest
from page_driver import FOX, PATIENCE_MS, ask, ended, last_text, played, visitor

pytestmark = pytest.mark.process


def retried(page):
    """Have a second version with a formula that is wider than any window."""
    played(page, {"content": f"$$\\frac{{{'a + ' * 300}b}}{{2}}$$ and $x^2$"})
    page.click("text=Retry")
    ended(page)
    assert page.locator("#messages math").count() == 2


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(
    browser, server, width, colours
):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core")
    size = {"width": width, "height": 700}
    context = browser.new_context(viewport=size, color_scheme=colours, bypass_csp=True)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("#model option", state="attached")
    states = [
        lambda: None,
        lambda: ask(page, FOX),
        lambda: page.click(".actions >> text=Tokens"),
    ]
    states += [lambda: page.keyboard.press("Alt+l"), lambda: page.keyboard.press("Alt+l")]
    states += [lambda: retried(page), lambda: page.click("text=Edit")]
    states += [lambda: page.click("#show-settings")]
    for reach in states:
        reach()
        found = axe.Axe().run(page).response
        assert found["passes"]
        assert [each["help"] for each in found["violations"]] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_nothing_is_cut_off_at_200_percent(browser, server):
    """Which makes a window of 1280 pixels one of 640, with twice as many to each."""
    size = {"width": 640, "height": 400}
    with visitor(browser, server.url, viewport=size, device_scale_factor=2) as page:
        ask(page, FOX)
        for name in ("#question", "#send", "#show-settings", "#show-live", "#menu summary"):
            box = page.locator(name).bounding_box()
            assert box["x"] >= 0, name
            assert box["x"] + box["width"] <= 640, name
            assert box["y"] + box["height"] <= 400, name
        page.click("#show-settings")
        page.locator("#delete-all").scroll_into_view_if_needed()
        assert page.locator("#delete-all").bounding_box()["y"] < 400


def test_text_from_right_to_left_stands_so_and_code_does_not(page):
    hebrew = "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd"
    played(page, {"content": f"{hebrew}\n\n```python\nx = 1\n```\n"})
    ask(page, hebrew)
    of = "e => getComputedStyle(e).direction"
    assert page.locator("#messages .user .text").evaluate(of) == "rtl"
    assert page.locator("#messages .assistant .text").evaluate(of) == "rtl"
    assert page.locator("#messages .code").evaluate(of) == "ltr"
    page.fill("#question", hebrew)
    assert page.locator("#question").evaluate(of) == "rtl"
    assert page.locator("#list [aria-current]").evaluate(of) == "rtl"


def test_nothing_moves(browser, server):
    """For who asked for reduced motion, as for everybody: the page has no animation."""
    with visitor(browser, server.url, reduced_motion="reduce") as page:
        page.keyboard.press("Alt+l")
        ask(page, FOX)
        assert page.evaluate("document.getAnimations().length") == 0
        moving = "e => getComputedStyle(e).scrollBehavior"
        assert page.locator("#scroll").evaluate(moving) == "auto"


def test_everything_is_reached_by_keyboard(page):
    """A question, its answer, the menu, the settings and the list, without a mouse."""
    page.keyboard.type(FOX)
    page.keyboard.press("Enter")
    page.wait_for_selector("#messages li:last-child .actions")
    reached = set()
    page.focus("#new")
    for _ in range(40):
        page.keyboard.press("Tab")
        told = "document.activeElement.id || document.activeElement.textContent.slice(0, 20)"
        reached.add(page.evaluate(told))
    wanted = {"search", "import", "export-all", "model", "show-live", "show-settings"}
    wanted |= {"question", "attach", "send", "scroll", "Copy", "Edit", "Retry", "More"}
    assert wanted <= reached
    page.focus("#menu summary")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # rename
    page.keyboard.type("By keyboard")
    page.keyboard.press("Enter")
    page.wait_for_selector("#list:has-text('By keyboard')")
    page.keyboard.press("Alt+n")
    assert page.evaluate("document.activeElement.id") == "question"
    assert page.inner_text("#title") == "New chat"
    page.keyboard.press("Alt+f")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#messages li:nth-child(2)")
    assert "fox" in last_text(page)


def test_the_live_picture_is_closed_on_a_telephone_and_stays_so(browser, server):
    with visitor(browser, server.url, viewport={"width": 390, "height": 844}) as page:
        page.click("#show-live")
        page.click("#hide-live")
        assert page.locator("#live").is_hidden()
        assert page.evaluate("document.activeElement.id") == "show-live"
        page.keyboard.press("Alt+l")
        page.reload()
        page.wait_for_selector("#model option", state="attached")
        assert page.locator("#live").is_hidden()


LONG_NAME = "A-model-of-many-words-7B-Instruct-2507.Q4_K_M"


def test_titles_and_names_of_models_are_whole_where_there_is_room(browser, server):
    """The title in its line, and in two lines of the list, with its date."""
    title = "Which fox in the old stories is the one that everybody knows?"
    size = {"width": 1700, "height": 700}
    with visitor(browser, server.url, viewport=size, locale="en-GB") as page:
        told = {"data": [{"id": LONG_NAME, "max_model_len": 2048}]}
        page.route("**/v1/models", lambda route: route.fulfill(json=told))
        page.reload()
        page.wait_for_selector(f"#model option:text-is('{LONG_NAME}')", state="attached")
        played(page, {"content": "yes"})
        ask(page, title)
        is_whole = "e => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight"
        for name in ("#title", "#list .name"):
            assert page.inner_text(name) == title
            assert page.locator(name).evaluate(is_whole), name
        assert page.locator("#model").bounding_box()["width"] > 8 * len(LONG_NAME)
        assert re.fullmatch(r"\d\d:\d\d", page.inner_text("#list time"))
        other = {"title": "Of old", "updated": 1_700_000_000_000, "messages": []}
        file = {"kind": "localspec conversations", "conversations": [other]}
        held = {"name": "x.json", "mimeType": "", "buffer": json.dumps(file).encode()}
        page.set_input_files("#import-file", [held])
        page.wait_for_selector("#list li:nth-child(2) time:text-is('14 Nov 2023')")


def test_an_answer_that_comes_at_once_is_shown_to_its_end(page):
    played(page, {"content": "word\n\n" * 100})
    ask(page, FOX)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    below = "e => e.scrollHeight - e.scrollTop - e.clientHeight"
    assert page.locator("#scroll").evaluate(below) < 2
