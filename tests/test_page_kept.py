"""What the page keeps and what it lets go: drafts, what is attached, and what was deleted."""

from __future__ import annotations

import pytest
from page_driver import FOX, SLOW_STREAM, ask, chosen, ended, played

pytestmark = pytest.mark.process

HEN = "#files li:has-text('hen.txt')"


def attach(page, name):
    held = {"name": name, "mimeType": "text/plain", "buffer": b"a hen"}
    page.set_input_files("#attach-files", [held])
    page.wait_for_selector(f"#files li:has-text('{name}')")


def deleted(page, button):
    if button == "Delete":
        chosen(page, "Delete")
    else:
        page.click("#show-settings")
        page.click("#delete-all")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector("#welcome:not([hidden])")


def reload(page):
    page.reload()
    page.wait_for_selector("#model option", state="attached")


FULL = """() => {
  const put = IDBObjectStore.prototype.put;
  IDBObjectStore.prototype.put = function (...told) {
    if (this.name === "conversations") throw new DOMException("full", "QuotaExceededError");
    return put.call(this, ...told);
  };
}"""


@pytest.mark.parametrize("has_one_before", [False, True])
def test_a_question_that_cannot_be_kept_is_typed_and_attached_as_before(page, has_one_before):
    played(page, {"content": "yes"})
    if has_one_before:
        ask(page, FOX)
    attach(page, "hen.txt")
    page.evaluate(FULL)
    ask(page, "What is this?")
    assert "does not keep the conversation: full" in page.inner_text("#banner")
    reload(page)
    page.wait_for_selector(HEN)
    assert page.input_value("#question") == "What is this?"
    ask(page, "What is this?")
    reload(page)
    assert page.input_value("#question") == ""
    assert page.locator("#files li").count() == 0


@pytest.mark.parametrize("button", ["Delete", "Delete all"])
def test_what_is_deleted_while_it_is_answered_stays_deleted(page, button):
    page.add_init_script(SLOW_STREAM)
    reload(page)
    page.fill("#question", "slow")
    page.press("#question", "Enter")
    page.wait_for_selector("#messages:has-text('word 20')")
    page.fill("#question", "typed meanwhile")
    deleted(page, button)
    page.wait_for_selector("#list:has-text('Your conversations will stand here.')")
    reload(page)
    page.wait_for_selector("#list:has-text('Your conversations will stand here.')")
    drafts = "Object.keys(localStorage).filter((name) => name.includes('draft'))"
    assert page.evaluate(drafts) == []


def edited(page, number):
    """Edit that message, and wait for what is attached to it."""
    page.click(f"#messages li:nth-child({number}) >> text=Edit")
    page.wait_for_selector("#editing:not([hidden])")


def test_whoever_edits_loses_nothing_that_was_typed(page):
    """Neither by Edit, Escape and the arrow up, nor by a reload in between."""
    played(page, {"content": "yes"})
    ask(page, FOX)
    attach(page, "hen.txt")
    page.fill("#question", "half a quest")
    edited(page, 1)
    assert page.input_value("#question") == FOX
    assert page.locator("#files li").count() == 0
    page.fill("#question", "another quest")
    page.keyboard.press("Escape")
    page.wait_for_selector(HEN)
    assert page.input_value("#question") == "half a quest"
    page.fill("#question", "")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("#editing:not([hidden])")
    assert page.input_value("#question") == "another quest"
    reload(page)
    page.wait_for_selector("#editing:not([hidden])")
    assert page.input_value("#question") == "another quest"
    page.press("#question", "Enter")
    ended(page)
    page.wait_for_selector(HEN)
    assert page.locator("#messages li").count() == 2
    edited(page, 1)
    assert page.input_value("#question") == "another quest"


KEPT = """async () => {
  const { all } = await import("./page/store.js");
  return (await all()).map(({ messages }) => messages.map(({ content }) => content));
}"""


def test_a_question_in_another_tab_loses_nothing_of_the_conversation(page):
    played(page, {"content": "one"})
    ask(page, "First?")
    other = page.context.new_page()
    other.goto(page.url)
    other.click("#list button")
    other.wait_for_selector("#messages li:nth-child(2)")
    played(page, {"content": "two"})
    ask(page, "Second?")
    other.wait_for_selector("#messages li:nth-child(4):has-text('two')")
    played(other, {"content": "three"})
    ask(other, "Third?")
    page.wait_for_selector("#messages li:nth-child(6):has-text('three')")
    assert page.evaluate(KEPT) == [["First?", "one", "Second?", "two", "Third?", "three"]]
