"""`localspec sessions`: what was kept is listed, shown, exported and removed."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner, Result

from localspec.chat.session import (
    Session,
    caches_file,
    lock_session,
    read_session,
    session_file,
    session_names,
)
from localspec.cli import main

CUT = "So:\n```py\nprint('é')"  # an answer that ended within its code


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty data directory for this process and its children."""
    for name in ("XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def keep(name: str, *texts: str, system: str = "", pending: str = "") -> None:
    """Write a session of these questions and answers."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [
        {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)
    ]
    path = session_file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Session(name, messages, len(texts) // 2, 0, pending).as_json())


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["sessions", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result


def test_the_list_says_what_there_is():
    for arguments in ([], ["list"]):
        assert "no sessions yet" in run(*arguments).stdout
    assert run("list", "--json").stdout == "[]\n"
    keep("french", "Bonjour?", "Bonjour!", "Ça va?", "Oui.", system="S")
    keep("work", "Hi", "Hello")
    caches_file("work").write_bytes(bytes(5_000_000))
    session_file("bad").write_text("{}")
    session_file("bad").with_name("no:name.json").write_text("{}")
    lock = lock_session("french")
    lines = [line.split() for line in run().stdout.splitlines()]
    assert run("list").stdout == run().stdout
    assert [line[0] for line in lines] == ["bad", "french", "work"]
    assert lines[0][1] == "unreadable"
    assert lines[1][1:3] == ["2", "turns"]
    assert lines[1][-1] == "open"
    assert lines[2][1:3] == ["1", "turn"]
    assert lines[2][-2:] == ["5.0", "MB"]
    assert max(map(len, run().stdout.splitlines())) < 60
    listed = json.loads(run("list", "--json").stdout)
    assert [each["num_turns"] for each in listed] == [None, 2, 1]
    assert [each["is_open"] for each in listed] == [False, True, False]
    assert listed[2]["size_bytes"] > 5_000_000
    assert listed[1]["path"] == str(session_file("french"))
    lock.release()


def test_a_name_is_taken_in_any_case():
    keep("Français", "Why?", "So.")
    assert "So." in run("show", "FRANC\u0327AIS").stdout
    assert run("remove", "français", "Français", "--yes").exit_code == 0
    assert session_names() == []


def test_show_prints_what_was_said():
    keep("a", "Two\nlines?", "An *answer*\x1b[2J.", system="Be brief.", pending="And?")
    result = run("show", "a")
    assert result.stdout == (
        "System message: Be brief.\n\n> Two\n  lines?\n\nAn *answer*␛[2J.\n\n> And?\n\n"
    )
    assert "not answered yet" in result.stderr
    path = session_file("a")
    path.write_text(path.read_text("utf-8").replace("assistant", "narrator"), "utf-8")
    assert "\n\nnarrator: An *answer*␛[2J.\n\n" in run("show", "a").stdout


def test_export_writes_markdown_to_a_file_or_to_stdout(folder):
    keep("a", "Why?", CUT, "And?", "Yes.", system="S", pending="Then?")
    expected = (
        "# a\n\n## System message\n\nS\n\n## You\n\nWhy?\n\n## Model\n\n" + CUT + "\n```\n\n"
        "## You\n\nAnd?\n\n## Model\n\nYes.\n\n## You (not answered)\n\nThen?\n"
    )
    assert run("export", "a").stdout == expected
    result = run("export", "a", folder / "a.md")
    assert (result.exit_code, result.stdout) == (0, "")
    assert (folder / "a.md").read_text("utf-8") == expected


def test_export_writes_json_that_is_a_session_again(folder):
    keep("a", "Why?", "half \ud800 of a pair, \x9b", pending="Then?")
    assert run("export", "a", folder / "a.json").exit_code == 0
    assert run("export", "a", "--json").stdout == (folder / "a.json").read_text("utf-8")
    (folder / "a.json").rename(session_file("b"))
    assert read_session("b").messages == read_session("a").messages
    assert read_session("b").pending == "Then?"
    assert run("export", "a", "--json", folder / "x.txt").exit_code == 0
    assert json.loads((folder / "x.txt").read_text("utf-8"))["pending"] == "Then?"


def test_export_replaces_only_a_file_and_only_when_told(folder):
    keep("a", "Why?", "So.")
    (folder / "a.md").write_text("mine")
    result = run("export", "a", folder / "a.md")
    assert (result.exit_code, (folder / "a.md").read_text()) == (2, "mine")
    assert "--overwrite" in result.stderr
    assert run("export", "a", folder / "a.md", "--overwrite").exit_code == 0
    assert "So." in (folder / "a.md").read_text()
    (folder / "sub").mkdir()
    assert run("export", "a", folder / "sub", "--overwrite").exit_code == 2
    result = run("export", "a", folder / "absent" / "a.md")
    assert result.exit_code == 1
    assert "No such file" in result.stderr


def test_remove_deletes_the_session_and_its_caches():
    for name in ("a", "b", "c"):
        keep(name, "Why?", "So.")
        caches_file(name).write_bytes(b"x")
    result = run("remove", "a", "b", "a", "--yes")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "2 sessions removed" in result.stderr
    assert session_names() == ["c"]
    assert not caches_file("a").exists()
    assert caches_file("c").exists()
    session_file("c").write_text("{}")  # one that cannot be read, too
    assert run("remove", "c", "--yes").exit_code == 0
    assert session_names() == []


def test_nothing_is_removed_if_nobody_agrees_or_a_name_is_wrong(monkeypatch):
    keep("a", "Why?", "So.")
    result = run("remove", "a")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert run("remove", "a", "absent", "--yes").exit_code == 2
    assert run("remove", "--yes").exit_code == 2
    assert session_names() == ["a"]
    monkeypatch.setattr(sys.modules["localspec.cli.sessions"], "is_terminal", bool)
    for answer, code, names in (("n", 130, ["a"]), ("y", 0, [])):
        asked = CliRunner().invoke(main, ["sessions", "remove", "a"], input=f"{answer}\n")
        assert "Remove 1 session? [y/N]:" in asked.stderr
        assert (asked.exit_code, session_names()) == (code, names)


def test_on_a_terminal_an_answer_is_rendered(monkeypatch):
    keep("a", "Why?", "Because **it** is " + "so " * 40)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.modules["localspec.cli.sessions"], "is_terminal", bool)
    shown = run("show", "a").stdout
    assert "> Why?\n\nBecause it is so so" in shown
    assert max(map(len, shown.split("\n"))) < 40


@pytest.mark.parametrize("command", ["show", "export", "remove"])
def test_an_unknown_session_is_told_with_near_names(command):
    keep("french", "Why?", "So.")
    result = run(command, "frnch")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no session 'frnch'" in result.stderr
    assert "Perhaps french?" in result.stderr
    assert "cannot be the name of a session" in run(command, "../x").stderr
