"""The files of the page at the server's address, as a program sees them."""

from __future__ import annotations

import hashlib
import re

import pytest

from server_runner import running_server

pytestmark = pytest.mark.process


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


def test_libraries_are_those_of_their_packages(running):
    """By the hashes that stand beside their licences."""
    told = running.client.get("/page/vendor/LICENSES.txt").text
    hashes = re.findall(r"^(\S+\.js): .*\n  sha256 (\w{64})$", told, re.M)
    assert len(hashes) == 4
    for name, sha256 in hashes:
        content = running.client.get(f"/page/vendor/{name}").content
        assert hashlib.sha256(content).hexdigest() == sha256, name


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "/etc/passwd", "vendor", ""])
def test_other_files_are_not_served(running, name):
    response = running.client.get(f"/page/{name}")
    assert response.status_code == 404
    assert "import" not in response.text


def test_an_unchanged_file_is_not_sent_again(running):
    etag = running.client.get("/page/main.js").headers["etag"]
    again = running.client.get("/page/main.js", headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_needs_no_key_and_its_questions_do():
    with running_server(keys=["secret"]) as running:
        html = {"accept": "text/html"}
        assert running.client.get("/", headers=html).status_code == 200
        assert running.client.get("/page/main.js").status_code == 200
        assert running.client.get("/v1/models").status_code == 401
        assert running.client.get("/", headers=html | {"host": "evil.org"}).status_code == 403
