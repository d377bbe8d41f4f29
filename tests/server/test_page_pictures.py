"""Pictures on the page: attached, shown, sent, kept, and refused where the model is blind."""

from __future__ import annotations

import base64
import io
import json
import shutil

import pytest
from PIL import Image

from gguf_maker import with_template
from localspec.server.app import Limits
from page_driver import ask, exported, reload, set_option, visitor
from server_runner import running_server
from vision_maker import write_vision_pair

CHATML = (
    "{% for each in messages %}<|im_start|>{{ each.role }}\n{{ each.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
pytestmark = pytest.mark.process


def png(colour, side=48):
    held = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(held, "PNG")
    return held.getvalue()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    target, mmproj = write_vision_pair(folder, "gemma3")
    (folder / "seer").mkdir()
    seer = folder / "seer" / "seer.gguf"
    with_template(target, seer, CHATML)
    shutil.copy(mmproj, seer.with_name("mmproj-F16.gguf"))
    limits = Limits(body_bytes=300_000)
    with running_server(presets=(str(seer), "demo"), limits=limits) as running:
        yield running


@pytest.fixture
def page(browser, running):
    with visitor(browser, running.url) as page:
        page.select_option("#model", "seer")
        set_option(page, "max_tokens", "8")  # or a second question may not fit
        yield page


def file(name, content, kind="image/png"):
    return {"name": name, "mimeType": kind, "buffer": content}


def hand_over(page, how, name, content):
    """Paste or drop a file."""
    page.evaluate(
        """([how, name, held]) => {
          const data = new DataTransfer();
          const bytes = Uint8Array.from(atob(held), (each) => each.charCodeAt(0));
          data.items.add(new File([bytes], name, { type: "image/png" }));
          const event = how === "paste"
            ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
            : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
          document.body.dispatchEvent(event);
        }""",
        [how, name, base64.b64encode(content).decode()],
    )


def test_pictures_are_shown_removed_sent_and_kept(page, tmp_path):
    page.set_input_files("#attach-files", [file("red.png", png("red"))])
    page.wait_for_selector('#files img[alt="red.png"]')
    hand_over(page, "paste", "green.png", png("green"))
    page.wait_for_selector('#files img[alt="green.png"]')
    hand_over(page, "drop", "blue.png", png("blue"))
    page.wait_for_selector('#files img[alt="blue.png"]')
    page.click('[aria-label="Remove green.png"]')
    assert page.locator("#files img").count() == 2
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "What is this?")
    *pictures, text = asked.value.post_data_json["messages"][-1]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    sent = [part["image_url"]["url"].partition(",")[2] for part in pictures]
    assert [base64.b64decode(each) for each in sent] == [png("red"), png("blue")]
    assert page.inner_text("#messages li:last-child") != ""
    assert page.locator("#messages .error").all_inner_texts() == []
    assert page.locator("#files img").count() == 0
    reload(page)
    page.wait_for_selector('#messages img[alt="blue.png"]')
    page.select_option("#model", "seer")
    assert page.evaluate("document.querySelector('#messages img').naturalWidth") == 48
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "And now?")
    assert len(asked.value.post_data_json["messages"][0]["content"]) == 3
    path = exported(page, "JSON", tmp_path)
    page.click("#new")
    page.set_input_files("#import-file", path)
    page.wait_for_selector("#list li:nth-child(2)")
    told = json.loads(path.read_text())
    told["conversations"][0]["messages"][0]["files"][0]["image"] = "https://evil.org/x.png"
    page.set_input_files(
        "#import-file", [file("e.json", json.dumps(told).encode(), "text/json")]
    )
    page.wait_for_selector("#banner:not([hidden])")


def test_a_picture_that_another_tab_sent_is_shown_and_sent_here(page):
    ask(page, "Hello?")
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector("#model option", state="attached")
    other.select_option("#model", "seer")
    other.click("#list button")
    other.wait_for_selector("#messages li:nth-child(2)")
    page.set_input_files("#attach-files", [file("red.png", png("red"))])
    page.wait_for_selector('#files img[alt="red.png"]')
    ask(page, "What is this?")
    other.wait_for_selector('#messages img[alt="red.png"]')
    other.wait_for_selector("#messages li:nth-child(4) .actions")
    other.wait_for_selector("#send:not([disabled])")
    with other.expect_request("**/v1/chat/completions") as asked:
        ask(other, "And now?")
    [picture, _] = asked.value.post_data_json["messages"][2]["content"]
    sent = picture["image_url"]["url"].partition(",")[2]
    assert base64.b64decode(sent) == png("red")


def test_what_cannot_be_shown_is_refused_in_words(page):
    page.set_input_files("#attach-files", [file("x.svg", b"<svg/>", "image/svg+xml")])
    page.wait_for_selector("#banner:not([hidden])")
    assert "x.svg is not a PNG, JPEG, WebP or GIF" in page.inner_text("#banner")
    page.select_option("#model", "demo")
    page.set_input_files("#attach-files", [file("red.png", png("red"))])
    page.wait_for_selector("#banner:has-text('demo')")
    assert "demo cannot see images, so red.png was not attached" in page.inner_text("#banner")
    assert page.locator("#files img").count() == 0
