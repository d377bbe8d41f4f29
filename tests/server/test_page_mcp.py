"""Calls of MCP servers' tools on the page: shown, asked about, made or not, and answered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import localspec
from call_families import write_tool_caller
from inside import calls_under_way
from page_driver import begin, headless_browser, reload, set_option, visitor
from server_runner import presets_of, running_server
from waiting import wait_until

pytest.importorskip("mcp", reason="the MCP SDK is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")

pytestmark = pytest.mark.process
SERVER = Path(__file__).parents[1] / "support" / "mcp_server.py"
CALLED = ("now", "erase", "hang", "draw")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Of models that call a tool of the tests' MCP server once, and say Done."""
    folder = tmp_path_factory.mktemp("mcp")
    files = {name: write_tool_caller(folder / f"{name}.gguf", name) for name in CALLED}
    entry = {"command": sys.executable, "args": [str(SERVER)], "timeout": 60}
    with (
        pytest.MonkeyPatch.context() as patch,
        presets_of(folder, **{name: (path, 2048) for name, path in files.items()}),
        localspec.McpServers({"mcpServers": {"tests": entry}}, allowed_tools=CALLED) as servers,
        running_server(presets=list(files), tool_servers=servers) as running,
    ):
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield running


@pytest.fixture(scope="module")
def browser():
    with headless_browser() as found:
        yield found


@pytest.fixture
def page(browser, server):
    with visitor(browser, server.url) as found:
        found.select_option("#model", "now")
        set_option(found, "temperature", "0")
        yield found


def texts(page):
    return page.locator("#messages > li").all_inner_texts()


def done(page, times):
    """Wait until the model has said Done. so often."""
    page.get_by_text("Done.").nth(times - 1).wait_for()


def test_a_call_waits_for_an_answer_and_goes_on(page):
    begin(page, "Hi")
    page.get_by_role("button", name="Once").click()
    page.get_by_text("Done.").wait_for()
    shown = " ".join(texts(page))
    assert "calls now" in shown
    assert "half past nine" in shown


def test_a_call_that_is_refused_is_not_made(page):
    begin(page, "Hi")
    page.get_by_role("button", name="No", exact=True).click()
    page.get_by_text("Done.").wait_for()
    shown = " ".join(texts(page))
    assert "half past nine" not in shown
    assert "refused" in shown


def test_a_tool_that_is_allowed_in_a_chat_is_asked_for_in_another(page):
    begin(page, "Hi")
    page.get_by_role("button", name="Always in this chat").click()
    done(page, 1)
    begin(page, "Hi again")
    done(page, 2)
    assert " ".join(texts(page)).count("half past nine") == 2
    page.click("#new")
    set_option(page, "temperature", "0")
    begin(page, "Hi")
    page.get_by_role("button", name="Once").wait_for()
    assert "half past nine" not in " ".join(texts(page))


def test_a_picture_of_a_result_is_shown_kept_and_sent(page):
    """What the page cannot show has a note."""
    page.select_option("#model", "draw")
    begin(page, "Hi")
    once = page.get_by_role("button", name="Once")
    once.wait_for()
    with page.expect_request("**/v1/chat/completions") as asked:
        once.click()
    done(page, 1)
    shown = page.locator('#messages img[alt="Image 1 of draw"]')
    assert shown.evaluate("image => image.naturalWidth") == 2
    assert page.locator("#messages img").count() == 1
    assert "[An image was here, which cannot be shown.]" in " ".join(texts(page))
    picture, text = asked.value.post_data_json["messages"][-1]["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert text["text"].startswith("a red square")
    reload(page)
    shown.wait_for()
    assert shown.evaluate("image => image.naturalWidth") == 2


def test_stop_ends_a_call_that_runs(page, server):
    page.select_option("#model", "hang")
    begin(page, "Hi")
    page.get_by_role("button", name="Once").click()
    wait_until(lambda: calls_under_way(server.server))
    page.click("#stop")
    wait_until(lambda: not calls_under_way(server.server), patience_s=20)
    page.get_by_text("[The call was interrupted.]").wait_for()


def test_what_may_destroy_can_only_be_allowed_once(page):
    page.select_option("#model", "erase")
    begin(page, "Hi")
    page.get_by_text("It may destroy something.").wait_for()
    assert page.get_by_role("button", name="Always").count() == 0
    assert page.get_by_role("button", name="Once").count() == 1


def test_a_page_that_closes_ends_its_call(browser, server):
    with visitor(browser, server.url) as page:
        page.select_option("#model", "hang")
        begin(page, "Hi")
        page.get_by_role("button", name="Once").click()
        wait_until(lambda: calls_under_way(server.server))
    wait_until(lambda: not calls_under_way(server.server), patience_s=20)
