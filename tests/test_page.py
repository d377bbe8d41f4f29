"""The page at the server's address, in a browser that does what people do."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from server_runner import running_server

pytestmark = pytest.mark.process
PATIENCE_MS = 120_000  # a busy machine loads models slowly
FOX = "Tell me a story about a fox."
QUIET = "--disable-gpu --disable-quic --no-first-run --disable-background-networking"


@pytest.fixture(scope="module")
def running():
    with running_server() as running:
        yield running


def browser_path():
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright drives the page")
    path = browser_path()
    if path is None:
        pytest.skip("there is no Chromium to open the page with")
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-sync", *QUIET.split()]
        browser = started.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, running):
    """The page of a visitor who was never here, without an error and a foreign request."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE_MS)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
    page.on("request", lambda asked: wrong.append(asked.url) if foreign(asked, running) else 0)
    page.goto(running.url)
    page.wait_for_selector("#model option", state="attached")
    page.wrong = wrong
    yield page
    assert wrong == []
    context.close()


def foreign(asked, running):
    return not asked.url.startswith((running.url, "blob:"))


def ask(page, text):
    page.fill("#question", text)
    page.press("#question", "Enter")
    ended(page)


def ended(page):
    page.wait_for_selector("#send:not([hidden])")
    page.wait_for_selector("#messages li:last-child .actions")


def set_option(page, name, value):
    page.click("#show-settings")
    field = page.locator(f"#settings [name={name}]")
    if field.evaluate("field => field.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)
    page.keyboard.press("Escape")


def chosen(page, title):
    page.click("#menu summary")
    page.click(f"#menu button:text-is('{title}')")


def last_text(page):
    return page.inner_text("#messages li:last-child .text")


def played(page, *deltas, reason="stop"):
    """Have the next answers be these pieces, whatever is asked."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices += [{"index": 0, "delta": {}, "finish_reason": reason}]
    events = [json.dumps({"choices": [choice]}) for choice in choices] + ["[DONE]"]
    body = "".join(f"data: {event}\n\n" for event in events)
    headers = {"content-type": "text/event-stream"}
    page.route("**/v1/chat/completions", lambda r: r.fulfill(body=body, headers=headers))


# ---- A person


def test_a_first_visit_says_what_this_is(page):
    welcome = page.inner_text("#welcome")
    assert "speculative decoding" in welcome
    assert "Nothing leaves this machine" in welcome
    assert "kept in this browser" in welcome


def test_an_answer_comes_and_outlives_a_reload(page):
    ask(page, FOX)
    told = last_text(page)
    assert "fox" in told
    page.reload()
    page.wait_for_selector("#messages li:nth-child(2)")
    assert last_text(page) == told
    assert page.inner_text("#title") == FOX
    assert FOX in page.inner_text("#list")


def test_what_is_typed_outlives_a_reload(page):
    page.fill("#question", "half a quest")
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    assert page.input_value("#question") == "half a quest"


def test_stop_keeps_what_came_and_go_on_continues_it(page):
    set_option(page, "max_tokens", "8")
    ask(page, FOX)
    before = last_text(page)
    assert "reached its most tokens" in page.inner_text("#messages li:last-child")
    page.click("text=Go on")
    ended(page)
    assert last_text(page).startswith(before)
    assert len(last_text(page)) > len(before)


def test_escape_stops_an_answer(page):
    page.add_init_script(SLOW_STREAM)
    page.reload()
    page.fill("#question", "slow")
    page.press("#question", "Enter")
    page.wait_for_selector("#messages:has-text('word 3')")
    page.keyboard.press("Escape")
    ended(page)
    assert "Stopped." in page.inner_text("#messages li:last-child")
    assert "word 3" in last_text(page)


def test_edit_and_retry_keep_the_earlier_version(page):
    ask(page, FOX)
    page.click("#messages li:first-child >> text=Edit")
    assert page.input_value("#question") == FOX
    ask(page, "Tell me a story about a hen.")
    assert page.locator("#list li").count() == 2
    page.click("text=Retry")
    ended(page)
    assert page.locator("#list li").count() == 3


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
    chosen(page, "Delete")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector("#welcome:not([hidden])")
    assert page.inner_text("#title") == "New chat"


@pytest.mark.parametrize("kind", ["Markdown", "JSON"])
def test_an_exported_conversation_is_imported_as_it_was(page, tmp_path, kind):
    played(page, {"content": "one\n\n<!-- message user -->\n\n* two\n\n"})
    set_option(page, "system", "Be brief -- and kind.")
    ask(page, "Which?\n\n# Two")
    with page.expect_download() as download:
        chosen(page, f"Export as {kind}")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    chosen(page, "Delete")
    page.click("#confirm button[value=yes]")
    page.set_input_files("#import-file", file)
    page.click("#list button")
    page.wait_for_selector("#messages li:nth-child(2)")
    with page.expect_download() as download:
        chosen(page, "Export as Markdown")
    download.value.save_as(tmp_path / "again.md")
    told = (tmp_path / "again.md").read_text()
    assert "Which?\n\n# Two" in told
    assert "one\n\n<!-- message user -->\n\n* two" in told
    page.click("#show-settings")
    assert page.input_value("#settings [name=system]") == "Be brief -- and kind."


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ('{"messages": 3}', "x.json holds no conversations"),
        ("# Notes", "x.json is neither JSON nor"),
        (
            '{"kind": "localspec conversations", "conversations": [{"messages": '
            '[{"role": "user", "content": "x", "files": "y"}]}]}',
            "messages that are not as this page writes them",
        ),
    ],
)
def test_a_file_that_is_no_conversation_is_refused_in_words(page, tmp_path, held, words):
    (tmp_path / "x.json").write_text(held)
    page.set_input_files("#import-file", tmp_path / "x.json")
    page.wait_for_selector("#banner:not([hidden])")
    assert words in page.inner_text("#banner")
    assert page.inner_text("#list") == "Your conversations will stand here."


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
    page.fill("#question", "again")
    page.press("#question", "Enter")
    page.wait_for_selector("#messages .error")
    assert "max_tokens" in page.inner_text("#messages .error")
    page.wrong[:] = [each for each in page.wrong if "400" not in each]  # the browser's own note


def test_tokens_are_shown_with_what_else_could_have_come(page):
    set_option(page, "alternatives", "5")
    set_option(page, "drafting", "3")
    ask(page, FOX)
    page.click("text=Tokens")
    sources = page.evaluate(
        "[...document.querySelectorAll('.tokens .token')].map(t => t.className)"
    )
    assert {"token accepted", "token plain"} <= set(sources)
    page.focus(".tokens")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".about").count("%") > 3
    page.click("text=Tokens")
    assert "fox" in last_text(page)


def test_the_live_picture_explains_the_answer(page):
    page.keyboard.press("Alt+l")
    set_option(page, "drafting", "3")
    ask(page, FOX)
    told = page.inner_text("#live")
    for words in ("tokens/s", "Drafted tokens kept", "Threads", "Context", "Who drafted"):
        assert words in told


def test_the_live_picture_grows_with_the_answer(page):
    """What each step tried is there before the answer ends."""
    page.add_init_script(SLOW_STREAM)
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    page.keyboard.press("Alt+l")
    page.fill("#question", "slow")
    page.press("#question", "Enter")
    page.wait_for_selector("#messages:has-text('word 40')")
    told = page.inner_text("#live")
    for words in ("would not pay", "20 of 40 (50 %)", "Threads\n7", "Steps by tokens"):
        assert words in told
    assert int(re.search(r"(\d+) of \d+ tokens", told)[1]) > 1000  # of the context
    page.keyboard.press("Escape")
    ended(page)


def test_the_live_picture_shows_what_decodes_cost_here(page):
    page.keyboard.press("Alt+l")
    set_option(page, "max_tokens", "120")
    ask(page, FOX)
    assert "v(n)" in page.inner_text("#live")
    assert page.locator("#live .bars:last-of-type tr").count() > 1


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


# ---- A hostile model, and a server that dies

HOSTILE = """<script>window.owned = 1</script> <img src=x onerror="window.owned = 1">
[link](javascript:owned=1) ![a](https://example.org/x.png) <iframe src="/v1/models"></iframe>

<svg onload="owned=1"></svg><form id="composer"><input name="question"></form>

```html
<script>window.owned = 1</script>
```

| a | b |
|---|---|
| <b onclick=owned=1>x</b> | \x00\x07\x1b[31m \u202eright |
"""


def test_a_models_html_is_text(page):
    played(page, {"content": HOSTILE[:150]}, {"content": HOSTILE[150:]})
    ask(page, "attack")
    page.wait_for_selector("#messages .hljs-tag")
    assert page.evaluate("window.owned") is None
    inside = "#messages :is(script, img, iframe, svg, form, input, [onclick], [onerror])"
    assert page.locator(inside).count() == 0
    assert page.locator("#messages a[href^='javascript']").count() == 0
    assert "<script>window.owned = 1</script>" in last_text(page)


def test_a_line_of_a_megabyte_is_shown_whole(page):
    played(page, *[{"content": "word " * 2000}] * 100)
    ask(page, "much")
    assert (
        page.evaluate(
            "document.querySelector('#messages li:last-child .text').textContent.length"
        )
        >= 999_999
    )


def test_calls_of_tools_are_shown_and_their_results_sent(page):
    function = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    played(
        page,
        {"tool_calls": [{"index": 0, "id": "c1", "function": function}]},
        reason="tool_calls",
    )
    ask(page, "Rain?")
    assert '"city": "Ulm"' in page.inner_text(".call")
    page.click("text=Give the result")
    page.fill(".results textarea", "dry")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.click(".results button")
    messages = asked.value.post_data_json["messages"]
    assert messages[-1] == {"role": "tool", "content": "dry", "tool_call_id": "c1"}
    assert messages[-2]["tool_calls"][0]["function"] == function


def test_a_server_that_dies_loses_nothing_and_is_noticed_when_it_returns(page):
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.route("**/health", lambda route: route.abort())
    page.fill("#question", FOX)
    page.press("#question", "Enter")
    page.wait_for_selector("#messages .error")
    assert "does not answer" in page.inner_text("#messages .error")
    assert FOX in page.inner_text("#messages")
    page.unroute("**/v1/chat/completions")
    page.unroute("**/health")
    page.wait_for_selector("#said:has-text('The server is back.')", state="attached")
    page.click("text=Retry")
    ended(page)
    assert "fox" in last_text(page)
    page.wrong.clear()  # the browser's own notes of the connections that failed


# ---- Everybody


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(
    browser, running, width, colours
):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core")
    size = {"width": width, "height": 700}
    context = browser.new_context(viewport=size, color_scheme=colours, bypass_csp=True)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(running.url)
    page.wait_for_selector("#model option", state="attached")
    states = [lambda: None, lambda: ask(page, FOX), lambda: page.click("text=Tokens")]
    states += [lambda: page.click("#show-settings")]
    for reach in states:
        reach()
        found = axe.Axe().run(page).response
        assert found["passes"]
        assert [each["help"] for each in found["violations"]] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


SLOW_STREAM = """
const real = window.fetch;
window.fetch = (path, options) => {
  if (!String(path).endsWith("chat/completions")) return real(path, options);
  let number = 0, timer;
  const stream = new ReadableStream({
    start(to) {
      options.signal.addEventListener("abort", () => {
        clearInterval(timer);
        to.error(new DOMException("stopped", "AbortError"));
      });
      timer = setInterval(() => {
        const told = { prompt_tokens: 1000, drafted: 2, accepted: 1, threads: 7 };
        const off = { ...told, drafted: 0, accepted: 0, draft_off: "would not pay" };
        const delta = { content: `word ${++number} ` };
        const step = number <= 20 ? told : off;
        const choice = { index: 0, delta, step, provenance: "plain" };
        const event = `data: ${JSON.stringify({ choices: [choice] })}\\n\\n`;
        to.enqueue(new TextEncoder().encode(event));
      }, 20);
    },
  });
  return Promise.resolve(new Response(stream));
};
"""
