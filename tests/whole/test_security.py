"""SECURITY.md names a test for each path; here are those that belong to no one room."""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

import inside
from command_line import run
from gguf_maker import write_random_model
from localspec.cli.commands.serve import JSONFormatter, LogFormatter
from localspec.errors import OptionError
from localspec.server import app

ROOT = Path(__file__).parents[2]
PAGE = Path(app.__file__).parent / "page"
# What steers a terminal: escapes, a bell, the C1 form of an escape, and a change of direction.
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f‪-‮⁦-⁩]")
EVIL = "\x1b]0;owned\x07\x9b2J‮"


@pytest.mark.parametrize(("page", "least"), [("SECURITY.md", 50), ("docs/reliability.md", 10)])
def test_every_test_that_a_table_names_is_there(page, least):
    named = re.findall(r"`(test_\w+)::(test_\w+)`", (ROOT / page).read_text("utf-8"))
    assert len(named) > least
    for module, name in named:
        (file,) = ROOT.glob(f"tests/*/{module}.py")
        tree = ast.parse(file.read_text("utf-8"))
        found = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
        assert name in found, f"{module}::{name}"


def test_what_a_header_says_moves_no_cursor(tmp_path, demo_target):
    texts = dict.fromkeys(("general.name", "general.license", "general.description"), EVIL)
    path = write_random_model(tmp_path / "m.gguf", demo_target, extra=texts)
    for arguments in (["explain", str(path)], ["models", "add", "x", "--target", str(path)]):
        result = run(*arguments)
        assert not STEERS.search(result.output), arguments


@pytest.mark.skipif(sys.platform == "win32", reason="no such name of a file there")
def test_a_file_s_name_moves_no_cursor(tmp_path):
    for arguments in (
        ["explain", str(tmp_path / f"{EVIL}.gguf")],
        ["generate", "x", "-f", str(tmp_path / EVIL)],
        ["serve", str(tmp_path / f"{EVIL}.gguf")],
        ["sessions", "show", EVIL],
        ["download", EVIL],
    ):
        result = run(*arguments)
        assert result.exit_code != 0
        assert not STEERS.search(result.output), arguments


def test_the_log_of_a_server_moves_no_cursor():
    try:
        raise OptionError(EVIL)
    except OptionError:
        failed = sys.exc_info()
    record = logging.LogRecord("x", logging.ERROR, "", 0, "%s: %r", (EVIL, EVIL), failed)
    text = LogFormatter("%(message)s").format(record)
    assert "OptionError" in text
    assert not STEERS.search(text)
    line = JSONFormatter("%(message)s").format(record)
    told = json.loads(line)
    assert "OptionError" in told["traceback"]
    assert told["level"] == "error"
    assert not STEERS.search(line)
    assert len(line.splitlines()) == 1


@pytest.mark.process
def test_nothing_that_is_asked_begins_a_header(server):
    break_ = "x\r\nSet-Cookie: owned\r\n\r\n\u0085\u2028é"
    schema = {"type": "object", "properties": {"x": {"type": "string", "format": break_}}}
    message = [{"role": "user", "content": break_}]
    form = {"type": "json_schema", "json_schema": {"name": break_, "schema": schema}}
    for fields in ({"response_format": form}, {"model": break_}, {"user": break_}):
        response = server.ask("/v1/chat/completions", messages=message, max_tokens=1, **fields)
        assert response.status_code == 200, response.text
        assert ("Set-Cookie" in response.headers.get("x-localspec-not-kept", "")) == (
            "response_format" in fields
        )
        assert "set-cookie" not in response.headers
        assert all(
            value.isascii() and value.isprintable() for value in response.headers.values()
        )
    for path in (f"{start}{quote(break_)}" for start in ("/v1/models/", "/page/", "/")):
        assert "set-cookie" not in server.client.get(path).headers


def test_nothing_of_the_page_makes_html_by_itself():
    """Names of models, too: they become text, as everything does."""
    makers = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|\beval\("
        r"|new Function|srcdoc|setHTMLUnsafe"
    )
    files = sorted(PAGE.glob("*.js"))
    assert len(files) > 8
    for file in files:
        assert not makers.search(file.read_text("utf-8")), file.name
    assert "{{" not in (PAGE / "index.html").read_text("utf-8")


@pytest.mark.parametrize("sign", sorted('"%&|<>^!\r\n'))
def test_no_sign_of_a_shell_reaches_a_program_of_windows(monkeypatch, sign):
    length = {"max_model_len": 512, "meta": {"n_ctx_train": 512}}
    found = [{"id": f"a{sign}calc", **length}]
    assert inside.chosen_to_launch(found).model == f"a{sign}calc"
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(OptionError, match="characters that the Windows shell"):
        inside.chosen_to_launch(found)
