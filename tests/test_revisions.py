"""A branch, a tag or a commit in the name of a file on the hub."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import localspec
from localspec.cli import main
from localspec.errors import DownloadError
from localspec.presets.presets import find_preset
from standin_hub import COMMIT, StandinHub

REPO = "Qwen/Qwen2-0.5B-Instruct-GGUF"
FILE = "qwen2-0_5b-instruct-q4_k_m.gguf"
TAGGED = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture
def tagged(hub: StandinHub) -> StandinHub:
    hub.revisions["v1.0"] = TAGGED
    return hub


@pytest.mark.parametrize(
    ("revision", "commit"), [("v1.0", TAGGED), (TAGGED, TAGGED), ("main", COMMIT)]
)
def test_it_is_downloaded_and_loaded(tagged: StandinHub, revision, commit):
    name = f"hf:{REPO}@{revision}/{FILE}"
    (path,) = localspec.download(name)
    assert path.parent.name == commit
    assert any(f"/resolve/{revision}/" in seen.path for seen in tagged.seen)
    with localspec.load(target=name, num_threads=1) as engine:
        assert engine.vocabulary.size == 4096


def test_it_is_explained_before_it_is_here(tagged: StandinHub):
    assert not localspec.explain(target=f"hf:{REPO}@v1.0/{FILE}").target.is_here
    assert {seen.path.split("/")[4] for seen in tagged.seen if seen.method == "HEAD"} == {
        "v1.0"
    }


def test_another_revision_of_a_file_that_is_here_is_not_taken_for_it(tagged: StandinHub):
    localspec.download(f"hf:{REPO}/{FILE}")
    with pytest.raises(localspec.PresetError, match="not on this machine") as caught:
        localspec.load(target=f"hf:{REPO}@v1.0/{FILE}")
    assert f"localspec download hf:{REPO}@v1.0/{FILE}" in caught.value.hint


def test_an_added_preset_is_pinned_to_the_commit(tagged: StandinHub):
    result = CliRunner().invoke(
        main, ["models", "add", "mine", "--target", f"hf:{REPO}@v1.0/{FILE}"]
    )
    assert result.exit_code == 0, result.output
    assert find_preset("mine").target.files[0].revision == TAGGED


@pytest.mark.parametrize("ask", [localspec.download, lambda n: localspec.explain(target=n)])
def test_a_revision_that_there_is_not_is_named(tagged: StandinHub, ask):
    with pytest.raises(DownloadError, match=rf"{REPO} has no revision 'v2.0'") as caught:
        ask(f"hf:{REPO}@v2.0/{FILE}")
    assert "a branch, tag or commit" in caught.value.hint
