"""What was learned, between runs: whole, or as good as none."""

from __future__ import annotations

import json

import pytest

import localspec
from localspec.policy.profile import (
    VERSION,
    Profile,
    is_of_exactness,
    kept_profiles,
    profiles_folder,
)

pytestmark = pytest.mark.usefixtures("own_folders")


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


@pytest.mark.parametrize("identity", [[], "ab", {"a": 1}, [1], None])
@pytest.mark.parametrize("learned", [{}, []])
def test_a_file_without_models_or_content_is_passed_over(identity, learned):
    """Whoever looks through all of them, as for what is kept of a preset, finds usable ones."""
    profile = Profile(["a"])
    content = {"version": VERSION, "identity": identity, "learned": learned}
    profile.path.parent.mkdir(parents=True, exist_ok=True)
    profile.path.write_text(json.dumps(content))
    assert list(kept_profiles()) == []
    Profile(["b"]).save({})
    assert [is_of_exactness(identity) for _, identity, _ in kept_profiles()] == [False]


@pytest.mark.parametrize("number", [1e999, "x", None])
def test_numbers_that_are_none_do_not_keep_a_pair_from_starting(number, unrelated_draft):
    """They are learned again."""
    given = {"target": unrelated_draft, "draft": unrelated_draft, "num_threads": 1}
    with localspec.load(**given) as engine:
        engine.generate_raw("a", max_tokens=40, seed=1).reply()
    (path,) = [path for path, identity, _ in kept_profiles() if not is_of_exactness(identity)]
    content = json.loads(path.read_text())
    for acceptance in content["learned"]["acceptance"].values():
        acceptance["num_seen"] = number
    path.write_text(json.dumps(content))
    with localspec.load(**given) as engine:
        assert engine.generate_raw("a", max_tokens=4, seed=1).reply().token_ids
