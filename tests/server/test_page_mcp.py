"""Calls of MCP servers' tools on the page: shown, asked about, made or not, and answered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from call_families import write_calling_model
from page_driver import begin, headless_browser, visitor

import localspec
from inside import calls_under_way
from server_runner import presets_of, running_server
from waiting import wait_until

pytest.importorskip("mcp", reason="the MCP SDK is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")

pytestmark = pytest.mark.process
SERVER = Path(__file__).parents[1] / "support" / "mcp_server.py"
CALLED = ("now", "erase", "hang")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Of models that call a tool of the tests' MCP server once, and say Done."""
    folder = tmp_path_factory.mktemp("mcp")
    files = {}
    for name in CALLED:
        said = ["<tool_call>", f'\n{{"name": "{name}", "arguments": {{}}}}\n', "</tool_call>"]
        files[name] = write_calling_model(folder / f"{name}.gguf", "Qwen", said)
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
        yield found


def texts(page):
    return page.locator("#messages > li").all_inner_texts()


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
