"""What can go wrong on the way, one fault a test.

The first line of a docstring is the fault, the second what has to hold. After every test no
file stands under its final name that is not whole and right.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
from click.testing import CliRunner

import localspec
import standin_hub
from localspec.cli import main
from localspec.errors import DownloadError, LocalspecError, OptionError, PresetError
from localspec.presets.presets import find_preset
from standin_hub import Fault, StandinHub

TARGET = "qwen2-7b-instruct-q4_k_m.gguf"
DRAFT = "qwen2-0_5b-instruct-q4_k_m.gguf"
REPO = "Qwen/Qwen2-7B-Instruct-GGUF"
MB = 1 << 20
LOCALSPEC = Path(sys.executable).with_name("localspec")  # the installed command


pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture(autouse=True)
def _no_bad_file_under_a_good_name(hub: StandinHub, tmp_path):
    yield
    contents = {served.content for served in hub.files.values()}
    for path in [*tmp_path.rglob("*.gguf"), *tmp_path.rglob("blobs/*")]:
        if path.is_file() and not path.name.endswith((".localspec-part", ".localspec-own")):
            assert path.read_bytes() in contents, path


def part_file(tmp_path: Path) -> Path:
    sha256 = find_preset("qwen2-7b").target.files[0].sha256
    folder = tmp_path / f"cache/models--{REPO.replace('/', '--')}/blobs"
    return folder / f"{sha256}.localspec-part"


def command(hub: StandinHub, *arguments: str) -> subprocess.Popen:
    """The installed command in another process, against the hub."""
    return subprocess.Popen(
        [LOCALSPEC, *arguments],
        env={**os.environ, **hub.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def wait_for(condition, timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def size_of(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


# --- the connection


def test_cut(hub: StandinHub):
    """The connection breaks in the middle of the file
    It continues at the byte where it stopped, in the same call
    """
    hub.faults[TARGET] = [Fault(cut_after=3 * MB)]
    (path, _) = localspec.download("qwen2-7b")
    first, second = hub.gets(TARGET)
    assert first.range is None
    begin = int(second.range.removeprefix("bytes=").removesuffix("-"))
    assert 3 * MB - (1 << 16) <= begin <= 3 * MB
    assert hub.num_sent[TARGET] <= path.stat().st_size + (1 << 16)


def test_cut_again_and_again(hub: StandinHub):
    """The connection breaks ten times
    As long as each attempt brings new bytes, it continues
    """
    hub.faults[TARGET] = [Fault(cut_after=MB // 2)] * 10
    localspec.download("qwen2-7b")
    assert len(hub.gets(TARGET)) == 11


def test_dead(hub: StandinHub, tmp_path):
    """The connection breaks at once, every time
    An error after six attempts; bytes received by an earlier call are kept and used by the next
    """
    hub.faults[TARGET] = [Fault(cut_after=MB)] + [Fault(cut_after=0)] * 7
    with pytest.raises(DownloadError, match="stopped at") as caught:
        localspec.download("qwen2-7b")
    assert "continues from there" in caught.value.hint
    kept = part_file(tmp_path).stat().st_size
    assert kept == MB
    hub.faults[TARGET] = []
    localspec.download("qwen2-7b")
    assert hub.gets(TARGET)[-1].range == f"bytes={kept}-"


def test_stall(hub: StandinHub, monkeypatch):
    """The server falls silent in the middle of the file
    After the timeout it asks for the rest
    """
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    hub.faults[TARGET] = [Fault(stall_after=2 * MB)]
    localspec.download("qwen2-7b")
    assert hub.gets(TARGET)[1].range == f"bytes={2 * MB}-"


def test_nobody_there(hub: StandinHub):
    """Nothing listens at the endpoint
    An error that names the endpoint and says what to check
    """
    hub.close()
    with pytest.raises(DownloadError, match="cannot be asked") as caught:
        localspec.download("qwen2-7b")
    assert "HF_ENDPOINT" in caught.value.hint


# --- the process


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_kill(hub: StandinHub, tmp_path):
    """kill -9 in the middle, twice
    The next call asks for exactly the missing bytes
    """
    hub.pace_s = 0.02
    part = part_file(tmp_path)
    for wanted in (MB, 3 * MB):
        process = command(hub, "download", "qwen2-7b")
        wait_for(lambda wanted=wanted: size_of(part) >= wanted)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not [*tmp_path.rglob(TARGET)]
    kept = part.stat().st_size
    hub.pace_s = 0
    localspec.download("qwen2-7b")
    ranges = [seen.range for seen in hub.gets(TARGET)]
    assert ranges[-1] == f"bytes={kept}-"
    assert len(ranges) == 3


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT for one process")
def test_interrupt(hub: StandinHub, tmp_path):
    """Ctrl-C in the middle
    Exit code 130 at once; the next call continues
    """
    hub.pace_s = 0.02
    part = part_file(tmp_path)
    process = command(hub, "download", "qwen2-7b")
    wait_for(lambda: size_of(part) >= MB)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors
    kept = part.stat().st_size
    hub.pace_s = 0
    localspec.download("qwen2-7b")
    assert hub.gets(TARGET)[-1].range == f"bytes={kept}-"


@pytest.mark.process
def test_two_at_once(hub: StandinHub, tmp_path):
    """Two processes download the same preset
    One downloads, the other waits and uses the result; every byte is sent once
    """
    hub.pace_s = 0.3
    first = command(hub, "download", "qwen2-7b")
    wait_for(lambda: size_of(part_file(tmp_path)) > 0)

    def on_progress(progress):
        if progress.state == "waiting":
            waited.append(progress)
            hub.pace_s = 0

    waited = []
    localspec.download("qwen2-7b", on_progress=on_progress)
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 0, errors
    assert waited
    assert len(hub.gets(TARGET)) == len(hub.gets(DRAFT)) == 1


@pytest.mark.process
def test_one_of_two_is_killed(hub: StandinHub, tmp_path):
    """Two processes download the same preset, and the one that downloads is killed
    The other continues from there
    """
    hub.pace_s = 0.02
    first = command(hub, "download", "qwen2-7b")
    wait_for(lambda: size_of(part_file(tmp_path)) >= MB)
    hub.pace_s = 0.3

    def on_progress(progress):
        if progress.state == "waiting" and first.returncode is None:
            first.kill()
            first.communicate()
            hub.pace_s = 0

    localspec.download("qwen2-7b", on_progress=on_progress)
    assert first.returncode  # killed, and not done
    assert hub.gets(TARGET)[-1].range is not None


def test_a_callback_that_raises(hub: StandinHub, tmp_path):
    """The application's progress callback raises
    The exception reaches the caller, the threads are gone, the next call continues
    """

    def on_progress(progress):
        if progress.received_bytes > MB:
            raise RuntimeError("my window was closed")

    with pytest.raises(RuntimeError, match="my window"):
        localspec.download("qwen2-7b", on_progress=on_progress)
    assert not [t for t in threading.enumerate() if t.name.startswith("download-")]
    kept = part_file(tmp_path).stat().st_size
    assert kept > 0
    localspec.download("qwen2-7b")
    assert hub.gets(TARGET)[-1].range == f"bytes={kept}-"


def stop_at(num_bytes: int):
    """A callback that stops when so much is here and then nothing more comes."""
    seen = []

    def on_progress(progress):
        if progress.received_bytes >= num_bytes:
            seen.append(progress)
        if len(seen) > 2:
            raise RuntimeError("stop")

    return on_progress


@pytest.mark.parametrize(
    ("name", "key", "fault", "num_bytes"),
    [
        (f"hf:{REPO}/{TARGET}", TARGET, Fault(stall_after=2 * MB), 2 * MB),
        ("qwen2-7b", TARGET, Fault(on_head=True, stall_after=0), 0),
        (
            "qwen2-7b",
            TARGET,
            Fault(on_head=True, status=429, headers={"Retry-After": "500"}),
            0,
        ),
        (f"{REPO}:Q4_K_M", REPO, Fault(at_hub=True, stall_after=0), 0),
        (
            f"{REPO}:Q4_K_M",
            REPO,
            Fault(at_hub=True, status=503, headers={"Retry-After": "500"}),
            0,
        ),
    ],
    ids=["fetching", "asking", "asking later", "listing", "listing later"],
)
def test_a_callback_that_raises_in_silence(
    hub: StandinHub, monkeypatch, name, key, fault, num_bytes
):
    """The server is silent, or asks for a retry later, and the progress callback raises
    It is called anyway, and the exception reaches the caller at once
    """
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 60)
    hub.faults[key] = [fault]
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="stop"):
        localspec.download(name, on_progress=stop_at(num_bytes))
    assert time.monotonic() - begin < 8


def test_begun_again_in_silence(hub: StandinHub, monkeypatch):
    """A download that stopped during silence starts again while its connection still waits
    It continues from there, at the latest after that connection's timeout
    """
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 4)
    hub.faults[TARGET] = [Fault(stall_after=2 * MB)]
    name = f"hf:{REPO}/{TARGET}"
    with pytest.raises(RuntimeError, match="stop"):
        localspec.download(name, on_progress=stop_at(2 * MB))
    localspec.download(name)
    assert [seen.range for seen in hub.gets(TARGET)] == [None, f"bytes={2 * MB}-"]


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT for one process")
@pytest.mark.parametrize(
    "fault",
    [
        Fault(stall_after=2 * MB),
        Fault(on_head=True, stall_after=0),
        Fault(on_head=True, status=429, headers={"Retry-After": "500"}),
    ],
    ids=["fetching", "asking", "asking later"],
)
def test_interrupt_in_silence(hub: StandinHub, tmp_path, fault):
    """The server is silent, or asks for a retry later, and Ctrl-C is pressed
    Exit code 130 at once
    """
    hub.environment |= {"HF_HUB_DOWNLOAD_TIMEOUT": "60", "HF_HUB_ETAG_TIMEOUT": "60"}
    hub.faults[TARGET] = [fault]
    process = command(hub, "download", "qwen2-7b")
    wait_for(lambda: not hub.faults[TARGET])
    if not fault.on_head:
        wait_for(lambda: size_of(part_file(tmp_path)) == 2 * MB)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_slow_callback(hub: StandinHub):
    """The progress callback is slow
    It gets the latest state, not every missed one, and is soon at the end
    """
    size = len(hub.files[REPO, TARGET].content)
    states = []

    def on_progress(progress):
        if not states:
            wait_for(lambda: hub.num_sent[TARGET] == size)
        time.sleep(0.1)
        states.append(progress.state)

    localspec.download(f"hf:{REPO}/{TARGET}", on_progress=on_progress)
    assert states[-1] == "done"
    assert len(states) < 20  # of 125 pieces that were received


# --- the server


def test_led_in_a_circle(hub: StandinHub):
    """The server redirects to itself for ever
    An error at once
    """
    commit = find_preset("qwen2-7b").target.files[0].revision
    here = f"{hub.endpoint}/{REPO}/resolve/{commit}/{TARGET}"
    hub.faults[TARGET] = [Fault(at_hub=True, redirect=here)] * 100
    with pytest.raises(DownloadError, match="redirects more than 10 times"):
        localspec.download("qwen2-7b")
    assert len(gets_at_hub(hub)) == 11


@pytest.mark.parametrize(
    "target",
    [
        "file:///etc/passwd",
        "ftp://localhost/x",
        "http://[x/",
        "data:,x",
        "http://localhost/\xff",
    ],
)
def test_led_astray(hub: StandinHub, target):
    """The server redirects to a file, another protocol or nowhere
    An error at once
    """
    hub.faults[TARGET] = [Fault(at_hub=True, redirect=target)] * 9
    with pytest.raises(DownloadError, match=r"leads to an (invalid )?address"):
        localspec.download("qwen2-7b")
    assert len(gets_at_hub(hub)) == 1


@pytest.mark.parametrize("host", ["a..b", ".com", "a" * 300])
def test_led_to_no_host(hub: StandinHub, host):
    """The server redirects to an invalid host name
    An error at once
    """
    hub.faults[TARGET] = [Fault(at_hub=True, redirect=f"http://{host}/x")] * 9
    with pytest.raises(DownloadError, match="cannot be asked"):
        localspec.download("qwen2-7b")
    assert len(gets_at_hub(hub)) == 1


def gets_at_hub(hub: StandinHub) -> list:
    return [
        seen
        for seen in hub.seen
        if (seen.server, seen.method) == ("hub", "GET") and seen.path.endswith(TARGET)
    ]


@pytest.mark.process
def test_led_out_of_encryption(hub: StandinHub, tmp_path, monkeypatch):
    """An encrypted server redirects to one that is not
    An error at once: nothing is sent unencrypted
    """
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    from localspec.hub.api import RemoteFile
    from localspec.hub.request import content_of

    file = find_preset("qwen2-7b").target.files[0]
    served = hub.files[REPO, TARGET]
    with encrypted(hub, tmp_path) as endpoint:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "cert.pem"))
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        remote = RemoteFile(
            file=file, commit=file.revision, etag=served.sha256,
            size_bytes=len(served.content),
            url=f"{endpoint}/{REPO}/resolve/{file.revision}/{TARGET}",
        )  # fmt: skip
        with pytest.raises(DownloadError, match="without encryption"):
            content_of(remote, None).__enter__()
    assert [seen.token for seen in gets_at_hub(hub)] == ["Bearer hf_secret"]
    assert hub.gets(TARGET) == []


@contextlib.contextmanager
def encrypted(hub: StandinHub, folder: Path):
    """The address of a door to the hub that speaks TLS, with a certificate of its own."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout",
         folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=127.0.0.1", "-addext",
         "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    server = standin_hub.serve_hub(hub)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_passwords_of_netrc(hub: StandinHub, tmp_path, monkeypatch):
    """~/.netrc has a password for the host that the hub redirects to
    It is sent neither there nor to the hub
    """
    netrc = tmp_path / "netrc"
    netrc.write_text(
        "".join(f"machine {h} login me password x\n" for h in ("localhost", "127.0.0.1"))
    )
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    localspec.download("qwen2-7b")
    assert len(hub.gets(TARGET)) == 1
    assert {seen.token for seen in hub.seen if seen.method == "GET"} == {None}


def test_token_and_another_port(hub: StandinHub, monkeypatch):
    """The hub redirects to another port of its own host
    The token is not sent there
    """
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.token = "hf_secret"
    there = hub.cdn.replace("localhost", "127.0.0.1")
    hub.faults[TARGET] = [
        Fault(at_hub=True, redirect=f"{there}/{REPO}/{TARGET}?expires={time.time() + 60}")
    ]
    localspec.download("qwen2-7b")
    assert [seen.token for seen in hub.gets(TARGET)] == [None]
    assert [seen.token for seen in gets_at_hub(hub)] == ["Bearer hf_secret"]


def test_signatures_stay_secret(hub: StandinHub):
    """The signed address that the hub redirects to cannot be reached
    An error without its signature and without a password, in the traceback too
    """
    gone = "http://user:pass-w0rd@localhost:9/file?X-Signature=53cr3t&X-Other=53cr3t"
    hub.faults[TARGET] = [Fault(at_hub=True, redirect=gone)] * 6
    with pytest.raises(DownloadError, match="stopped at 0") as caught:
        localspec.download("qwen2-7b")
    told = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    assert "localhost" in told
    assert "53cr3t" not in told
    assert "pass-w0rd" not in told


@pytest.mark.parametrize(("at_hub", "words"), [(False, "storage"), (True, "any more")])
def test_content_is_gone(hub: StandinHub, at_hub, words):
    """The hub knows the file, and then it, or the storage that it redirects to, answers 404
    An error that says which of them lacks the file, and does not blame a token
    """
    hub.faults[TARGET] = [Fault(status=404, at_hub=at_hub)]
    with pytest.raises(DownloadError, match=words) as caught:
        localspec.download("qwen2-7b")
    assert "token" not in caught.value.hint


@pytest.mark.parametrize("arguments", [
    ["explain", "qwen2-7b"],
    ["explain", "--target", f"{REPO}:Q4_K_M"],
    ["models", "add", "mine", "--target", f"hf:{REPO}/{TARGET}"],
    ["models", "add", "mine", "--target", f"{REPO}:q4_k_m"],
    ["download", f"{REPO}:q4_k_m"],
], ids=" ".join)  # fmt: skip
def test_out_of_order_for_other_commands(hub: StandinHub, arguments):
    """The hub fails for a moment when explain, models add or owner/repo:QUANT ask it
    They retry, too
    """
    hub.faults[REPO] = [Fault(at_hub=True, status=503)] * 3
    hub.faults[TARGET] = [Fault(on_head=True, status=502)] * 3 + [Fault(status=500)] * 3
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output


def test_hung_up_while_asking(hub: StandinHub):
    """The hub hangs up when it is asked about a file
    It is asked again
    """
    hub.faults[TARGET] = [Fault(on_head=True, cut_after=0)] * 3
    localspec.download("qwen2-7b")


def test_ranges_unknown(hub: StandinHub):
    """The server ignores the range and sends everything
    The bytes that are here already are skipped, and the rest is appended
    """
    hub.faults[TARGET] = [Fault(cut_after=MB), Fault(ignore_range=True)]
    localspec.download("qwen2-7b")
    assert len(hub.gets(TARGET)) == 2


def test_ranges_unknown_and_cut(hub: StandinHub, tmp_path):
    """The server ignores ranges, and breaks off at changing places
    An error that says so after six attempts that bring nothing new; the longest part is kept
    """
    cuts = [3 * MB, *[MB, 2 * MB] * 20]
    hub.faults[TARGET] = [Fault(cut_after=cut, ignore_range=True) for cut in cuts]
    with pytest.raises(DownloadError, match="stopped at") as caught:
        localspec.download("qwen2-7b")
    assert "from its first byte" in caught.value.hint
    assert len(hub.gets(TARGET)) == 7
    assert size_of(part_file(tmp_path)) == 3 * MB
    hub.faults[TARGET] = []
    localspec.download("qwen2-7b")


def test_wrong_bytes(hub: StandinHub, tmp_path):
    """Wrong bytes of the right length
    An error with both checksums; nothing is kept, the next call downloads it again
    """
    content = hub.files[REPO, TARGET].content
    hub.faults[TARGET] = [Fault(content=content[:-1] + b"!")]
    with pytest.raises(DownloadError, match="wrong content: sum"):
        localspec.download("qwen2-7b")
    assert size_of(part_file(tmp_path)) == 0
    localspec.download("qwen2-7b")


def test_wrong_bytes_from_before(hub: StandinHub, tmp_path):
    """The received part is damaged, as by a power cut
    It is noticed at the end, and the file is downloaded once more from the start
    """
    part = part_file(tmp_path)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"\0" * MB)
    localspec.download("qwen2-7b")
    assert [seen.range for seen in hub.gets(TARGET)] == [f"bytes={MB}-", None]


def test_part_longer_than_the_file(hub: StandinHub, tmp_path):
    """The received part is longer than the file
    It is dropped
    """
    part = part_file(tmp_path)
    part.parent.mkdir(parents=True)
    part.write_bytes(hub.files[REPO, TARGET].content + b"?")
    localspec.download("qwen2-7b")


@pytest.mark.parametrize("delta", [-7, 7])
def test_wrong_length(hub: StandinHub, delta):
    """The server announces a wrong length
    An error with both numbers before anything is written
    """
    size = len(hub.files[REPO, TARGET].content)
    hub.faults[TARGET] = [Fault(claim=size + delta)]
    with pytest.raises(DownloadError, match=f"{size + delta} instead of {size}"):
        localspec.download("qwen2-7b")


def test_short_body(hub: StandinHub):
    """The body has no announced length and ends too early
    The rest is requested
    """
    hub.faults[TARGET] = [Fault(cut_after=MB, no_length=True)]
    localspec.download("qwen2-7b")
    assert hub.gets(TARGET)[1].range == f"bytes={MB}-"


def test_another_file_behind_the_name(hub: StandinHub):
    """The hub now has a different file from the pinned one
    An error that says so; not one byte is downloaded
    """
    hub.files.pop((REPO, TARGET))
    hub.add(REPO, TARGET, b"GGUF" * MB)
    with pytest.raises(DownloadError, match=r"another .* than pinned"):
        localspec.download("qwen2-7b")
    assert hub.gets(TARGET) == []


def test_another_file_between_head_and_get(hub: StandinHub):
    """A file that is not pinned changes between its metadata and its content
    Its checksum is wrong, so it is refused; the next call gets the new one
    """
    old = hub.add("o/m", "a.gguf", b"GGUF" * MB)
    hub.faults["a.gguf"] = [Fault(content=old.content[:-1] + b"!")]
    with pytest.raises(DownloadError, match="wrong content"):
        localspec.download("hf:o/m/a.gguf")
    localspec.download("hf:o/m/a.gguf")


@pytest.mark.parametrize("on_head", [True, False], ids=["asking", "fetching"])
def test_too_many_requests(hub: StandinHub, on_head):
    """429 with Retry-After
    It waits as long as the server asks
    """
    hub.faults[TARGET] = [Fault(on_head=on_head, status=429, headers={"Retry-After": "1"})]
    begin = time.monotonic()
    localspec.download("qwen2-7b")
    assert time.monotonic() - begin >= 1


def test_too_many_requests_for_long(hub: StandinHub):
    """429 with a Retry-After of an hour
    An error that says how long, instead of a silent hour
    """
    hub.faults[TARGET] = [Fault(status=429, headers={"Retry-After": "3600"})]
    with pytest.raises(DownloadError, match="3600 s"):
        localspec.download("qwen2-7b")


def test_clock_skew(hub: StandinHub):
    """429 with a date in Retry-After, from a clock that is years off
    The wait is the difference to the server's own date
    """
    headers = {"Retry-After": "Wed, 21 Oct 2015 07:28:01 GMT"}
    headers["Date"] = "Wed, 21 Oct 2015 07:28:00 GMT"
    hub.faults[TARGET] = [Fault(status=429, headers=headers)]
    localspec.download("qwen2-7b")


@pytest.mark.parametrize("status", [500, 502, 503])
def test_server_error(hub: StandinHub, status):
    """The server fails for a moment
    It retries
    """
    hub.faults[TARGET] = [Fault(status=status)] * 2
    localspec.download("qwen2-7b")


def test_signature_expired(hub: StandinHub):
    """The signed address has expired when it is requested
    A new one is requested from the hub
    """
    hub.faults[TARGET] = [Fault(cut_after=MB), Fault(status=403)]
    localspec.download("qwen2-7b")


@pytest.mark.parametrize(
    ("status", "code", "words", "hint"),
    [
        (401, "GatedRepo", "is gated", "hf auth login"),
        (403, "GatedRepo", "is gated", "hf auth login"),
        (401, "RepoNotFound", "does not exist, or is private", "HF_TOKEN"),
        (401, None, "does not exist, or is private", "HF_TOKEN"),
        (403, None, "does not exist, or is private", "HF_TOKEN"),
        (404, "RepoNotFound", "does not exist, or is private", "HF_TOKEN"),
        (404, "EntryNotFound", "has no file", "/tree/main"),
        (404, "RevisionNotFound", "has no revision", "preset"),
    ],
)
def test_refused(hub: StandinHub, status, code, words, hint):
    """401, 403 and 404 in the hub's variants
    An error that says which, and what to do: accept terms, log in, check the name
    """
    headers = {"X-Error-Code": code} if code else {}
    hub.faults[TARGET] = [Fault(on_head=True, status=status, headers=headers)]
    with pytest.raises(DownloadError, match=words) as caught:
        localspec.download("qwen2-7b")
    assert hint in caught.value.hint
    assert REPO in str(caught.value)


def test_a_mirror_without_the_hubs_headers(hub: StandinHub):
    """An endpoint that is not a hub, or a mirror that drops its headers
    An error that names the endpoint
    """
    hub.faults[TARGET] = [Fault(on_head=True, status=200)]
    with pytest.raises(DownloadError, match="an invalid commit, hash or size") as caught:
        localspec.download("qwen2-7b")
    assert "HF_ENDPOINT" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Repo-Commit", "main"),
        ("X-Linked-Size", "-5"),
        ("X-Linked-Etag", '"' + "g" * 64 + '"'),
        ("X-Linked-Etag", '"' + "A" * 64 + '"'),
        ("X-Linked-Etag", '"x.localspec-part"'),
    ],
)
def test_a_mirror_with_wrong_headers(hub: StandinHub, name, value):
    """An endpoint sends an invalid commit, hash or size
    An error that names the endpoint; nothing is downloaded
    """
    file = "unpinned.gguf"
    etag = hub.add(REPO, file, b"x" * 5000).etag
    headers = {
        "X-Repo-Commit": standin_hub.COMMIT,
        "X-Linked-Etag": f'"{etag}"',
        "X-Linked-Size": "5000",
    }
    hub.faults[file] = [Fault(on_head=True, status=200, headers={**headers, name: value})]
    with pytest.raises(DownloadError, match="an invalid") as caught:
        localspec.download(f"hf:{REPO}/{file}")
    assert hub.endpoint in str(caught.value)
    assert not hub.gets(file)


@pytest.mark.parametrize(
    "facts",
    [
        {"rfilename": 5},
        {"rfilename": None},
        {"size": "x"},
        {"size": [1]},
        {"size": {}},
        {"size": 1.5},
        {"size": True},
        {"lfs": {"sha256": 5, "size": 5, "pointerSize": 1}},
        {"lfs": {"sha256": ["a"], "size": 5, "pointerSize": 1}},
    ],
)
def test_a_list_with_wrong_facts(hub: StandinHub, facts):
    """The hub's list of files has invalid names, sizes or hashes
    An error that names the repository
    """
    listed = {"rfilename": "a-Q4_0.gguf", "size": 5, **facts}
    answer = {"id": REPO, "sha": standin_hub.COMMIT, "siblings": [listed], "tags": []}
    hub.faults[REPO] = [Fault(at_hub=True, content=json.dumps(answer).encode())]
    with pytest.raises(DownloadError, match=f"a file of {REPO}"):
        localspec.download(f"{REPO}:Q4_0")


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_ENDPOINT", "http://[::1"),
        ("HF_ENDPOINT", "http://localhost:x"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "-1"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "abc"),
        ("HF_HUB_ETAG_TIMEOUT", ""),
    ],
)
def test_wrong_settings(hub: StandinHub, name, value):
    """An environment variable has an invalid value
    An error that names the variable and the value
    """
    hub.environment[name] = value
    process = command(hub, "download", f"hf:{REPO}/{TARGET}")
    output, errors = process.communicate()
    assert (process.returncode, output) == (2, "")
    assert f"{name} is {value!r}" in errors
    assert "Traceback" not in errors


@pytest.mark.process
def test_offline(hub: StandinHub, tmp_path):
    """HF_HUB_OFFLINE is set
    An error that says so, without one request; local files are used
    """
    hub.environment["HF_HUB_OFFLINE"] = "1"
    process = command(hub, "download", "qwen2-7b")
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "offline mode is on" in errors
    assert hub.seen == []
    localspec.download("qwen2-7b")
    again = command(hub, "download", "qwen2-7b")
    assert str(tmp_path / "cache") in again.communicate()[0]
    assert again.returncode == 0


# --- the disk


needs_mounts = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        check=False,
    ).returncode
    != 0,
    reason="needs user namespaces to mount a small disk",
)


def in_mounted_cache(
    hub: StandinHub, tmp_path: Path, options: str, then: str, download: str = "qwen2-7b"
) -> str:
    """stderr of a failing download whose cache is a file system of its own."""
    cache = tmp_path / "cache"
    cache.mkdir()
    script = (
        f'mount -t tmpfs -o {options} tmpfs "{cache}" && {then} '
        f'"{LOCALSPEC}" download {download}; '
        f'code=$?; find "{cache}" -name "{TARGET}" >&2; exit $code'
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        env={**os.environ, **hub.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert f"{TARGET}\n" not in done.stderr
    return done.stderr


@pytest.mark.process
@needs_mounts
def test_disk_too_small(hub: StandinHub, tmp_path):
    """The disk has less room than the files need
    An error with both numbers before the first byte
    """
    errors = in_mounted_cache(hub, tmp_path, "size=3m", "")
    assert "bytes are to be downloaded" in errors
    assert "HF_HUB_CACHE" in errors
    assert hub.gets(TARGET) == []


@pytest.mark.process
@needs_mounts
@pytest.mark.parametrize("is_right", [True, False])
def test_disk_too_small_to_reuse(hub: StandinHub, tmp_path, is_right):
    """The disk has too little room, and another program has one of the files on another disk
    An error with both numbers, before it is copied
    """
    content = hub.files[REPO, TARGET].content
    other = tmp_path / ".lmstudio/models" / REPO / TARGET
    other.parent.mkdir(parents=True)
    other.write_bytes(content if is_right else bytes(len(content)))
    errors = in_mounted_cache(hub, tmp_path, "size=3m", "", "qwen2-7b --reuse")
    assert "bytes are to be downloaded" in errors
    assert hub.gets(TARGET) == hub.gets(DRAFT) == []
    other.write_bytes(content)


@pytest.mark.process
@needs_mounts
def test_disk_full(hub: StandinHub, tmp_path):
    """The disk fills up during the download
    An error that names the disk; the received bytes are kept
    """
    # Somebody else takes the room once the check has passed.
    hub.pace_s = 0.02
    begun = f'find "{tmp_path}/cache" -name "*part" -size +1000k | grep -q .'
    hog = f'(until {begun}; do sleep 0.1; done; head -c 9m /dev/zero > "{tmp_path}/cache/h") &'
    errors = in_mounted_cache(hub, tmp_path, "size=14m", hog)
    assert "is full" in errors


@pytest.mark.process
@needs_mounts
def test_read_only(hub: StandinHub, tmp_path):
    """The cache is read-only
    An error that names it and says how to choose another place
    """
    errors = in_mounted_cache(hub, tmp_path, "ro", "")
    assert "cannot be written" in errors
    assert "--local-dir" in errors


@pytest.mark.parametrize("what", ["part", "content"])
def test_symlink_in_the_way(hub: StandinHub, tmp_path, what):
    """A symbolic link is in the place of the file
    An error that names it; the file that it points to is untouched
    """
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    part = part_file(tmp_path)
    part.parent.mkdir(parents=True)
    way = part if what == "part" else part.with_suffix("")
    way.symlink_to(precious if what == "part" else tmp_path / "nothing")
    with pytest.raises(DownloadError, match="symbolic link") as caught:
        localspec.download("qwen2-7b")
    assert way.name in str(caught.value)
    assert precious.read_bytes() == b"mine"
    assert not (tmp_path / "nothing").exists()


def test_file_in_the_way(hub: StandinHub, tmp_path):
    """A file of another length has the final name
    An error that names it; it is not overwritten
    """
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / TARGET).write_bytes(hub.files[REPO, TARGET].content[:100])
    with pytest.raises(DownloadError, match="in the way: it has 100 bytes"):
        localspec.download("qwen2-7b", local_dir=folder)
    assert (folder / TARGET).stat().st_size == 100
    (folder / TARGET).unlink()


def test_name_left_without_content(hub: StandinHub):
    """The content was deleted, but its name is still in the snapshot
    It is downloaded again
    """
    (path, _) = localspec.download("qwen2-7b")
    path.resolve().unlink()
    localspec.download("qwen2-7b")
    assert len(hub.gets(TARGET)) == 2


# --- the person


@pytest.mark.parametrize(
    "name",
    ["../../x", "/etc/passwd", "qwen2-7b/../../x", "C:\\x", "hf:../../x.gguf", "hf:o/m/../../x",
     "hf:o/m/../../../x.gguf", "hf:o/m//x.gguf", "o/m/x:Q4", "..:Q4_K_M", "../..:Q4_K_M", ""],
)  # fmt: skip
def test_names_that_lead_elsewhere(hub: StandinHub, tmp_path, name):
    """A preset or file name such as ../../x
    An error; nothing is requested from the hub or written
    """
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((PresetError, OptionError)):
        localspec.download(name)
    assert hub.seen == []
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["../../x.gguf", "/etc/x.gguf", "other.gguf"])
def test_a_name_in_a_header(hub: StandinHub, tmp_path, name):
    """The server names the file otherwise, in Content-Disposition
    It is not read: the file has the name that was asked for
    """
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    hub.faults[TARGET] = [Fault(headers=headers)]
    paths = localspec.download("qwen2-7b")
    assert [path.name for path in paths] == [TARGET, DRAFT]
    assert not list(tmp_path.rglob(Path(name).name))


def test_presets_that_lead_elsewhere(hub: StandinHub, tmp_path):
    """A presets file with file names such as ../../x.gguf
    An error with file, line and key
    """
    presets = tmp_path / "config/localspec/models.toml"
    presets.write_text(
        presets.read_text().replace(f'file = "{DRAFT}"', 'file = "../../x.gguf"')
    )
    with pytest.raises(LocalspecError, match=r"models\.toml, line \d+: \[qwen2-7b\.draft\]"):
        localspec.download("qwen2-7b")
    assert hub.seen == []


def test_a_mirror_with_marks_of_its_own(hub: StandinHub, tmp_path):
    """An endpoint sends an ETag of its own for a file that is pinned
    The pinned file is downloaded and checked against its pin
    """
    headers = {
        "X-Repo-Commit": standin_hub.COMMIT,
        "X-Linked-Etag": '"5f3a-61"',
        "X-Linked-Size": str(len(hub.files[REPO, TARGET].content)),
    }
    hub.faults[TARGET] = [Fault(on_head=True, status=200, headers=headers)]
    paths = localspec.download("qwen2-7b")
    sha256 = find_preset("qwen2-7b").target.files[0].sha256
    assert paths[0].resolve().name == sha256
