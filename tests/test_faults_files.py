"""The campaign's class "files": it notices what is planted, and loses nothing that is read."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fault_classes import files, guided, watched
from fault_classes.gguf_mutations import changed_gguf
from fault_classes.kinds import numbered, samples

from localspec.errors import LocalspecError
from localspec.gguf_file.header import read_header

PLANTED = ("planted_kinds",)


@pytest.fixture
def impatient(monkeypatch):
    """An input may take two seconds; a start eight."""
    monkeypatch.setattr(watched, "PATIENCE_S", 2.0)


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("raises", "ZeroDivisionError"),
        ("dies", "the process ended"),
        ("hangs", "no end after 2 s"),
        ("takes", "MiB of memory are taken"),
    ],
)
def test_what_goes_wrong_is_noticed_and_named(kind, words, impatient):
    """Each loss says what repeats it, and the inputs behind it are read."""
    tried = next(files.tries(3.0, 5, PLANTED, [kind]))
    assert tried.losses
    for loss in tried.losses:
        assert words in loss
        number = int(loss.partition(f"repeat_file.py {kind} ")[2].split()[0])
        known = [b"0", b"1", b"2"]
        assert numbered(watched.kinds_of(PLANTED)[kind], kind, 5, number, known) == b"33"
    assert tried.count > len(tried.losses)


@pytest.mark.process
def test_what_the_code_that_is_reached_shows_is_noticed():
    """Its input is kept where it can be read again."""
    pytest.importorskip("atheris", reason="atheris is not installed")
    *_, guided = files.tries(4.0, 5, PLANTED, ["guided"])
    (loss,) = guided.losses
    assert "ZeroDivisionError" in loss
    kept = Path(loss.partition("--file ")[2].rstrip(")"))
    assert kept.read_bytes() == b"33"
    kept.unlink()
    assert guided.count > 50


@pytest.mark.process
def test_an_input_at_which_atheris_ends_is_kept(tmp_path, monkeypatch):
    """So is the way in which it ended, beside what was lost before."""
    monkeypatch.setattr(guided, "KEPT", tmp_path / "kept")
    (tmp_path / "lost").mkdir()
    for name in ("crash-1", "timeout-2", "oom-3", "4.input", "other"):
        (tmp_path / "lost" / name).write_text(name)
    (tmp_path / "lost/4.txt").write_text("ZeroDivisionError")
    monkeypatch.setattr(guided.sys, "executable", "false")
    *losses, end = guided.tried(watched.Work(PLANTED, "guided", 0, tmp_path), 1.0).losses
    assert [each.split()[1] for each in losses] == ["ZeroDivisionError"] + ["atheris"] * 3
    assert "ended (1)" in end
    kept = {path.name: path.read_text() for path in (tmp_path / "kept").iterdir()}
    assert kept == {
        "guided-4": "4.input", "guided-crash-1": "crash-1", "guided-timeout-2": "timeout-2",
        "guided-oom-3": "oom-3",
    }  # fmt: skip


@pytest.mark.process
def test_what_is_refused_in_words_is_not_lost():
    tried = next(files.tries(1.5, 5, PLANTED, ["sound"]))
    assert tried.losses == []
    assert tried.count > 100
    assert "refused in words" in tried.holds


@pytest.mark.process
@pytest.mark.parametrize("module", ["text", "picture"])
def test_settings_and_pictures_lose_nothing(module):
    rows = list(files.tries(5.0, 1, (f"fault_classes.{module}_kinds",)))
    assert [loss for row in rows for loss in row.losses] == []
    assert all(row.count > 3 for row in rows if "atheris" not in row.holds)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["asked", "gguf"])
def test_models_and_what_they_are_asked_lose_nothing(module):
    rows = list(files.tries(20.0, 1, (f"fault_classes.{module}_kinds",)))
    assert [loss for row in rows for loss in row.losses] == []
    assert all(row.count > 3 for row in rows if "atheris" not in row.holds)


def test_a_number_gives_the_same_input_and_others_another(tmp_path):
    kind = watched.kinds_of()["names.toml"]
    watched.samples_made(kind, tmp_path)
    known = samples(tmp_path)
    inputs = [numbered(kind, "names.toml", 1, number, known) for number in range(50)]
    assert inputs == [numbered(kind, "names.toml", 1, number, known) for number in range(50)]
    assert len(set(inputs)) > 40


def test_changed_headers_are_read_as_far_as_their_parts(demo_draft, tmp_path):
    """Some are sound to the last entry, some are refused, and no two kinds are alike."""
    data, path = demo_draft.read_bytes()[:200_000], tmp_path / "changed.gguf"
    whole = demo_draft.read_bytes()
    found = set()
    for seed in range(60):
        changed = changed_gguf(whole, Random(seed))
        assert changed != data
        path.write_bytes(changed)
        try:
            found.add(len(read_header(path).metadata))
        except LocalspecError as error:
            found.add(str(error).partition(":")[2][:30])
    assert len(found) > 8
