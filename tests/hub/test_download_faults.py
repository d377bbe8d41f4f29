"""Faults on the way of a download: the hub, the connection, the process, the disk.

After every test no file stands under its final name that is not whole and right.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import filelock
import pytest

import localspec
from command_line import LOCALSPEC
from gguf_maker import write_random_model
from localspec.errors import DownloadError, OptionError, PresetError
from localspec.gguf_file.header import read_header, read_source_header
from localspec.hub import api
from localspec.hub.api import list_files, remote_file
from localspec.hub.hub_file import HubFile
from localspec.hub.transfer import RemoteSource
from localspec.presets.presets import find_preset
from standin_hub import COMMIT, REPO, TARGET, Fault, StandinHub
from waiting import wait_until

MB = 1 << 20

pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture(autouse=True)
def _no_bad_file_under_a_good_name(hub: StandinHub, tmp_path):
    yield
    contents = {served.content for served in hub.files.values()}
    for path in [*tmp_path.rglob("*.gguf"), *tmp_path.rglob("blobs/*")]:
        if path.is_file() and not path.name.endswith((".localspec-part", ".localspec-own")):
            assert path.read_bytes() in contents, path


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """The file of the target's received bytes."""
    sha256 = find_preset("qwen2-7b").target.files[0].sha256
    folder = tmp_path / f"cache/models--{REPO.replace('/', '--')}/blobs"
    return folder / f"{sha256}.localspec-part"


def command(hub: StandinHub, *arguments: str) -> subprocess.Popen:
    """The installed command in another process, against the hub."""
    return subprocess.Popen(
        [LOCALSPEC, *arguments],
        env={**os.environ, **hub.environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def size_of(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def set_timeout(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", seconds)


# --- faults that pass


@pytest.mark.parametrize(
    ("faults", "ranges"),
    [
        ([Fault(stall_after=2 * MB)], [None, 2 * MB]),
        ([Fault(cut_after=MB // 2)] * 10, [None, *[n * MB // 2 for n in range(1, 11)]]),
        ([Fault(status=500), Fault(status=502), Fault(status=503)], [None] * 4),
        ([Fault(cut_after=MB), Fault(status=403)], [None, MB, MB]),  # the signature expired
        ([Fault(cut_after=MB), Fault(ignore_range=True)], [None, MB]),
        ([Fault(on_head=True, cut_after=0), Fault(on_head=True, status=502)], [None]),
        ([Fault(status=429, headers={"Retry-After": "1"})], [None, None]),
    ],
    ids=["silent", "cuts", "5xx", "403", "no ranges", "head", "later"],
)  # fmt: skip
def test_it_goes_on_where_it_stopped(hub: StandinHub, monkeypatch, faults, ranges):
    """In the same call, at the next missing byte, as long as new bytes come."""
    if faults[0].stall_after is not None:
        set_timeout(monkeypatch, 2.0)  # only here: on a busy machine others may be silent, too
    hub.faults[TARGET] = faults
    localspec.download("qwen2-7b")
    expected = [None if begin is None else f"bytes={begin}-" for begin in ranges]
    assert [seen.range for seen in hub.gets(TARGET)] == expected


def test_waits_grow_from_the_first_delay_and_begin_anew_with_each_byte(hub, monkeypatch):
    waits = []
    given_delay = api.delay_s

    def noted_delay(error, step):
        waits.append(step)
        return given_delay(error, step)

    monkeypatch.setattr("localspec.hub.transfer.delay_s", noted_delay)
    failed = Fault(status=500)
    hub.faults[TARGET] = [failed, failed, Fault(cut_after=MB), failed, failed]
    localspec.download("qwen2-7b")
    assert waits == [0, 1, 0, 0, 1]


@pytest.mark.parametrize("damage", [lambda c: b"\0" * MB, lambda c: c + b"?"])
def test_damaged_bytes_of_an_earlier_call_are_replaced(hub: StandinHub, part, damage):
    part.parent.mkdir(parents=True)
    part.write_bytes(damage(hub.files[REPO, TARGET].content))
    localspec.download("qwen2-7b")
    assert hub.gets(TARGET)[-1].range is None


# --- faults that are told


def head(status: int, code: str | None = None, **headers: str) -> Fault:
    return Fault(
        on_head=True,
        status=status,
        headers={**headers, **({"X-Error-Code": code} if code else {})},
    )


def redirect(target: str) -> Fault:
    return Fault(at_hub=True, redirect=target)


@pytest.mark.parametrize(
    ("fault", "words", "hint"),
    [
        (head(401, "GatedRepo"), "is gated", "hf auth login"),
        (head(404, "RepoNotFound"), "does not exist, or is private", "HF_TOKEN"),
        (head(404, "EntryNotFound"), "has no file", "/tree/main"),
        (head(404, "RevisionNotFound"), "has no revision", "preset"),
        (head(200), "a missing or invalid commit, hash or size", "HF_ENDPOINT"),
        (Fault(status=404), "the storage .* answers 404", "later"),
        (Fault(status=429, headers={"Retry-After": "3600"}), "3600 s", "hf auth login"),
        (
            Fault(status=503, headers={"Retry-After": "900"}),
            "503 and asks to wait 900 s",
            "later",
        ),
        (redirect("file:///etc/passwd"), "cannot be reached.*'file://'", "HF_ENDPOINT"),
        (redirect(f"/{REPO}/resolve/{COMMIT}/{TARGET}"), "TooManyRedirects", "HF_ENDPOINT"),
        (Fault(content=b"x" * 9 * MB), "more than the", "HF_ENDPOINT"),
    ],
)
def test_a_refusal_says_what_to_do(hub: StandinHub, fault, words, hint):
    hub.faults[TARGET] = [fault] * 30
    with pytest.raises(DownloadError, match=words) as caught:
        localspec.download("qwen2-7b")
    assert hint in caught.value.hint


def test_a_dead_server_is_left_and_received_bytes_are_kept(hub: StandinHub, part):
    hub.faults[TARGET] = [Fault(cut_after=MB)] + [Fault(cut_after=0)] * 7
    with pytest.raises(DownloadError, match=f"stopped at {MB} of ") as caught:
        localspec.download("qwen2-7b")
    assert "continues from there" in caught.value.hint
    hub.faults[TARGET] = []
    localspec.download("qwen2-7b")
    assert hub.gets(TARGET)[-1].range == f"bytes={MB}-"


@pytest.mark.parametrize("pinned", [True, False])
def test_wrong_bytes_are_refused_and_not_kept(hub: StandinHub, part, pinned):
    content = hub.files[REPO, TARGET].content
    hub.faults[TARGET] = [Fault(content=content[:-1] + b"!")]
    name = "qwen2-7b" if pinned else f"hf:{REPO}/{TARGET}"
    with pytest.raises(DownloadError, match="wrong content"):
        localspec.download(name)
    assert size_of(part) == 0
    localspec.download(name)


def test_another_file_behind_the_name_is_refused_unread(hub: StandinHub):
    hub.files.pop((REPO, TARGET))
    hub.add(REPO, TARGET, b"GGUF" * MB)
    with pytest.raises(DownloadError, match=r"differs from the pinned file"):
        localspec.download("qwen2-7b")
    assert hub.gets(TARGET) == []


def test_a_mirror_may_have_etags_of_its_own_for_pinned_files(hub: StandinHub):
    size = str(len(hub.files[REPO, TARGET].content))
    headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": '"5f3a-61"', "X-Linked-Size": size}
    hub.faults[TARGET] = [head(200, **headers)]
    paths = localspec.download("qwen2-7b")
    assert paths[0].resolve().name == find_preset("qwen2-7b").target.files[0].sha256


# --- secrets and names


@pytest.mark.parametrize("token", [None, "hf_secret"])
def test_the_token_goes_to_the_hubs_own_port_alone(
    hub: StandinHub, tmp_path, monkeypatch, token
):
    """And passwords of netrc to nobody."""
    netrc = tmp_path / "netrc"
    netrc.write_text(
        "".join(f"machine {h} login me password x\n" for h in ("localhost", "127.0.0.1"))
    )
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.token = token
    there = hub.cdn.replace("localhost", "127.0.0.1")
    hub.faults[TARGET] = [redirect(f"{there}/{REPO}/{TARGET}")]
    localspec.download("qwen2-7b")
    bearer = token and f"Bearer {token}"
    assert {seen.token for seen in hub.seen if seen.server == "cdn"} == {None}
    assert {seen.token for seen in hub.seen if seen.server == "hub"} == {bearer}


def test_signatures_stay_out_of_errors_and_tracebacks(hub: StandinHub):
    gone = "http://user:pass-w0rd@localhost:9/file?X-Signature=53cr3t&X-Other=53cr3t"
    hub.faults[TARGET] = [redirect(gone)] * 6
    with pytest.raises(DownloadError, match="stopped at 0") as caught:
        localspec.download("qwen2-7b")
    told = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    assert "53cr3t" not in told
    assert "pass-w0rd" not in told


@pytest.mark.parametrize(
    "name",
    ["../../x", "/etc/passwd", "qwen2-7b/../../x", "C:\\x", "hf:../../x.gguf", "hf:o/m/../../x",
     "hf:o/m/../../../x.gguf", "hf:o/m//x.gguf", "o/m/x:Q4", "..:Q4_K_M", "../..:Q4_K_M", ""],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(hub: StandinHub, tmp_path, name):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((PresetError, OptionError)):
        localspec.download(name)
    assert hub.seen == []
    assert sorted(tmp_path.rglob("*")) == before


# --- processes and callbacks


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="has neither signal for one process")
@pytest.mark.parametrize("number", ["SIGKILL", "SIGINT"])
def test_the_next_call_goes_on_after_a(hub: StandinHub, tmp_path, part, number):
    """Ctrl-C ends with exit code 130 and no traceback."""
    hub.faults[TARGET] = [Fault(stall_after=2 * MB)]  # else all may be there before the signal
    process = command(hub, "download", "qwen2-7b")
    wait_until(lambda: size_of(part) >= MB)
    process.send_signal(getattr(signal, number))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if number == "SIGINT" else -9)
    assert "Traceback" not in errors
    assert not [*tmp_path.rglob(TARGET)]
    kept = part.stat().st_size
    localspec.download("qwen2-7b")
    assert [seen.range for seen in hub.gets(TARGET)] == [None, f"bytes={kept}-"]


def test_a_download_waits_for_that_of_another_process(hub: StandinHub, part, tmp_path):
    folder = tmp_path / "cache/.locks" / part.parent.parent.name
    folder.mkdir(parents=True)
    lock = filelock.FileLock(folder / part.with_suffix(".lock").name)
    lock.acquire()
    requests: list = []

    def on_progress(progress):
        if progress.state == "waiting" and lock.is_locked:
            requests.extend(hub.gets(TARGET))
            lock.release()

    localspec.download("qwen2-7b", on_progress=on_progress)
    assert not lock.is_locked
    assert requests == []


def test_a_callback_that_raises_ends_the_download(hub: StandinHub, monkeypatch, part):
    """The exception reaches the caller, the threads are gone, the next call continues."""
    monkeypatch.setattr("localspec.presets.downloads._JOIN_S", 60.0)
    hub.faults[TARGET] = [Fault(stall_after=2 * MB)]  # else all may be there before it raises
    set_timeout(monkeypatch, 2.0)  # the thread ends when it hears nothing for so long

    def on_progress(progress):
        if progress.received_bytes > MB:
            raise RuntimeError("my window was closed")

    with pytest.raises(RuntimeError, match="my window"):
        localspec.download("qwen2-7b", on_progress=on_progress)
    assert not [t for t in threading.enumerate() if t.name.startswith("download-")]
    kept = part.stat().st_size
    assert kept > 0
    set_timeout(monkeypatch, 60.0)
    localspec.download("qwen2-7b")
    assert hub.gets(TARGET)[-1].range == f"bytes={kept}-"


SILENCES = [
    pytest.param(f"hf:{REPO}/{TARGET}", TARGET, Fault(stall_after=2 * MB), id="fetching"),
    pytest.param("qwen2-7b", TARGET, Fault(on_head=True, stall_after=0), id="asking"),
    pytest.param(f"{REPO}:Q4_K_M", REPO, Fault(at_hub=True, stall_after=0), id="listing"),
]


@pytest.mark.parametrize(("name", "key", "fault"), SILENCES)
def test_a_callback_can_stop_a_silent_download(hub: StandinHub, monkeypatch, name, key, fault):
    set_timeout(monkeypatch, 120)
    hub.faults[key] = [fault]
    wanted, seen = fault.stall_after or 0, []

    def on_progress(progress):
        if progress.received_bytes >= wanted:
            seen.append(progress)
        if len(seen) > 2:
            raise RuntimeError("stop")

    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="stop"):
        localspec.download(name, on_progress=on_progress)
    assert time.monotonic() - begin < 120, "the connection ended first"


# --- the disk


@pytest.mark.parametrize(
    ("number", "words", "hint"),
    [(errno.ENOSPC, "is full", "received bytes are kept"),
     (errno.EROFS, "cannot be read or written", "local_dir=DIR")],
)  # fmt: skip
def test_a_disk_that_takes_no_more_keeps_what_was_received(
    hub: StandinHub, monkeypatch, number, words, hint
):
    def refuse(_descriptor):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(DownloadError, match=words) as caught:
            localspec.download(f"hf:{REPO}/{TARGET}")
    assert hint in caught.value.hint
    localspec.download("qwen2-7b")
    assert len(hub.gets(TARGET)) == 1


def test_a_disk_without_room_is_named_before_a_byte_is_fetched(hub: StandinHub, monkeypatch):
    real = shutil.disk_usage(os.curdir)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: real._replace(free=3 * MB))
    with pytest.raises(DownloadError, match="bytes have to be downloaded") as caught:
        localspec.download("qwen2-7b")
    assert "HF_HUB_CACHE" in caught.value.hint
    assert hub.gets(TARGET) == []


@pytest.mark.parametrize("what", ["part", "content"])
def test_a_symbolic_link_in_the_way_is_not_followed(hub: StandinHub, tmp_path, part, what):
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    part.parent.mkdir(parents=True)
    way = part if what == "part" else part.with_suffix("")
    way.symlink_to(precious if what == "part" else tmp_path / "nothing")
    if what == "part":
        localspec.download("qwen2-7b")
    else:
        with pytest.raises(DownloadError, match="symbolic link"):
            localspec.download("qwen2-7b")
    assert precious.read_bytes() == b"mine"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_in_place_of_received_bytes_is_not_waited_for(hub: StandinHub, part):
    part.parent.mkdir(parents=True)
    os.mkfifo(part)
    target, *_ = localspec.download("qwen2-7b")
    assert target.read_bytes() == hub.files[REPO, TARGET].content


def test_a_list_of_files_has_a_bound(hub: StandinHub):
    """What is too long is not read to its end, and what is no list says so."""
    hub.add("o/many", "a.gguf", b"x" * 10)
    assert [file.file for file in list_files("o/many")] == ["a.gguf"]
    long = b'{"siblings": [' + b'{"rfilename": "a.gguf"},' * 4_000_000
    hub.faults["o/many"].append(Fault(at_hub=True, content=long))
    with pytest.raises(DownloadError, match="more than 16000000 bytes about o/many"):
        list_files("o/many")
    assert hub.num_replied < 40_000_000  # of 96 MB, with what lay between the two
    for wrong in (b"[]", b"nonsense", b"\xff", b"[" * 100_000, b'{"siblings": 3}'):
        hub.faults["o/many"].append(Fault(at_hub=True, content=wrong))
        with pytest.raises(DownloadError, match="cannot be reached for o/many"):
            list_files("o/many")
    entries = [
        3,
        None,
        {},
        {"rfilename": 4},
        {"rfilename": "../a.gguf"},
        {"rfilename": "b.gguf"},
    ]
    listed = json.dumps({"siblings": entries}).encode()
    hub.faults["o/many"].append(Fault(at_hub=True, content=listed))
    assert [file.file for file in list_files("o/many")] == ["b.gguf"]


def test_the_content_of_a_refusal_is_not_read(hub: StandinHub):
    """A reason in it could be of any length."""
    hub.add("o/many", "a.gguf", b"x" * 10)
    hub.faults["o/many"].append(Fault(at_hub=True, status=403, content=bytes(96_000_000)))
    with pytest.raises(DownloadError, match="answers 403"):
        list_files("o/many")
    assert hub.num_replied < 40_000_000  # of 96 MB, with what lay between the two


@pytest.mark.parametrize("token", ["hf_schlüssel", "hf_a b", "hf_a\x7f", "hf_\u200bkey"])
@pytest.mark.parametrize("place", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "file"])
def test_a_token_that_cannot_be_sent_is_named_with_its_place(
    hub: StandinHub, tmp_path, monkeypatch, place, token
):
    """Nothing is asked, and nothing of the token is shown but the character."""
    if place == "file":
        path = tmp_path / "hf" / "token"
        path.parent.mkdir(exist_ok=True)
        path.write_text(token + "\n", encoding="utf-8")
        place = f"the file {path}"
    else:
        monkeypatch.setenv(place, token)
    wrong = next(each for each in token if not "!" <= each <= "~")
    calls = (
        lambda: localspec.download("qwen2-7b"),
        lambda: list_files("o/many"),
        lambda: remote_file(FILE),
    )
    for call in calls:
        with pytest.raises(OptionError) as caught:
            call()
        assert f"the token in {place} has {wrong!r} as its character" in str(caught.value)
        assert "/settings/tokens" in caught.value.hint
        assert "hf_" not in str(caught.value)
    assert hub.seen == []


# --- headers over the network: ranges of a file, and nothing else of it


FILE = HubFile(repo="owner/repo", file="large.gguf")


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
    # The client has the last bytes before the hub has counted them.
    wait_until(lambda: hub.num_sent[FILE.file] == 8 << 20)


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


def test_an_endpoint_is_known_however_it_is_written(hub: StandinHub, monkeypatch):
    """Its refusal is not taken for that of the storage to which it redirects."""
    endpoint = hub.endpoint.replace("127.0.0.1", "LOCALHOST")
    assert endpoint != hub.endpoint
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    hub.faults[REPO] = [Fault(at_hub=True, status=404)]
    with pytest.raises(DownloadError, match="does not exist, or is private"):
        list_files(REPO)
