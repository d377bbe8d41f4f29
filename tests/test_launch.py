"""`localspec claude`, `codex` and `opencode`, with programs that really ask the server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

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
# Of a user whose agent asks other servers.
ELSEWHERE = {"ANTHROPIC_API_KEY": "a-secret-key", "CLAUDE_CODE_USE_BEDROCK": "1"}


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
    words = (name, "demo", "--ctx", "512", "--port", str(port), "--", "-p", "--", "Say hello.")
    code, said = ended(started(tmp_path, *words))
    assert (tmp_path / "found").exists(), said
    found = json.loads((tmp_path / "found").read_text())
    assert code == 7
    assert found["answer"]["model"] == "demo"
    usage = found["answer"]["usage"]
    assert usage.get("output_tokens", usage.get("completion_tokens")) == 3
    assert found["context"] == 512
    assert found["rest"] == ["-p", "--", "Say hello."]
    assert not listens(port)
    if name == "claude":  # whose key and clouds are other servers
        assert not found["variables"].keys() & ELSEWHERE.keys()


def test_a_server_that_runs_is_used_and_stays(tmp_path, demo_target):
    installed(tmp_path, "claude")
    with running_server(presets=["demo", str(demo_target)], context_length=256) as server:
        port = server.url.rpartition(":")[2]
        assert ended(started(tmp_path, "claude", "--port", port)) == (0, "")
        assert json.loads((tmp_path / "found").read_text())["answer"]["model"] == "demo"
        words = ("claude", str(demo_target), "--port", port)
        assert ended(started(tmp_path, *words)) == (0, "")
        found = json.loads((tmp_path / "found").read_text())
        assert (found["answer"]["model"], found["context"]) == (demo_target.stem, 256)
        code, said = ended(started(tmp_path, "claude", "other.gguf", "--port", port))
        assert code == 2
        assert f"has demo, {demo_target.stem}, not other.gguf" in said
        code, said = ended(started(tmp_path, "claude", "--ctx", "512", "--port", port))
        assert "context of 256, not 512" in said
        assert server.client.get("/health").status_code == 200


def test_without_a_program_or_a_server_nothing_is_started(tmp_path):
    """The program is missing, another server is at the port, or none starts."""
    code, said = ended(started(tmp_path, "codex"))
    assert (code, said.splitlines()) == (
        2,
        ["Error: Codex is not installed", "Hint: Install it: npm install -g @openai/codex"],
    )
    installed(tmp_path, "claude")
    with running_server(keys=["a-key"]) as server:
        port = server.url.rpartition(":")[2]
        code, said = ended(started(tmp_path, "claude", "--port", port))
    assert code == 2
    assert "is no localspec server, or needs a key" in said
    words = ("claude", "missing.gguf", "--port", str(free_port()))
    code, said = ended(started(tmp_path, *words))
    assert code in (1, 2)
    assert "missing.gguf" in said
    assert not (tmp_path / "found").exists()


def test_told_to_end_it_ends_the_program_and_the_server(tmp_path):
    installed(tmp_path, "claude", "import time; time.sleep(600)")
    port = free_port()
    process = started(tmp_path, "claude", "demo", "--ctx", "256", "--port", str(port))
    wait_until(lambda: (tmp_path / "found").exists() or process.poll() is not None, 120)
    assert listens(port)
    process.send_signal(signal.SIGTERM)
    code, _ = ended(process)
    assert code == 130
    assert not listens(port)
