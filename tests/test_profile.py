"""What was learned, between runs: whole, or as good as none."""

from __future__ import annotations

import os

import pytest

from localspec.policy.profile import Profile, profiles_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))


def test_what_is_saved_is_loaded_by_the_same_pair_alone():
    Profile(["a", "b"]).save({"x": 1})
    assert Profile(["a", "b"]).load() == {"x": 1}
    assert Profile(["a", "c"]).load() is None
    assert [path.suffix for path in profiles_folder().iterdir()] == [".json"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 99}',
        '{"version": 1, "identity": []}',
        "\xff",
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_as_good_as_none_and_is_replaced(content):
    profile = Profile(["a"])
    profile.save({"x": 1})
    profile.path.write_text(content, encoding="latin-1")
    assert Profile(["a"]).load() is None
    Profile(["a"]).save({"x": 2})
    assert Profile(["a"]).load() == {"x": 2}


@pytest.mark.skipif(
    os.name == "nt" or os.geteuid() == 0, reason="needs a folder without rights"
)
def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    tmp_path.chmod(0o500)
    Profile(["a"]).save({"x": 1})
    tmp_path.chmod(0o700)
    assert Profile(["a"]).load() is None


def test_a_file_in_the_way_of_the_folder_is_no_error():
    profiles_folder().parent.mkdir(parents=True, exist_ok=True)
    profiles_folder().write_text("")
    Profile(["a"]).save({"x": 1})
    assert Profile(["a"]).load() is None
