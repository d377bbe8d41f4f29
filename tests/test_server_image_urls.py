"""Images by address: from public ones alone, and bounded in size and time."""

from __future__ import annotations

import base64
import http.server
import socket
import threading
import time

import pytest

from localspec.pictures.picture import MAX_PICTURE_BYTES
from localspec.server import image_urls
from localspec.server.image_urls import fetched, is_public, public_address, with_fetched_images
from localspec.server.refusal import RequestError

PIXELS = b"\x89PNG and so on"


class Pages(http.server.BaseHTTPRequestHandler):
    """What the tests' own web server says."""

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path == "/slow":
            self.slow()
        elif self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to?"))
            self.end_headers()
        elif self.path == "/large":
            self.large()
        else:
            status = 200 if self.path == "/fox.png" else 404
            self.send_response(status)
            self.end_headers()
            self.wfile.write(PIXELS)

    def slow(self):
        """Bytes of a head that never ends."""
        try:
            while True:
                self.wfile.write(b"X")
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass

    def large(self):
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(MAX_PICTURE_BYTES // 2**20 + 2):
                self.wfile.write(bytes(2**20))
        except OSError:
            pass

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def web():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def at(web, monkeypatch):
    """An address of that server, which counts as public."""
    monkeypatch.setattr(image_urls, "is_public", lambda address: address == "127.0.0.1")
    return f"http://127.0.0.1:{web.server_address[1]}"


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "2002:a00:1::", "ff02::1"),
        *("64:ff9b::7f00:1", "2001:0:7f00:1::", "240.0.0.1", "168.63.129.16", "fec0::1"),
    ],
)
def test_addresses_of_few_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111"])
def test_addresses_of_all_are_public(address):
    assert is_public(address)


def test_every_address_of_a_name_has_to_be_public(monkeypatch):
    found = [(socket.AF_INET, 1, 6, "", (each, 80)) for each in ("1.1.1.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: found)
    with pytest.raises(OSError, match=r"at 127\.0\.0\.1, which is not a public"):
        public_address("example.com", 80)
    del found[1]
    assert public_address("example.com", 80) == "1.1.1.1"


def test_nothing_is_sent_to_a_private_address(web):
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"):
        with pytest.raises(OSError, match=r"not a public|known|resolution|address"):
            fetched(f"http://{host}:{web.server_address[1]}/fox.png", time.monotonic() + 5)
    assert web.asked == []


def soon():
    return time.monotonic() + 20


def test_an_image_is_fetched(at):
    assert fetched(f"{at}/fox.png", soon()) == PIXELS
    assert fetched(f"{at}/to?/fox.png", soon()) == PIXELS


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nothing", "the answer is 404"),
        ("/to?http://10.0.0.1/x", "not a public address"),
        ("/to?file:///etc/passwd", "no address of http"),
        ("/to?ftp://example.com/x", "no address of http"),
        ("/large", f"more than {MAX_PICTURE_BYTES} bytes"),
    ],
)
def test_what_leads_elsewhere_or_is_too_much_is_refused(at, path, said):
    with pytest.raises((OSError, ValueError), match=said):
        fetched(f"{at}{path}", soon())


def test_redirects_end(at):
    url = f"{at}/to?{at}/to?{at}/to?{at}/to?{at}/fox.png"
    with pytest.raises(OSError, match="on and on"):
        fetched(url, soon())


def test_a_server_that_sends_a_byte_now_and_then_is_left(at):
    with pytest.raises((OSError, image_urls.http.client.HTTPException)):
        fetched(f"{at}/slow", time.monotonic() + 0.3)


def part(url):
    return {"type": "image_url", "image_url": {"url": url}}


def test_addresses_in_all_protocols_become_data(at):
    url = f"{at}/fox.png"
    forms = [
        part(url),
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "url", "url": url}},
    ]
    data = f"data:;base64,{base64.b64encode(PIXELS).decode()}"
    for form in forms:
        values = {"messages": [{"role": "user", "content": [form, {"type": "text"}]}]}
        with_fetched_images(values)
        assert data in str(values)
        assert url not in str(values)
    values = {"input": [{"type": "message", "content": [forms[1]]}]}
    with_fetched_images(values)
    assert data in str(values)


def test_text_that_looks_like_an_address_stays(at):
    values = {"messages": [{"role": "user", "content": f"{at}/fox.png"}], "url": at}
    before = str(values)
    with_fetched_images(values)
    assert str(values) == before


def test_only_the_last_message_s_image_has_to_be_there(at):
    bad = {"role": "user", "content": [part(f"{at}/nothing")]}
    good = {"role": "user", "content": "Sure?"}
    with_fetched_images({"messages": [bad, good]})
    with pytest.raises(RequestError, match="cannot be fetched: the answer is 404"):
        with_fetched_images({"messages": [good, bad]})


def test_a_request_names_few(at, web, monkeypatch):
    monkeypatch.setattr(image_urls, "MOST_FETCHED", 2)
    content = [part(f"{at}/fox.png") for _ in range(3)]
    with pytest.raises(RequestError, match="may name 2 images"):
        with_fetched_images({"messages": [{"role": "user", "content": content}]})
    assert len(web.asked) == 2


def test_the_last_message_s_images_come_first_and_then_the_newest(at, web, monkeypatch):
    monkeypatch.setattr(image_urls, "MOST_FETCHED", 3)
    shown = [("/old", "/new"), ("/fox.png", "/to?/fox.png")]
    messages = [
        {"role": "user", "content": [part(f"{at}{path}") for path in paths]} for paths in shown
    ]
    with_fetched_images({"messages": messages})
    assert set(web.asked[:3]) == {"/fox.png", "/to?/fox.png"}
    assert web.asked[3:] == ["/new"]
