"""Files and folders whose text drafts answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_memory_file import ASKED, QUESTION, TOKENIZER

import localspec
from localspec.cli import main
from localspec.engine.memory_file import MemoryFile, kept_memories
from localspec.engine.remembered_files import RememberedFiles
from localspec.errors import OptionError
from localspec.speculative.memory import TextMemory
from localspec.speculative.policy_api import ProposerKind


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "src" / "node_modules").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    for name, data in {
        "src/a.py": b"one = 1\n",
        "notes.txt": "naïve".encode(),
        "src/node_modules/b.js": b"made",
        ".git/config": b"hidden",
        ".env": b"SECRET=1",
        "picture.png": b"\x89PNG\0\0",
        "data.csv": b"1," * 200_000,
    }.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def read(*paths: Path) -> tuple[RememberedFiles, list[str]]:
    files = RememberedFiles()
    for path in paths:
        files.add(path)
    return files, list(files.changed())


def test_a_folder_is_its_text_files(folder):
    _, texts = read(folder)
    assert texts == ["naïve", "one = 1\n"]


def test_a_file_is_read_again_once_it_changed(folder):
    files, _ = read(folder)
    assert list(files.changed()) == []
    changed = folder / "src" / "a.py"
    changed.write_text("two = 22\n")
    (folder / "new.md").write_text("new")
    assert list(files.changed()) == ["new", "two = 22\n"]
    changed.unlink()
    assert list(files.changed()) == []


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_no_link_leads_out_of_a_folder(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "private.txt").write_text("private")
    (folder / "link.txt").symlink_to(outside / "private.txt")
    (folder / "linked").symlink_to(outside)
    assert "private" not in read(folder)[1]


def test_what_is_too_much_is_said_once(folder, caplog):
    for number in range(20):
        (folder / f"{number:02}.txt").write_text(f"{number} " * 100_000)
    files, texts = read(folder)
    assert 0 < len(texts) < 20
    assert "only the first 4 MB" in caplog.text
    caplog.clear()
    list(files.changed())
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["nothing.txt", "picture.png"])
def test_what_is_no_text_is_refused(folder, name):
    with pytest.raises(OptionError, match=name):
        RememberedFiles().add(folder / name)


def test_a_changed_file_drafts_the_next_answer(demo_target, tmp_path):
    with localspec.load(target=demo_target, draft_tokens=8, memory=False) as engine:
        plain = engine.generate(QUESTION, **ASKED).reply()
        with pytest.raises(OptionError, match="no memory"):
            engine.remember_files(tmp_path)
    with localspec.load(target=demo_target, draft_tokens=8) as engine:
        engine.remember_files(tmp_path)
        (tmp_path / "said.txt").write_text(plain.text)
        reply = engine.generate(QUESTION, **ASKED).reply()
    assert reply.token_ids == plain.token_ids
    assert reply.stats.accepted_per_proposer[ProposerKind.LOOKUP] > 24


@pytest.mark.process
def test_an_engine_in_another_process_remembers_files_too(demo_target, tmp_path):
    with localspec.IsolatedEngine(target=str(demo_target), draft_tokens=8) as engine:
        reply = engine.generate(QUESTION, **ASKED).reply()
    (tmp_path / "said.txt").write_text(reply.text)
    with localspec.IsolatedEngine(target=str(demo_target), draft_tokens=8) as engine:
        engine.remember("other text")
        engine.remember_files(tmp_path)
        again = engine.generate(QUESTION, **ASKED).reply()
    assert again.token_ids == reply.token_ids
    assert again.stats.accepted_per_proposer[ProposerKind.LOOKUP] > 24


def test_the_command_line_keeps_lists_and_forgets(tmp_path, monkeypatch, demo_target):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = CliRunner().invoke
    assert "no memories yet" in run(main, ["sessions", "memories"]).output
    (tmp_path / "a.txt").write_text("A fox and a hen. " * 50)
    said = run(
        main,
        ["generate", "--target", str(demo_target), "--memory", "work", "--remember",
         str(tmp_path / "a.txt"), "--max-tokens", "8", QUESTION],
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    [kept] = kept_memories()
    assert kept.name == "work"
    listed = run(main, ["sessions", "memories"]).output
    assert "work" in listed
    assert "tokens" in listed
    [as_json] = json.loads(run(main, ["sessions", "memories", "--json"]).output)
    assert as_json["num_tokens"] > 50
    refused = run(main, ["sessions", "forget", "wrok", "--yes"])
    assert "Did you mean" in refused.output or "no memory" in refused.output
    assert run(main, ["sessions", "forget", "work"]).exit_code == 2
    assert run(main, ["sessions", "forget", "work", "--yes"]).exit_code == 0
    assert kept_memories() == []


def test_a_damaged_memory_is_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    memory = TextMemory()
    memory.add([1, 2, 3])
    MemoryFile("work", TOKENIZER).save(memory, at_least=1)
    kept_memories()[0].path.write_bytes(b"x")
    assert "unreadable" in CliRunner().invoke(main, ["sessions", "memories"]).output
