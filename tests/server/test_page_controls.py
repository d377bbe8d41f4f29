"""What people do on the page with fingers, menus, settings and files."""

from __future__ import annotations

import codecs
import mimetypes

import pytest

from localspec.chat.attachment import text_of
from page_driver import (
    FOX,
    ask,
    ask_slowly,
    begin,
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


def test_on_a_telephone_enter_begins_a_line_and_the_button_sends(browser, server):
    size = {"width": 390, "height": 844}
    with visitor(browser, server.url, viewport=size, has_touch=True, is_mobile=True) as page:
        assert page.evaluate("matchMedia('(pointer: coarse)').matches")
        shown = page.get_attribute("#question", "placeholder")
        assert shown == "Ask something. Enter for a new line; the button sends."
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
        assert shown == "Ask something. Enter to send, Shift+Enter for a new line."


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
        ("tools", WEATHER[:-1], "“Tools” in the settings is not valid JSON"),
        ("tools", WEATHER[1:-1], "“Tools” in the settings is not a list"),
        ("schema", '{"type": ', "“JSON schema” in the settings is not valid JSON"),
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
    page.click("text=Enter the result")
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


LETTER = "Grüße, “naïve” \N{EN DASH} 5 €\r\nzweite Zeile"
SHOWN = LETTER.replace("\r\n", "\n")


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-be", "utf-32-le", "utf-32-be"],
)
def test_texts_of_any_encoding_are_read_as_the_terminal_reads_them(page, encoding):
    marks = {
        "utf-16-be": codecs.BOM_UTF16_BE,
        "utf-32-le": codecs.BOM_UTF32_LE,
        "utf-32-be": codecs.BOM_UTF32_BE,
    }
    data = marks.get(encoding, b"") + LETTER.encode(encoding)
    assert text_of(data) == SHOWN
    played(page, {"content": "yes"})
    attach(page, "letter.txt", data)
    page.wait_for_selector("#files li:has-text('letter.txt')")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "Which?")
    content = asked.value.post_data_json["messages"][-1]["content"]
    assert content == f"letter.txt:\n```\n{SHOWN}\n```\n\nWhich?"


@pytest.mark.parametrize(
    "data",
    [
        "größer, kürzer".encode() + b" \xfc",  # damaged UTF-8
        b"caf\xe9 \x01",
        b"caf\xe9 \x81",
        b"a\0b",
        codecs.BOM_UTF16_LE + b"a",
        codecs.BOM_UTF32_LE + b"\0\xd8\0\0",
    ],
)
def test_what_is_no_text_is_refused_here_and_in_the_terminal(page, data):
    with pytest.raises(ValueError, match="byte"):
        text_of(data)
    attach(page, "bad.txt", data)
    page.wait_for_selector("#banner:has-text('bad.txt is not a text file.')")
    assert page.locator("#files li").count() == 0


def test_a_pdf_is_refused_though_all_its_characters_are_text(page):
    attach(page, "paper.pdf", b"%PDF-1.4\n1 0 obj << >> endobj\n%%EOF\n")
    page.wait_for_selector("#banner:has-text('paper.pdf is a PDF. Convert it to text first')")
    assert page.locator("#files li").count() == 0


def test_an_arrow_leads_back_to_an_answer_that_is_coming(browser, server):
    at_end = "field => field.scrollHeight - field.scrollTop - field.clientHeight < 40"
    to_top = "field => { field.scrollTop = 0; }"
    size = {"width": 390, "height": 420}
    with visitor(browser, server.url, viewport=size) as page:
        ask_slowly(page, "word 120")
        scroll = page.locator("#scroll")
        assert page.is_hidden("#to-end")
        scroll.evaluate(to_top)
        page.click("#to-end")
        page.wait_for_selector("#to-end", state="hidden")
        page.wait_for_selector("#messages:has-text('word 200')")
        assert scroll.evaluate(at_end)
        scroll.evaluate(to_top)
        page.wait_for_selector("#to-end")
        page.keyboard.press("Escape")
        ended(page)
        page.click("#show-list")
        page.click("#new")
        assert page.is_hidden("#to-end")


def test_lists_of_an_answer_have_plain_bullets(page):
    played(page, {"content": "* one\n  * two\n    * three\n\n1. first\n   * a\n"})
    ask(page, "List.")
    lists = page.locator("#messages .text ul")
    assert lists.count() == 4
    kinds = "lists => lists.map((list) => getComputedStyle(list).listStyleType)"
    assert set(lists.evaluate_all(kinds)) == {"disc"}


def test_one_of_a_thing_is_named_as_one(page, tmp_path):
    counts = {"prompt_n": 1, "cache_n": 0, "prompt_ms": 1, "predicted_n": 1, "predicted_ms": 1}
    played(page, {"content": "yes"}, more={"timings": counts})
    attach(page, "a.txt", b"x")
    page.wait_for_selector("#files li")
    ask(page, "Which?")
    assert page.inner_text("#said") == "The answer is complete: 1 word."
    assert page.inner_text("#messages .file").endswith("a.txt, 1 character")
    page.keyboard.press("Alt+l")
    assert "1 token read" in page.inner_text("#live")
    lengths = page.locator("#settings [name=drafting] option").all_text_contents()
    assert lengths[2:4] == ["1 token", "2 tokens"]
    page.set_input_files("#import-file", exported(page, "JSON", tmp_path))
    page.wait_for_selector("#said:has-text('Imported: 1 conversation.')", state="attached")


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Tell me a story about a fox.", "Tell me a story about a fox.md"),
        ("Is it red? Or…", "Is it red Or.md"),
        ("..", "chat.md"),
        ("हिन्दी में/कहो", "हिन्दी में कहो.md"),
        ("🦊" * 3 + "a" * 70, "a" * 59 + ".md"),
    ],
)
def test_an_exported_file_has_a_name_with_one_dot(page, tmp_path, title, name):
    played(page, {"content": "yes"})
    ask(page, title)
    assert exported(page, "Markdown", tmp_path).name == name


def test_new_chats_begin_with_the_settings_that_were_chosen_for_them(page):
    set_option(page, "system", "Be brief.")
    set_option(page, "temperature", "0")
    page.click("#show-settings")
    page.click("text=Use for new chats")
    assert "New chats begin with these settings." in page.inner_text("#settings")
    page.keyboard.press("Escape")
    reload(page)
    played(page, {"content": "yes"})
    for text in ("First?", "Second?"):
        page.click("#new")
        with page.expect_request("**/v1/chat/completions") as asked:
            ask(page, text)
        body = asked.value.post_data_json
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert body["temperature"] == 0
    set_option(page, "system", "")  # of this chat alone
    page.click("#new")
    page.click("#show-settings")
    assert page.input_value("#settings [name=system]") == "Be brief."
    page.fill("#settings [name=system]", "")
    assert "New chats begin" not in page.inner_text("#settings")


def test_settings_outlive_a_reload_before_the_first_question(page):
    set_option(page, "system", "Be brief.")
    reload(page)
    played(page, {"content": "yes"})
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "First?")
    assert asked.value.post_data_json["messages"][0]["content"] == "Be brief."
    page.click("#new")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "Second?")
    assert [each["role"] for each in asked.value.post_data_json["messages"]] == ["user"]


def test_a_prompt_that_can_never_fit_is_not_tried_again(browser):
    with running_server(context_length=256) as running, visitor(browser, running.url) as page:
        begin(page, "fox " * 2000)
        page.wait_for_selector("#messages .error:has-text('tokens')")
        buttons = page.locator("#messages li:last-child .actions button")
        assert buttons.all_inner_texts() == ["Copy"]
        reload(page)
        page.wait_for_selector("#messages .error")
        assert buttons.all_inner_texts() == ["Copy"]
        page.wrong.clear()  # the browser's own note
        set_option(page, "max_tokens", "8")
        page.click("#messages li:first-child >> text=Edit")
        ask(page, FOX)
        assert "Retry" in buttons.all_inner_texts()


def attach(page, name, data):
    kind = mimetypes.guess_type(name)[0]
    page.set_input_files("#attach-files", [{"name": name, "mimeType": kind, "buffer": data}])
