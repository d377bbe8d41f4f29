"""`localspec claude`, `codex` and `opencode`, with programs that really ask the server."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from agent_model import write_agent_model, write_agent_preset
from inside import measured_speed
from localspec.cli.agents import AGENTS
from localspec.cli.cloud_keys import CLOUD_KEYS
from localspec.cli.launch_log import log_of_running, new_log
from localspec.server.own_server import PROOF_PATH, ServerKey, announced, new_nonce, read_key
from server_runner import free_port, running_server
from waiting import wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="programs and signals of Unix"),
]

# Asks for an answer with what it was given, and writes down what came.
ASKS = """\
#!{python}
import json, os, sys, urllib.request
try:
    import tomllib
except ImportError:
    import tomli as tomllib
words, message = sys.argv[1:], [{{"role": "user", "content": "Hi"}}]
{finds}
request = urllib.request.Request(address, json.dumps({{"model": model, **fields}}).encode())
request.add_header("Authorization", "Bearer " + key)
answer = json.load(urllib.request.urlopen(request, timeout=120))
found = {{"answer": answer, "context": context, "rest": words, "variables": dict(os.environ)}}
open("found", "w").write(json.dumps(found))
{end}
"""
# By program: where it finds the server, its key, the model and its context.
PROGRAMS = {
    "claude": """\
_, model, *words = words
address = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
key = os.environ["ANTHROPIC_AUTH_TOKEN"]
context = int(os.environ["CLAUDE_CODE_MAX_CONTEXT_TOKENS"])
fields = {"messages": message, "max_tokens": 3}
""",
    "codex": """\
lines = []
while words[:1] == ["-c"]:
    _, line, *words = words
    lines.append(line)
settings = tomllib.loads("\\n".join(lines))
provider = settings["model_providers"][settings["model_provider"]]
assert provider["wire_api"] == "responses"
model, context = settings["model"], settings["model_context_window"]
address, key = provider["base_url"] + "/responses", provider["experimental_bearer_token"]
fields = {"input": "Hi", "max_output_tokens": 3}
""",
    "opencode": """\
settings = json.loads(os.environ["OPENCODE_CONFIG_CONTENT"])
provider, _, model = settings["model"].partition("/")
settings = settings["provider"][provider]
address = settings["options"]["baseURL"] + "/chat/completions"
key, context = settings["options"]["apiKey"], settings["models"][model]["limit"]["context"]
fields = {"messages": message, "max_tokens": 3}
""",
}
# Kills the server; its parent is the agent's, too.
KILLS_SERVER = """
import contextlib, psutil, socket
(server,) = {*psutil.Process(os.getppid()).children()} - {psutil.Process()}
server.kill()
port = int(os.environ["ANTHROPIC_BASE_URL"].rpartition(":")[2])
with contextlib.suppress(OSError):
    while True:
        socket.create_connection(("127.0.0.1", port)).close()
sys.exit(3)
"""
# Kills the process of the models while that reads a prompt.
KILLS_MODELS = """
import psutil
(server,) = {*psutil.Process(os.getppid()).children()} - {psutil.Process()}
fields = {"prompt": "a fox " * 10_000, "n_predict": 1, "stream": True, "return_progress": True}
address = os.environ["ANTHROPIC_BASE_URL"] + "/completion"
request = urllib.request.Request(address, json.dumps({"model": model, **fields}).encode())
with urllib.request.urlopen(request, timeout=120) as response:
    response.readline()
    for each in server.children():
        each.kill()
    response.read()
"""
SECRET = "a-secret-key"
# Of a user whose agent asks other servers.
ELSEWHERE = {**dict.fromkeys(CLOUD_KEYS, SECRET), "CLAUDE_CODE_USE_BEDROCK": "1"}


@pytest.fixture(scope="module")
def config(tmp_path_factory, demo_target):
    """A configuration directory with the preset "agent", whose context suffices for agents."""
    folder = tmp_path_factory.mktemp("config")
    write_agent_preset(folder, demo_target, {})
    return folder


@pytest.fixture(autouse=True)
def _with_preset(config, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))


def installed(folder: Path, name: str, end: str = "") -> None:
    """A program of that name. end: what it does at last."""
    text = ASKS.format(python=sys.executable, finds=PROGRAMS[name], end=end)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "localspec", *words],
        cwd=folder,
        env={**os.environ, **ELSEWHERE, "PATH": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and what it said on stderr."""
    try:
        _, said = process.communicate(timeout=180)
    finally:
        process.kill()
    return process.returncode, said


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_server_is_started_for_the_program_and_ended_behind_it(name, tmp_path):
    installed(tmp_path, name, "sys.exit(7)")
    port = free_port()
    words = (name, "agent", "--ctx", "32768", "--port", str(port), "--")
    words += ("-p", "--", "Say hello.")
    code, said = ended(started(tmp_path, *words))
    assert (tmp_path / "found").exists(), said
    found = json.loads((tmp_path / "found").read_text())
    assert code == 7
    assert found["answer"]["model"] == "agent"
    usage = found["answer"]["usage"]
    assert usage.get("output_tokens", usage.get("completion_tokens")) == 3
    assert found["context"] == 32_768
    assert found["rest"] == ["-p", "--", "Say hello."]
    assert not listens(port)
    assert SECRET not in found["variables"].values()
    if name == "claude":  # it would ask that cloud
        assert "CLAUDE_CODE_USE_BEDROCK" not in found["variables"]


def test_a_server_that_runs_is_used_and_stays(tmp_path, config):
    installed(tmp_path, "claude")
    other = shutil.copyfile(config / "localspec" / "agent.gguf", tmp_path / "other.gguf")
    with running_server(presets=["agent", str(other)], context_length=32_768) as server:
        port = server.url.rpartition(":")[2]
        code, said = ended(started(tmp_path, "claude", "--port", port))
        assert code == 0, said
        assert json.loads((tmp_path / "found").read_text())["answer"]["model"] == "agent"
        code, said = ended(started(tmp_path, "claude", str(other), "--port", port))
        assert code == 0, said
        found = json.loads((tmp_path / "found").read_text())
        assert (found["answer"]["model"], found["context"]) == ("other", 32_768)
        assert f"The server at port {port} logs the progress where it was started." in said
        code, said = ended(started(tmp_path, "claude", "absent.gguf", "--port", port))
        assert code == 2
        assert "serves agent, other, not absent.gguf" in said
        code, said = ended(started(tmp_path, "claude", "--ctx", "65536", "--port", port))
        assert "context of 32768, not 65536" in said
        assert server.client.get("/health").status_code == 200


def test_what_the_server_knows_of_its_speed_is_said_and_nothing_measured(tmp_path):
    installed(tmp_path, "claude")
    with running_server(presets=["agent"], context_length=32_768) as server:
        assert server.client.get("/props").json()["prompt_per_second"] is None
        server.models.all[0].token_s = 0.5
        assert server.client.get("/props").json()["prompt_per_second"] == 2.0
        port = server.url.rpartition(":")[2]
        code, said = ended(started(tmp_path, "claude", "--port", port))
        assert code == 0, said
        assert "/completion" not in server.client.get("/metrics").text
    assert said.startswith(
        "agent reads about 2 tokens/s here: the first prompt of Claude Code, about 21,000 "
        "tokens, takes 2.9 hours unless it is cached."
    )


def test_that_the_speed_cannot_be_measured_is_said(tmp_path, config):
    installed(tmp_path, "opencode", "sys.exit(0)")
    other = shutil.copyfile(config / "localspec" / "agent.gguf", tmp_path / "other.gguf")
    with running_server(presets=[str(other)], context_length=32_768) as server:
        other.unlink()  # before the first request loads it
        port = server.url.rpartition(":")[2]
        _, said = ended(started(tmp_path, "opencode", "--port", port))
    assert said.startswith(
        "It is not known yet how fast other reads the first prompt of opencode, about 7,200 "
        "tokens."
    )


def test_the_speed_is_measured_and_the_log_named_before_the_program_starts(
    tmp_path, own_folders
):
    installed(tmp_path, "codex", 'print("It runs.", file=sys.stderr)')
    port = free_port()
    words = ("codex", "agent", "--ctx", "32768", "--port", str(port))
    code, said = ended(started(tmp_path, *words))
    assert code == 0, said
    (path,) = own_folders.rglob("*.log")
    first, second, third = said.splitlines()
    assert re.fullmatch(
        r"agent reads about [\d,.]+ tokens/s here: the first prompt of Codex, about 8,600 "
        r"tokens, takes .+ unless it is cached\. .+",
        first,
    )
    assert second == f"The server logs the progress: {path}"
    assert third == "It runs."
    log = path.read_text()
    assert f"Listening on http://127.0.0.1:{port} with agent (context 32768)" in log
    assert "POST /completion 200" in log
    assert "POST /v1/responses 200" in log
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_log_of_a_server_that_was_started_for_another_program_is_named(
    tmp_path, own_folders
):
    """Also where it was left behind by a kill."""
    installed(tmp_path, "claude", "import time; time.sleep(600)")
    installed(tmp_path, "codex")
    port = free_port()
    words = ("claude", "agent", "--ctx", "32768", "--port", str(port))
    first = started(tmp_path, *words)
    try:
        wait_until(lambda: (tmp_path / "found").exists() or first.poll() is not None, 120)
        code, said = ended(started(tmp_path, "codex", "--port", str(port)))
    finally:
        first.send_signal(signal.SIGTERM)
        ended(first)
    assert code == 0, said
    (path,) = own_folders.rglob("*.log")
    assert f"The server logs the progress: {path}\n" in said


@pytest.mark.parametrize(
    ("kills", "code", "said"),
    [
        (KILLS_SERVER, 3, "The server ended while Claude Code ran. Its log: {}"),
        (
            KILLS_MODELS,
            0,
            "The server's process with the model crashed while Claude Code ran. Its log: {}",
        ),
        ("", 0, "The server logs the progress: {}"),
    ],
)
def test_that_the_server_failed_is_said_after_the_program(
    tmp_path, own_folders, kills, code, said
):
    installed(tmp_path, "claude", kills)
    words = ("claude", "agent", "--ctx", "32768", "--port", str(free_port()))
    ended_with, told = ended(started(tmp_path, *words))
    (path,) = own_folders.rglob("*.log")
    assert ended_with == code, told
    assert told.splitlines()[-1] == said.format(path)


def test_a_context_that_is_too_small_is_refused_before_anything_starts(tmp_path, own_folders):
    installed(tmp_path, "claude")
    port = str(free_port())
    for words, reason, remedy in (
        (
            ("agent", "--ctx", "16384"),
            "a context of 16,384 tokens: it needs 25,000",
            "Give a larger one: --ctx 32768.",
        ),
        (
            ("demo",),
            "a context of 2,048 tokens: it needs 25,000",
            "Choose another model: this one was trained for 2,048 tokens.",
        ),
    ):
        code, said = ended(started(tmp_path, "claude", *words, "--port", port))
        assert (code, said.splitlines()) == (
            2,
            [f"Error: Claude Code does not work with {reason}", f"Hint: {remedy}"],
        )
    assert list(own_folders.rglob("*.log")) == []
    with running_server(presets=["agent"], context_length=16_384) as server:
        port = server.url.rpartition(":")[2]
        code, said = ended(started(tmp_path, "claude", "--port", port))
        hint = f"Hint: Stop the server at port {port}. Give a larger one: --ctx 32768."
        assert (code, said.splitlines()[-1]) == (2, hint)
        assert not (tmp_path / "found").exists()


def test_a_server_gets_a_context_that_suffices(tmp_path, demo_target):
    """Where nobody asks for another: that of serve would be 8192."""
    installed(tmp_path, "codex")
    target = write_agent_model(tmp_path / "own.gguf", demo_target, "")
    words = ("codex", str(target), "--port", str(free_port()))
    code, said = ended(started(tmp_path, *words))
    assert code == 0, said
    assert json.loads((tmp_path / "found").read_text())["context"] == 32_768


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_the_documentation_has_the_context_of_each_agent(agent):
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text("utf-8")
    numbers = f"{agent.first_prompt:,} tokens \\| {agent.least_context:,}".replace(",", " ")
    assert re.search(rf"\| {agent.title} [\d.]+ \| {numbers} \|", page)


def test_old_logs_are_kept_within_bounds(own_folders):
    """The one before of each port, and not of too many ports."""
    path, log = new_log(8617)
    with log:
        log.write(b"first")
    path, log = new_log(8617)
    with log:
        log.write(b"second")
    old = path.with_suffix(".old.log")
    assert (old.read_bytes(), path.read_bytes()) == (b"first", b"second")
    for number, each in enumerate((old, path)):
        os.utime(each, (number, number))
    for port in range(1, 20):
        new_log(port)[1].close()
    assert len(list(path.parent.iterdir())) == 8
    assert not old.exists()
    assert not path.exists()


def test_a_log_that_is_older_than_the_server_is_not_its_log(own_folders):
    path, log = new_log(8617)
    log.close()
    assert log_of_running(8617) is None
    os.utime(path, (1, 1))
    with announced(8617):
        assert log_of_running(8617) is None
        with path.open("ab") as more:
            more.write(b"Listening")
        assert log_of_running(8617) == path


def test_without_a_program_or_a_server_nothing_is_started(tmp_path):
    """The program is missing, or no server starts."""
    code, said = ended(started(tmp_path, "codex"))
    assert (code, said.splitlines()) == (
        2,
        ["Error: Codex is not installed", "Hint: Install it: npm install -g @openai/codex"],
    )
    installed(tmp_path, "claude")
    words = ("claude", "missing.gguf", "--port", str(free_port()))
    code, said = ended(started(tmp_path, *words))
    assert code in (1, 2)
    assert "missing.gguf" in said
    assert not (tmp_path / "found").exists()


def test_a_server_that_needs_a_key_is_not_used(tmp_path):
    installed(tmp_path, "claude")
    with running_server(keys=["a-key"]) as server:
        port = server.url.rpartition(":")[2]
        words = ("claude", "agent", "--ctx", "32768", "--port", port)
        code, said = ended(started(tmp_path, *words))
    assert code == 0, said
    assert f":{port} is not a localspec server of yours, or needs a key" in said
    found = json.loads((tmp_path / "found").read_text())
    assert found["variables"]["ANTHROPIC_BASE_URL"] != server.url


class Stranger(http.server.BaseHTTPRequestHandler):
    """Says that it is a localspec server, and writes down the paths that it is asked for."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        model = {"id": "demo", "owned_by": "localspec", "max_model_len": 256}
        content = json.dumps({"data": [model], "proof": "0" * 64}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_arguments: object) -> None:
        """No lines on stderr."""


@contextlib.contextmanager
def stranger() -> Iterator[int]:
    """The port of a `Stranger`."""
    Stranger.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("is_after_a_kill", [False, True])
def test_no_stranger_is_taken_for_this_user_s_server(tmp_path, is_after_a_kill):
    """Also where a server that was killed has left its key. The key itself is never sent."""
    installed(tmp_path, "claude")
    with contextlib.ExitStack() as until_end:
        port = until_end.enter_context(stranger())
        secret = None
        if is_after_a_kill:
            secret = until_end.enter_context(announced(port)).secret
        words = ("claude", "agent", "--ctx", "32768", "--port", str(port))
        code, said = ended(started(tmp_path, *words))
    assert code == 0, said
    assert f":{port} is not a localspec server of yours, or needs a key" in said
    found = json.loads((tmp_path / "found").read_text())
    assert found["answer"]["usage"]["output_tokens"] == 3
    assert found["variables"]["ANTHROPIC_BASE_URL"] != f"http://127.0.0.1:{port}"
    if is_after_a_kill:
        assert len(Stranger.asked) == 1
        assert Stranger.asked[0].startswith(f"{PROOF_PATH}?nonce=")
        assert secret not in Stranger.asked[0]
    else:
        assert not Stranger.asked


def test_a_speed_is_not_known_if_the_connection_is_closed():
    """As by a server that is stopping."""

    class Stopping(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            content: dict[str, object] = {"prompt_per_second": None}
            if self.path.startswith(PROOF_PATH):
                nonce = self.path.rpartition("=")[2]
                content = {"proof": key.proof(nonce)}
            else:
                self.close_connection = True
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            if self.close_connection:
                self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Stopping) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with announced(server.server_port) as key:
            assert measured_speed(server.server_port) is None
        server.shutdown()


def test_a_server_s_key_is_this_user_s_alone_and_leaves_with_it(own_folders):
    umask = os.umask(0)
    try:
        with announced(8617) as key:
            files = [path for path in own_folders.rglob("*") if path.is_file()]
            folders = [path for path in own_folders.rglob("*") if path.is_dir()]
            assert read_key(8617) == key
            assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
            assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    finally:
        os.umask(umask)
    assert read_key(8617) is None


def test_a_key_is_of_one_port(own_folders):
    """A stranger that passes a nonce on to the real server at another port has no proof."""
    with announced(8617) as key:
        elsewhere = ServerKey(8618, key.secret)
        nonce = new_nonce()
        assert key.proof(nonce) != elsewhere.proof(nonce)
        assert key.proof(nonce) != key.proof(new_nonce())
        [path] = list(own_folders.rglob("*.json"))
        path.rename(path.with_name("8618.json"))
        assert read_key(8618) is None


def test_only_a_server_with_the_key_proves_it():
    with running_server() as server:
        port = int(server.url.rpartition(":")[2])
        key = read_key(port)
        nonce = new_nonce()
        answer = server.client.get(PROOF_PATH, params={"nonce": nonce})
        assert answer.json() == {"proof": key.proof(nonce)}
        for other in ("", "x", nonce + "\n", nonce[1:]):
            assert server.client.get(PROOF_PATH, params={"nonce": other}).status_code == 400
    assert read_key(port) is None
    with running_server(keys=["a-key"]) as server:
        headers = {"authorization": "Bearer a-key"}
        answer = server.client.get(PROOF_PATH, params={"nonce": nonce}, headers=headers)
        assert answer.status_code == 400


def test_a_server_that_can_keep_no_key_is_ended_with_the_reason(tmp_path, own_folders):
    installed(tmp_path, "claude")
    path, log = new_log(free_port())
    log.close()
    servers = path.parent.with_name("servers")
    servers.write_bytes(b"")  # no folder
    port = free_port()
    words = ("claude", "agent", "--ctx", "32768", "--port", str(port))
    code, said = ended(started(tmp_path, *words))
    assert code == 1
    assert "the server did not start" in said
    assert "will not use this server" in said
    assert str(servers) in said
    assert not (tmp_path / "found").exists()
    assert not listens(port)


def test_a_server_that_can_have_no_log_is_not_started(tmp_path, monkeypatch):
    installed(tmp_path, "claude")
    (tmp_path / "no folder").write_bytes(b"")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "no folder"))
    words = ("claude", "agent", "--ctx", "32768", "--port", str(free_port()))
    code, said = ended(started(tmp_path, *words))
    assert code == 1
    assert "the server's log cannot be written" in said
    assert "no folder" in said
    assert not (tmp_path / "found").exists()


def test_told_to_end_it_ends_the_program_and_the_server(tmp_path):
    installed(tmp_path, "claude", "import time; time.sleep(600)")
    port = free_port()
    process = started(tmp_path, "claude", "agent", "--ctx", "32768", "--port", str(port))
    wait_until(lambda: (tmp_path / "found").exists() or process.poll() is not None, 120)
    assert listens(port)
    process.send_signal(signal.SIGTERM)
    code, _ = ended(process)
    assert code == 130
    assert not listens(port)
