"""Measures the server's page in a headless Chromium: its first paint, and frames of an answer.

    python scripts/measure/measure_page.py
    python scripts/measure/measure_page.py --rates 100 --tokens 400 --visits 2

Needs `pip install 'localspec[server,browser]'` and a Chromium. A server of its own gives the
page's files as localspec serve does, and an answer of so many tokens with 20 blocks of code at
each rate; no model runs. Prints Markdown: milliseconds from the request to the first paint with
anything in it, for visitors without a cache; and for each rate the time between two frames, the
longest frame that the page itself held up (long-animation-frame) and the longest task. The live
picture is shown. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import threading
from collections.abc import AsyncIterator, Iterator

from playwright.sync_api import Browser, Page, sync_playwright
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from localspec.server.page import page_file, root
from localspec.server.running import Runner, listen

NUM_BLOCKS = 20  # of code, in an answer
MOST_MS = 50  # of a frame
MODEL = {"id": "measured", "max_model_len": 8192}
STEP = {"prompt_tokens": 20, "drafted": 3, "accepted": 2, "threads": 2, "draft_off": None}
CODE = """def merge(one, other):
    \"\"\"Two sorted lists, merged.\"\"\"
    merged = []
    while one and other:  # the smaller head comes first
        merged.append((one if one[0] <= other[0] else other).pop(0))
    return merged + one + other
"""
WATCH = """
window.seen = { frames: [], tasks: [], long: [] };
let before = performance.now();
(function frame(now) {
  seen.frames.push(now - before);
  before = now;
  requestAnimationFrame(frame);
})(before);
const watch = (type, list) => new PerformanceObserver((found) =>
  found.getEntries().forEach((each) => list.push(each.duration))).observe({ type });
watch("longtask", seen.tasks);
watch("long-animation-frame", seen.long);
"""


def answer_tokens(number: int) -> list[str]:
    """An answer of that many tokens: prose, lists, a table, and blocks of code in between."""
    room = number // NUM_BLOCKS
    tokens: list[str] = []
    for block in range(NUM_BLOCKS):
        code = f"```python\n{CODE}```\n\n"
        prose = f"## Part {block}\n\nThe *merge* of **two** lists, see `merge`:\n\n"
        prose += "| size | steps |\n|---|---|\n| 8 | 15 |\n\n* one list\n* the other\n\n"
        pieces = [each + " " for each in prose.split(" ")] + [
            each + " " for each in code.split(" ")
        ]
        pieces = [*pieces, "\n\n"]
        filler = max(room - len(pieces), 0)
        words = ["word " if at % 40 else "end.\n\nBegin " for at in range(1, filler + 1)]
        tokens += [*words, "\n\n", *pieces][: max(room, len(pieces))]
    return tokens


def event(told: object) -> str:
    return f"data: {json.dumps(told)}\n\n"


def app_of(num_tokens: int) -> Starlette:
    """The page, and an answer for it at the rate that the model's name says."""
    events = []
    for at, text in enumerate(answer_tokens(num_tokens)):
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        source = ("accepted", "accepted", "bonus")[at % 3]
        events.append(event({"choices": [{**choice, "provenance": source, "step": STEP}]}))

    async def stream(rate: float) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for at, told in enumerate(events):
            await asyncio.sleep(max(began + at / rate - loop.time(), 0))
            yield told
        yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        yield "data: [DONE]\n\n"

    async def answer(request: Request) -> StreamingResponse:
        rate = float((await request.json())["model"])
        return StreamingResponse(stream(rate), media_type="text/event-stream")

    async def models(_request: Request) -> JSONResponse:
        return JSONResponse({"data": [{**MODEL, "id": "100"}, {**MODEL, "id": "500"}]})

    async def loaded(_request: Request) -> JSONResponse:
        return JSONResponse({"models": []})

    return Starlette(
        routes=[
            Route("/", root),
            Route("/page/{name:path}", page_file),
            Route("/v1/models", models),
            Route("/api/ps", loaded),
            Route("/v1/chat/completions", answer, methods=["POST"]),
        ]
    )


@contextlib.contextmanager
def served(num_tokens: int) -> Iterator[str]:
    """The address of a server until the block is left."""
    is_ready = threading.Event()
    with listen("127.0.0.1", 0) as listening:
        runner = Runner(app_of(num_tokens), is_ready.set, lambda: None)
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            is_ready.wait(60)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            runner.should_exit = True
            thread.join()


def opened(browser: Browser, url: str) -> Page:
    """The page of a new visitor, once it is there."""
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.set_default_timeout(600_000)
    page.goto(url)
    page.wait_for_selector("#model option", state="attached")
    return page


def first_paint_ms(browser: Browser, url: str) -> float:
    page = opened(browser, url)
    name = "first-contentful-paint"
    page.wait_for_function(f"performance.getEntriesByName('{name}').length")
    told: float = page.evaluate(f"performance.getEntriesByName('{name}')[0].startTime")
    page.context.close()
    return told


def frames_row(browser: Browser, url: str, rate: int) -> str:
    """The row of the table: an answer at that rate, watched frame by frame."""
    page = opened(browser, url)
    page.keyboard.press("Alt+l")
    page.select_option("#model", str(rate))
    page.fill("#question", "How are lists merged?")
    page.evaluate(WATCH)
    page.press("#question", "Enter")
    page.wait_for_selector("#messages li:last-child .actions >> text=Retry")
    page.wait_for_timeout(1000)
    seen = page.evaluate("seen")
    blocks = page.locator("#messages .code").count()
    page.context.close()
    frames = seen["frames"][1:]
    above = sum(each > MOST_MS for each in frames)
    median, most = statistics.median(frames), max(frames)
    longest = (max(seen[name], default=0) for name in ("long", "tasks"))
    shown = " | ".join(f"{each:.0f}" for each in (median, most, *longest))
    return f"| {rate} | {blocks} | {len(frames)} | {above} | {shown} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 500], choices=[100, 500])
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--visits", type=int, default=9)
    options = parser.parse_args()
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    with served(options.tokens) as url, sync_playwright() as started:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = started.chromium.launch(executable_path=path, args=arguments)
        paints = [first_paint_ms(browser, url) for _ in range(options.visits)]
        print(f"first paint: {statistics.median(paints):.0f} ms", end="")
        print(f" ({min(paints):.0f} to {max(paints):.0f}, {len(paints)} visits)\n")
        print(
            f"| tokens/s | code blocks | frames | above {MOST_MS} ms | median frame, ms", end=""
        )
        print(" | longest | longest held up by the page | longest task |")
        print("|---|---|---|---|---|---|---|---|")
        for rate in options.rates:
            print(frames_row(browser, url, rate), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
