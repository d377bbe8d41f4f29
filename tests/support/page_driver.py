"""Drives the page at the server's address as people do, for the tests of it."""

from __future__ import annotations

import contextlib
import json
import shutil

import pytest

PATIENCE_MS = 120_000  # a busy machine loads models slowly
FOX = "Tell me a story about a fox."
QUIET = "--disable-gpu --disable-quic --no-first-run --disable-background-networking"


def browser_path():
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@contextlib.contextmanager
def headless_browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright drives the page")
    path = browser_path()
    if path is None:
        pytest.skip("there is no Chromium to open the page with")
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-sync", *QUIET.split()]
        browser = started.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@contextlib.contextmanager
def visitor(browser, url, **options):
    """The page of a visitor who was never here, without an error and a foreign request."""
    rights = ["clipboard-read", "clipboard-write"]
    context = browser.new_context(permissions=rights, **options)
    context.set_default_timeout(PATIENCE_MS)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
    page.on("request", lambda asked: wrong.append(asked.url) if foreign(asked, url) else 0)
    page.goto(url)
    page.wait_for_selector("#model option", state="attached")
    page.wrong = wrong
    yield page
    assert wrong == [], wrong
    context.close()


def foreign(asked, url):
    return not asked.url.startswith((url, "blob:", "data:"))


def begin(page, text):
    page.fill("#question", text)
    page.press("#question", "Enter")


def ask(page, text):
    begin(page, text)
    ended(page)


def reload(page):
    page.reload()
    page.wait_for_selector("#model option", state="attached")


def ask_slowly(page, word):
    """Ask what is answered word by word, and wait for that word."""
    page.add_init_script(SLOW_STREAM)
    reload(page)
    begin(page, "slow")
    page.wait_for_selector(f"#messages:has-text('{word}')")


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


def delete(page):
    chosen(page, "Delete")
    page.click("#confirm button[value=yes]")


def exported(page, kind, folder):
    """The file into which the conversation was exported."""
    with page.expect_download() as download:
        chosen(page, f"Export as {kind}")
    download.value.save_as(folder / download.value.suggested_filename)
    return folder / download.value.suggested_filename


def last_text(page):
    return page.inner_text("#messages li:last-child .text")


def played(page, *deltas, reason="stop", more=None):
    """Have the next answers be these pieces, whatever is asked.

    more: what the last of their events says as well.
    """
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices += [{"index": 0, "delta": {}, "finish_reason": reason}]
    told = [{"choices": [choice]} for choice in choices]
    told[-1] |= more or {}
    events = [*map(json.dumps, told), "[DONE]"]
    body = "".join(f"data: {event}\n\n" for event in events)
    headers = {"content-type": "text/event-stream"}
    page.route("**/v1/chat/completions", lambda r: r.fulfill(body=body, headers=headers))


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
