"""The page before a hostile model, and beside a server that dies."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from page_driver import (
    FOX,
    ask,
    ended,
    last_text,
    played,
    set_option,
    visitor,
)

pytestmark = pytest.mark.process


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


def test_control_characters_neither_break_nor_disguise_the_page(page):
    """Nor does an answer in which nothing ever ends; the page still answers afterwards."""
    signs = "".join(map(chr, [*range(32), *range(127, 160), 0x202E, 0x2066, 0xFEFF, 0xFFFF]))
    endless = "[" * 3000 + "> " * 300 + "`" * 2001 + "*" * 999 + "| a " * 500
    played(page, {"content": f"before {signs} after\n\n"}, {"content": endless})
    ask(page, signs)
    assert (
        page.locator("#messages li:last-child .text")
        .evaluate("t => t.textContent")
        .count("after")
    )
    page.unroute("**/v1/chat/completions")
    page.keyboard.press("Alt+n")
    ask(page, FOX)
    assert "fox" in last_text(page)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextlib.contextmanager
def serving(port, folder):
    """A `localspec serve` of the demo pair, killed with its children when the block is left."""
    command = [sys.executable, "-m", "localspec", "serve", "demo", "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder)
    try:
        assert process.stderr.readline().startswith("Listening on http://127.0.0.1:")
        yield
    finally:
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_a_server_that_is_killed_in_mid_answer_and_started_again(browser, tmp_path):
    """What came and what is typed stay, and the answer goes on with the next server."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        with serving(port, tmp_path):
            page = stack.enter_context(visitor(browser, f"http://127.0.0.1:{port}"))
            schema = {"type": "array", "items": {"type": "integer"}, "minItems": 900}
            set_option(page, "form", "schema")  # so long that it is still coming
            set_option(page, "schema", json.dumps(schema))
            page.fill("#question", "Count.")
            page.press("#question", "Enter")
            page.wait_for_selector("#messages .assistant .text:has-text('[')")
            page.fill("#question", "typed meanwhile")
        page.wait_for_selector("#messages .error")
        before = last_text(page)
        assert before.startswith("[")
        told = page.inner_text("#messages .error")
        assert re.search("broke|ended before|does not answer", told)
        with serving(port, tmp_path):
            page.wait_for_selector("#banner:has-text('The server is back.')")
            assert page.input_value("#question") == "typed meanwhile"
            set_option(page, "max_tokens", "8")
            page.click("text=Go on")
            ended(page)
            assert last_text(page).startswith(before)
            assert len(last_text(page)) > len(before)
        page.wrong.clear()  # the browser's own notes of the connections that failed


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
