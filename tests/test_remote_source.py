"""Headers over the network: ranges of a file on the hub, and nothing else of it."""

from __future__ import annotations

import pytest

from gguf_maker import write_random_model
from localspec.errors import DownloadError
from localspec.gguf_file.header import read_header, read_source_header
from localspec.hub.api import remote_file
from localspec.hub.hub_file import HubFile
from localspec.hub.transfer import RemoteSource
from standin_hub import Fault, StandinHub

FILE = HubFile(repo="owner/repo", file="large.gguf")


pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture
def model(hub: StandinHub, tmp_path, demo_target):
    """A model longer than the first read, and the hub serves it."""
    path = write_random_model(tmp_path / "large.gguf", demo_target, width=512)
    assert path.stat().st_size > 16 << 20
    hub.add(FILE.repo, FILE.file, path.read_bytes())
    return path


def test_the_header_alone_is_fetched(hub: StandinHub, model, monkeypatch):
    """And the token goes to the hub only."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.token = "secret"
    header = read_source_header(RemoteSource(remote_file(FILE)))
    here = read_header(model)
    assert (header.metadata, header.tensors) == (here.metadata, here.tensors)
    (get,) = hub.gets(FILE.file)
    assert (get.range, get.token) == (f"bytes=0-{(8 << 20) - 1}", None)
    assert hub.num_sent[FILE.file] == 8 << 20


def test_a_server_without_ranges_is_cut_off(hub: StandinHub, model):
    """The rest of its answer is not waited for."""
    hub.faults[FILE.file] = [Fault(ignore_range=True), Fault(ignore_range=True)]
    source = RemoteSource(remote_file(FILE))
    data = model.read_bytes()
    assert source.read(0, 100) == data[:100]
    assert source.read(70_000, 100) == data[70_000:70_100]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(status=403), "403"),
        (Fault(cut_after=1000), "cannot be read"),
        (Fault(status=500), "500"),
        (Fault(at_hub=True, redirect="http://localhost:9/x"), "cannot be read"),
    ],
)
def test_a_failure_is_tried_again_and_then_told(hub: StandinHub, model, fault, message):
    source = RemoteSource(remote_file(FILE))
    hub.faults[FILE.file] = [fault] * 5
    assert source.read(0, 4096) == model.read_bytes()[:4096]
    hub.faults[FILE.file] = [fault] * 6
    with pytest.raises(DownloadError, match=message) as caught:
        source.read(0, 4096)
    assert "owner/repo/large.gguf" in str(caught.value)
