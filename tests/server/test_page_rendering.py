"""What the page shows for everybody, of any model, also a hostile one; and its files."""

from __future__ import annotations

import pytest

from page_driver import FOX, PATIENCE_MS, ask, ended, last_text, played
from server_runner import running_server

pytestmark = pytest.mark.process

ANSWER = "#messages li:last-child .text"


@pytest.mark.parametrize(
    ("came", "rest", "tag", "whole"),
    [
        ("```python\nx = 1\ny ", "= 2\n```", "pre", "x = 1\ny = 2"),
        ("A fox and", " a hen.", "p", "A fox and a hen."),
        ("* one\n* t", "wo", "ul", "one\ntwo"),
        ("| a |\n|---|\n| b", "c |", "table", "a\nbc"),
    ],
)
def test_what_goes_on_is_drawn_as_one_answer(page, came, rest, tag, whole):
    played(page, {"content": came}, reason="length")
    ask(page, "Write.")
    played(page, {"content": rest})
    page.click("text=Continue")
    ended(page)
    drawn = page.locator(f"{ANSWER} {tag}")
    assert [each.strip() for each in drawn.all_inner_texts()] == [whole]


MATHS = r"""Inline $x^2$ and \(y_1\), 3$ beside:

$$
\frac{a}{b}
- c
= \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
$$

* in a list: \[ \sqrt{2} \]

$$\href{javascript:alert(1)}{x}$$

It costs $5-$6, $5 or 6$, (8$), 9$/kg, 9$, and \$7; `$z$` is code, $\unknown$ is not known.
"""


def test_mathematics_is_set_and_prices_are_not(page):
    played(page, *({"content": sign} for sign in MATHS))
    ask(page, "Prove it.")
    drawn = page.locator(f"{ANSWER} math")
    assert drawn.count() == 4
    assert page.locator(f"{ANSWER} math[display=block]").count() == 2
    assert page.locator(f"{ANSWER} :is(mfrac, mtable, msqrt, msup, msub)").count() == 5
    told = last_text(page)
    assert "$5-$6, $5 or 6$, (8$), 9$/kg, 9$, and $7; $z$ is code, $\\unknown$ is" in told
    assert "$$\\href{javascript:alert(1)}{x}$$" in told
    assert page.locator(f"{ANSWER} a").count() == 0


def retried(page):
    """Have a second version with a formula that is wider than any window."""
    played(page, {"content": f"$$\\frac{{{'a + ' * 300}b}}{{2}}$$ and $x^2$"})
    page.click("text=Retry")
    ended(page)
    assert page.locator("#messages math").count() == 2


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(
    browser, server, width, colours
):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core")
    size = {"width": width, "height": 700}
    context = browser.new_context(viewport=size, color_scheme=colours, bypass_csp=True)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("#model option", state="attached")
    for reach in (
        lambda: None,
        lambda: ask(page, FOX),
        lambda: page.click(".actions >> text=Tokens"),
        lambda: page.keyboard.press("Alt+l"),
        lambda: page.keyboard.press("Alt+l"),
        lambda: retried(page),
        lambda: page.click("text=Edit"),
        lambda: page.click("#show-settings"),
    ):
        reach()
        found = axe.Axe().run(page).response
        assert found["passes"]
        assert [each["help"] for each in found["violations"]] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_everything_is_reached_by_keyboard(page):
    """A question, its answer, the menu, the settings and the list, without a mouse."""
    page.keyboard.type(FOX)
    page.keyboard.press("Enter")
    ended(page)
    reached = set()
    page.focus("#new")
    for _ in range(40):
        page.keyboard.press("Tab")
        told = "document.activeElement.id || document.activeElement.textContent.slice(0, 20)"
        reached.add(page.evaluate(told))
    wanted = {"search", "import", "export-all", "model", "show-live", "show-settings"}
    wanted |= {"question", "attach", "send", "scroll", "Copy", "Edit", "Retry", "More"}
    assert wanted <= reached
    page.focus("#menu summary")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # rename
    page.keyboard.type("By keyboard")
    page.keyboard.press("Enter")
    page.wait_for_selector("#list:has-text('By keyboard')")
    page.keyboard.press("Alt+n")
    assert page.evaluate("document.activeElement.id") == "question"
    assert page.inner_text("#title") == "New chat"
    page.keyboard.press("Alt+f")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#messages li:nth-child(2)")
    assert "fox" in last_text(page)


GROWING = """async (pieces) => {
  const { Markdown } = await import("/page/markdown.js");
  const element = document.createElement("div");
  const markdown = new Markdown(element);
  let text = "";
  for (const piece of pieces) markdown.update((text += piece));
  markdown.update(text, true);
  const plain = [...element.querySelectorAll(".plain")].at(-1).textContent;
  return [plain.trim().slice(-4), element.querySelector("h1")?.textContent];
}"""


@pytest.mark.parametrize(("before", "after"), [("\n\n", ""), ("", "\n\n"), ("\n", "\n")])
def test_an_enormous_block_ends_at_an_empty_line_also_in_two_pieces(page, before, after):
    pieces = ["word " * 5000, f"ends{before}", f"{after}# Title"]
    assert page.evaluate(GROWING, pieces) == ["ends", "Title"]


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
    assert "after" in page.locator(ANSWER).evaluate("t => t.textContent")
    page.unroute("**/v1/chat/completions")
    page.keyboard.press("Alt+n")
    ask(page, FOX)
    assert "fox" in last_text(page)


def test_calls_of_tools_are_shown_and_their_results_sent(page):
    function = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    played(
        page,
        {"tool_calls": [{"index": 0, "id": "c1", "function": function}]},
        reason="tool_calls",
    )
    ask(page, "Rain?")
    assert '"city": "Ulm"' in page.inner_text(".call")
    page.click("text=Enter the result")
    page.fill(".results textarea", "dry")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.click(".results button")
    messages = asked.value.post_data_json["messages"]
    assert messages[-1] == {"role": "tool", "content": "dry", "tool_call_id": "c1"}
    assert messages[-2]["tool_calls"][0]["function"] == function


@pytest.fixture(scope="module")
def running():
    with running_server() as running:
        yield running


def test_a_browser_gets_the_page_and_a_program_the_health(running):
    page = running.client.get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html")
    assert "<main>" in page.text
    assert running.client.get("/").json() == {"status": "ok"}
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_can_be_switched_off():
    with running_server(has_page=False) as running:
        html = {"accept": "text/html"}
        assert running.client.get("/", headers=html).json() == {"status": "ok"}
        assert running.client.get("/page/main.js").status_code == 404


@pytest.mark.parametrize(
    "name", ["app.py", "../app.py", "..%2fapp.py", "/etc/passwd", "vendor", ""]
)
def test_other_files_are_not_served(running, name):
    response = running.client.get(f"/page/{name}")
    assert response.status_code == 404
    assert "import" not in response.text


def test_the_page_needs_no_key_and_its_questions_do():
    with running_server(keys=["secret"]) as running:
        html = {"accept": "text/html"}
        assert running.client.get("/", headers=html).status_code == 200
        assert running.client.get("/page/main.js").status_code == 200
        assert running.client.get("/v1/models").status_code == 401
        assert running.client.get("/", headers=html | {"host": "evil.org"}).status_code == 403
