"""Takes the documentation's pictures of the server's page.

    python -m pip install '.[browser]'
    python scripts/develop/page_pictures.py MODEL.gguf

Starts `localspec serve` with the model, asks it in Chromium as a person would, and writes
`docs/pictures/page-*.png`. MODEL is a trained instruct model.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
WIDE = {"width": 1200, "height": 760}
NARROW = {"width": 360, "height": 640}
PATIENCE_MS = 600_000  # a large model on a slow machine
ACCOUNT = "Write a short Python class for a bank account: deposit, withdraw, transfer."
TYPED = "Write the same class again with type hints, otherwise unchanged."
STORY = "Tell me in three sentences why leaves change their colour in autumn."


def free_port() -> int:
    """A port of this machine at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Return once the server has loaded its model. Raises SystemExit where it ends instead."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health")
        except urllib.error.URLError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit("The server did not start.")


def opened(browser: Browser, url: str, size: dict[str, int], theme: str = "light") -> Page:
    """The page as a new visitor has it."""
    context = browser.new_context(viewport=size, color_scheme=theme, has_touch=size is NARROW)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#model option", state="attached")
    return page


def ask(page: Page, question: str) -> None:
    """Ask, and wait until the answer is complete."""
    page.fill("#question", question)
    page.click("#send")
    page.wait_for_selector("#stop:not([hidden])")
    page.wait_for_selector("#send:not([hidden])")
    page.wait_for_selector("#messages li:last-child .actions")


def shoot(page: Page, name: str) -> None:
    """Write the picture of what is on the page now."""
    page.screenshot(path=PICTURES / f"page-{name}.png")


def take_pictures(browser: Browser, url: str) -> None:
    """The six pictures of docs/server.md."""
    page = opened(browser, url, WIDE)
    shoot(page, "welcome")
    ask(page, ACCOUNT)
    ask(page, TYPED)
    page.click("#show-live")
    shoot(page, "answer")
    page.click("#messages li:last-child button:text-is('Tokens')")
    shoot(page, "tokens")
    page.click("#show-settings")
    shoot(page, "settings")

    dark = opened(browser, url, WIDE, "dark")
    ask(dark, ACCOUNT)
    ask(dark, TYPED)
    shoot(dark, "dark")

    narrow = opened(browser, url, NARROW)
    ask(narrow, STORY)
    shoot(narrow, "narrow")


def main() -> None:
    """Run the server and the browser, and take the pictures."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "localspec", "serve", sys.argv[1], "--port", str(port)]
    server = subprocess.Popen(command)
    try:
        wait_until_ready(url, server)
        with sync_playwright() as playwright:
            options = {"executable_path": shutil.which("chromium"), "args": ["--no-sandbox"]}
            take_pictures(playwright.chromium.launch(**options), url)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
