"""The same conversation in two tabs of a browser: nothing is lost, and one of them answers."""

from __future__ import annotations

import pytest

from page_driver import ask, ask_slowly, begin, chosen, delete, ended, played, reload

pytestmark = pytest.mark.process

KEPT = """async () => {
  const { all } = await import("./page/store.js");
  return (await all()).map(({ messages }) => messages.map(({ content }) => content));
}"""
# As at a plain http address of another machine.
NO_LOCKS = "Object.defineProperty(navigator, 'locks', { value: undefined });"
# As a tab that was frozen, and hears of nothing.
DEAF = NO_LOCKS + "window.BroadcastChannel = class { postMessage() {} };"


def other_tab(page, script=""):
    """A second tab that shows the first conversation."""
    other = page.context.new_page()
    other.add_init_script(script)
    other.goto(page.url)
    other.wait_for_selector("#model option", state="attached")
    other.click("#list button")
    other.wait_for_selector("#messages li:nth-child(2)")
    return other


def kept(page):
    """What the messages of the one conversation in the store say."""
    [messages] = page.evaluate(KEPT)
    return messages


@pytest.mark.parametrize("script", ["", NO_LOCKS], ids=["locks", "no locks"])
def test_one_tab_answers_and_the_other_follows(page, script):
    page.add_init_script(script)
    ask_slowly(page, "word 3")
    other = other_tab(page, script)
    other.wait_for_selector("#line:has-text('This chat is being answered in another tab.')")
    assert other.is_disabled("#send")
    other.wait_for_selector("#messages li:nth-child(2):has-text('word 60')")
    assert "Interrupted" not in other.inner_text("#messages")
    assert other.locator("#messages li:last-child .actions").count() == 0
    begin(other, "And then?")
    other.wait_for_selector("#said:has-text('another tab')", state="attached")
    assert other.input_value("#question") == "And then?"
    page.keyboard.press("Escape")
    ended(page)
    other.wait_for_selector("#send:not([disabled])")
    other.wait_for_selector("#messages li:last-child:has-text('Stopped.')")
    assert other.inner_text("#line") == ""
    played(other, {"content": "two"})
    other.press("#question", "Enter")
    page.wait_for_selector("#messages li:nth-child(4):has-text('two')")
    first, answered, *rest = kept(page)
    assert (first, rest) == ("slow", ["And then?", "two"])
    assert answered.startswith("word 1 word 2 word 3 ")
    assert len(answered.split()) >= 120


def test_a_tab_that_is_closed_leaves_the_chat_to_the_other(page):
    ask_slowly(page, "word 3")
    other = other_tab(page)
    other.wait_for_selector("#send[disabled]")
    other.wait_for_selector("#messages:has-text('word 3')")  # what is kept has got so far
    page.close()
    other.wait_for_selector("#send:not([disabled])")
    other.wait_for_selector("#messages li:last-child:has-text('interrupted')")
    played(other, {"content": "two"})
    ask(other, "And then?")
    first, answered, *rest = kept(other)
    assert (first, rest) == ("slow", ["And then?", "two"])
    assert answered.startswith("word 1 word 2 word 3 ")


def test_nothing_is_lost_where_tabs_know_nothing_of_each_other(page):
    """Each writes while the other does, and has another part of the conversation."""
    ask_slowly(page, "word 3")
    other = other_tab(page, DEAF)
    played(other, {"content": "two"})
    ask(other, "And then?")
    ask(other, "And now?")
    page.wait_for_selector("#messages li:nth-child(2):has-text('word 120')")
    page.keyboard.press("Escape")
    ended(page)
    found = kept(page)
    assert found[0] == "slow"
    assert found[2:] == ["And then?", "two", "And now?", "two"]
    assert len(found[1].split()) >= 240
    page.reload()
    page.wait_for_selector("#messages li:nth-child(2)")
    assert len(kept(page)) == 6


def test_a_name_that_another_tab_gives_outlives_the_answer(page):
    ask_slowly(page, "word 3")
    other = other_tab(page)
    chosen(other, "Rename")
    other.fill("#ask-name input", "Of words")
    other.press("#ask-name input", "Enter")
    page.wait_for_selector("#title:has-text('Of words')")
    page.keyboard.press("Escape")
    ended(page)
    page.reload()
    page.wait_for_selector("#list:has-text('Of words')")
    assert page.inner_text("#title") == "Of words"


def test_what_another_tab_deletes_while_it_is_answered_stays_deleted(page):
    ask_slowly(page, "word 3")
    delete(other_tab(page))
    page.wait_for_selector("#banner:has-text('The chat was deleted in another tab.')")
    page.wait_for_selector("#list:has-text('Your conversations will appear here.')")
    page.wait_for_selector("#send:not([hidden])")
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    assert page.evaluate(KEPT) == []


def test_a_chat_of_an_earlier_page_without_ids_is_merged(page):
    """Its messages are the same in both tabs, and none stands there twice."""
    page.evaluate(
        """async () => {
          const { put, newConversation } = await import("./page/store.js");
          const messages = [
            { role: "user", content: "Old?" },
            { role: "assistant", content: "one" },
          ];
          await put({ ...newConversation(), title: "Old?", messages, end: 1 });
        }"""
    )
    reload(page)
    page.click("#list button")
    page.wait_for_selector("#messages li:nth-child(2)")
    other = other_tab(page, DEAF)
    for tab, text in ((page, "two"), (other, "three")):
        played(tab, {"content": text})
        ask(tab, f"{text}?")
    assert kept(page) == ["Old?", "one", "two?", "two", "three?", "three"]
