"""The page for everybody: widths, colours, zoom, directions, and who does not see it."""

from __future__ import annotations

import pytest
from page_driver import FOX, PATIENCE_MS, ask, ended, last_text, played

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
