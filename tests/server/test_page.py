"""The page at the server's address, in a browser that does what people do."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys

import pytest

from page_driver import (
    FOX,
    PATIENCE_MS,
    ask,
    ask_slowly,
    begin,
    chosen,
    delete,
    ended,
    exported,
    last_text,
    played,
    reload,
    set_option,
    visitor,
)
from server_runner import running_server

pytestmark = pytest.mark.process


def test_an_answer_comes_and_outlives_a_reload(page):
    ask(page, FOX)
    told = last_text(page)
    assert "fox" in told
    page.reload()
    page.wait_for_selector("#messages li:nth-child(2)")
    assert last_text(page) == told
    assert page.inner_text("#title") == FOX
    assert FOX in page.inner_text("#list")


def test_escape_stops_an_answer(page):
    ask_slowly(page, "word 3")
    page.keyboard.press("Escape")
    ended(page)
    assert "Stopped." in page.inner_text("#messages li:last-child")
    assert "word 3" in last_text(page)


VERSION = "#messages li:nth-child({}) .actions span"


def test_edit_and_retry_make_versions_that_stand_in_place(page):
    ask(page, FOX)
    first = last_text(page)
    page.click("#messages li:first-child >> text=Edit")
    assert page.input_value("#question") == FOX
    hen = "Tell me a story about a hen."
    ask(page, hen)
    played(page, {"content": "Another."})
    page.click("text=Retry")
    ended(page)
    assert page.inner_text(VERSION.format(1)) == page.inner_text(VERSION.format(2)) == "2/2"
    assert page.locator("#list li").count() == 1
    assert page.inner_text("#title") == hen
    page.click("#messages li:first-child >> [aria-label='Earlier version']")
    assert page.evaluate("document.activeElement.ariaLabel") == "Earlier version"
    assert page.inner_text("#said") == "Version 1 of 2."
    assert (page.inner_text("#title"), last_text(page)) == (FOX, first)
    assert page.locator("#messages li").count() == 2
    page.reload()
    page.wait_for_selector("#messages li:nth-child(2)")
    assert last_text(page) == first
    assert page.inner_text(VERSION.format(1)) == "1/2"
    page.click("[aria-label='Later version']")
    assert last_text(page) == "Another."
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "And then?")
    told = [each["content"] for each in asked.value.post_data_json["messages"]]
    assert told == [hen, "Another.", "And then?"]


def test_conversations_are_renamed_searched_and_deleted(page):
    ask(page, FOX)
    chosen(page, "Rename")
    page.fill("#ask-name input", "Of foxes")
    page.press("#ask-name input", "Enter")
    page.wait_for_selector("#list:has-text('Of foxes')")
    page.fill("#search", "no such words")
    page.wait_for_selector("#list:has-text('Nothing found.')", state="attached")
    page.fill("#search", "fox story")
    page.wait_for_selector("#list:has-text('Of foxes')")
    delete(page)
    page.wait_for_selector("#welcome:not([hidden])")
    assert page.inner_text("#title") == "New chat"


@pytest.mark.parametrize("kind", ["Markdown", "JSON"])
def test_an_exported_conversation_is_imported_as_it_was(page, tmp_path, kind):
    set_option(page, "system", "Be brief -- and kind.")
    played(page, {"content": "first"})
    ask(page, "Which?\n\n# Two")
    played(page, {"content": "one\n\n<!-- message user -->\n\n* two\n\n"})
    page.click("text=Retry")
    ended(page)
    page.click("text=Edit")
    ask(page, "What?")
    page.click("#messages li:first-child >> [aria-label='Earlier version']")
    file = exported(page, kind, tmp_path)
    delete(page)
    page.set_input_files("#import-file", file)
    page.click("#list button")
    page.wait_for_selector("#messages li:nth-child(2)")
    told = exported(page, "Markdown", tmp_path).read_text()
    assert "Which?\n\n# Two" in told
    assert "one\n\n<!-- message user -->\n\n* two" in told
    assert page.inner_text(VERSION.format(1)) == "1/2"
    assert page.inner_text(VERSION.format(2)) == ("1/2" if kind == "Markdown" else "2/2")
    page.click("#messages li:nth-child(2) >> [aria-label='Earlier version']")
    assert last_text(page) == "first"
    page.click("#messages li:first-child >> [aria-label='Later version']")
    assert page.inner_text("#messages li:first-child .text") == "What?"
    page.click("#show-settings")
    assert page.input_value("#settings [name=system]") == "Be brief -- and kind."


def test_text_is_attached_and_other_files_are_refused(page, tmp_path):
    (tmp_path / "bad.bin").write_bytes(b"\xff\x00")
    page.set_input_files("#attach-files", tmp_path / "bad.bin")
    page.wait_for_selector("#banner:not([hidden])")
    assert "bad.bin is not a text file" in page.inner_text("#banner")
    (tmp_path / "notes.txt").write_text("the hen is red")
    page.set_input_files("#attach-files", tmp_path / "notes.txt")
    page.wait_for_selector("#files li")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "Which colour?")
    content = asked.value.post_data_json["messages"][-1]["content"]
    assert "notes.txt:\n```\nthe hen is red\n```" in content


def test_settings_reach_the_model_and_errors_come_in_its_words(page):
    set_option(page, "drafting", "3")
    set_option(page, "temperature", "0")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, FOX)
    body = asked.value.post_data_json
    assert (body["draft_tokens"], body["temperature"]) == (3, 0)
    set_option(page, "max_tokens", "0")
    begin(page, "again")
    page.wait_for_selector("#messages .error")
    assert "max_tokens" in page.inner_text("#messages .error")
    page.wrong[:] = [each for each in page.wrong if "400" not in each]  # the browser's own note


def test_the_live_picture_grows_with_the_answer(page):
    """What each step tried is there before the answer ends."""
    page.keyboard.press("Alt+l")
    ask_slowly(page, "word 40")
    page.wait_for_selector("#live:has-text('of 40 (')")  # it is drawn a moment later
    told = page.inner_text("#live")
    for words in (
        "would not pay",
        "20 of 40 (50 %)",
        "Threads\n7",
        "How many tokens each step drafted",
    ):
        assert words in told
    assert int(re.search(r"(\d+) of \d+ tokens", told)[1]) > 1000  # of the context
    page.keyboard.press("Escape")
    ended(page)


def test_a_key_is_asked_for_once_and_kept_for_the_tab(browser):
    with running_server(keys=["secret"]) as running:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(running.url)
        page.fill("#key input", "secret")
        page.press("#key input", "Enter")
        ask(page, FOX)
        assert "fox" in last_text(page)
        assert page.evaluate("JSON.stringify(localStorage)").count("secret") == 0
        page.close()


@contextlib.contextmanager
def serving(port=0):
    """The address of a `localspec serve`, which is killed when the block is left."""
    command = [sys.executable, "-m", "localspec", "serve", "demo", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            ready = next(line for line in process.stderr if line.startswith("Listening on "))
            yield ready.split()[2]
        finally:
            process.kill()


def test_an_answer_goes_on_after_its_server_was_killed(browser):
    """What came and what is typed stay while there is none."""
    with contextlib.ExitStack() as pages:
        with serving() as url:
            page = pages.enter_context(visitor(browser, url))
            schema = {"type": "array", "items": {"type": "integer"}, "minItems": 900}
            set_option(page, "form", "schema")  # so long that it is still coming
            set_option(page, "schema", json.dumps(schema))
            begin(page, "Count.")
            page.wait_for_selector("#messages .assistant .text:has-text('[')")
            page.fill("#question", "typed meanwhile")
        page.wait_for_selector("#messages .error")
        before = last_text(page)
        with serving(url.rpartition(":")[2].strip("/")):
            page.wait_for_selector("#banner:has-text('The server is back.')")
            assert page.input_value("#question") == "typed meanwhile"
            set_option(page, "max_tokens", "8")
            page.click("text=Continue")
            ended(page)
            assert last_text(page).startswith(before)
            assert len(last_text(page)) > len(before) > 0
        page.wrong.clear()  # the browser's own notes of the connections that failed


@pytest.mark.parametrize("button", ["Delete", "Delete all"])
def test_what_is_deleted_while_it_is_answered_stays_deleted(page, button):
    ask_slowly(page, "word 20")
    page.fill("#question", "typed meanwhile")
    if button == "Delete":
        delete(page)
    else:
        page.click("#show-settings")
        page.click("#delete-all")
        page.click("#confirm button[value=yes]")
    page.wait_for_selector("#list:has-text('Your conversations will appear here.')")
    reload(page)
    page.wait_for_selector("#list:has-text('Your conversations will appear here.')")
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
    hen = "#files li:has-text('hen.txt')"
    held = {"name": "hen.txt", "mimeType": "text/plain", "buffer": b"a hen"}
    page.set_input_files("#attach-files", [held])
    page.wait_for_selector(hen)
    page.fill("#question", "half a quest")
    edited(page, 1)
    assert page.input_value("#question") == FOX
    assert page.locator("#files li").count() == 0
    page.fill("#question", "another quest")
    page.keyboard.press("Escape")
    page.wait_for_selector(hen)
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
    page.wait_for_selector(hen)
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
