"""Coding agents as people start them, with the settings that `localspec serve` prints.

They are looked for on PATH and in the folder LOCALSPEC_AGENTS, into which
`npm install --prefix` put them. Each has a home of its own, and no other server to speak to.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_model import ANSWER, write_agent_preset

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="homes and signals of Unix"),
]

BIN = Path(os.environ.get("LOCALSPEC_AGENTS", "/nonexistent")) / "node_modules" / ".bin"
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}"
# Models that call a tool of an agent's, from its name on.
CALLS = {
    "for-codex": 'exec_command", "arguments": {"cmd": "echo hello"}',
    "for-claude": 'Bash", "arguments": {"command": "echo hello"}',
    "for-opencode": 'bash", "arguments": {"command": "echo hello"}',
}
NOWHERE = "http://127.0.0.1:9"  # nothing listens there


@dataclass
class Agent:
    """A program with a home and a folder to work in. settings: told by the server, by whom."""

    settings: dict[str, str]
    home: Path
    folder: Path

    def run(self, *command: str, **variables: str) -> str:
        """What it prints."""
        if shutil.which(command[0], path=PATH) is None:
            pytest.skip(f"{command[0]} is not installed")
        environment = {
            "PATH": PATH,
            "HOME": str(self.home),
            "HTTP_PROXY": NOWHERE,
            "HTTPS_PROXY": NOWHERE,
            "NO_PROXY": "127.0.0.1",
            **variables,
        }
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextlib.contextmanager
def serving(folder, demo_target, *options):
    """What the server tells each program, by its name."""
    write_agent_preset(folder, demo_target, CALLS)
    names = ["agent", *CALLS]
    command = [sys.executable, "-m", "localspec", "serve", *names, "--port", "0", *options]
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "XDG_CONFIG_HOME": str(folder)},
            stderr=stderr,
        )
    try:
        give_up_s = time.monotonic() + 120
        while not (told := log.read_text()).endswith("in a browser.\n"):
            assert process.poll() is None, told
            assert time.monotonic() < give_up_s
            time.sleep(0.05)
        found = re.findall(r"^(\S[^\n]*):\n((?: +\S[^\n]*\n)+)", told, re.M)
        yield {title.partition(",")[0]: textwrap.dedent(text) for title, text in found}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@pytest.fixture(scope="module")
def settings(tmp_path_factory, demo_target):
    """Of a server that needs the key that they name."""
    folder = tmp_path_factory.mktemp("agents")
    keys = folder / "keys"
    keys.write_text("YOUR_KEY\n")
    with serving(folder, demo_target, "--api-key-file", str(keys)) as told:
        yield told


@pytest.fixture
def agent(settings, tmp_path):
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    return Agent(settings, home, folder)


def codex_turn(agent, *words, **variables):
    """The tokens that it counts for a turn."""
    command = ("codex", "exec", "--json", "--skip-git-repo-check")
    told = agent.run(*command, *words, **variables)
    events = [json.loads(line) for line in told.splitlines()]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (said,) = [item["text"] for item in items if item["type"] == "agent_message"]
    assert said == ANSWER
    assert events[-1]["type"] == "turn.completed"
    return events[-1]["usage"]


def test_codex(agent):
    config = agent.home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(agent.settings["Codex"])
    first = codex_turn(agent, "Say hello.")
    assert first["input_tokens"] > 3000
    second = codex_turn(agent, "resume", "--last", "And again.")
    assert second["cached_input_tokens"] >= first["input_tokens"] - 16


def test_codex_that_takes_it_for_lm_studio(agent, demo_target, tmp_path):
    """It asks for the models, and loads one by an empty input; it has no key."""
    words = ("--oss", "--local-provider", "lmstudio", "-m", "agent", "Say hello.")
    with serving(tmp_path / "keyless", demo_target) as settings:
        address = re.search(r"OPENAI_BASE_URL=(\S+)", settings["OpenAI's libraries"])[1]
        usage = codex_turn(agent, *words, CODEX_OSS_BASE_URL=address)
    assert usage["input_tokens"] > 3000


def test_claude_code(agent):
    exports, command = agent.settings["Claude Code"].splitlines()
    words = [*exports.removeprefix("export ").split(), *command.split()]
    number = words.index("claude")
    variables = dict(word.split("=", 1) for word in words[:number])

    def turn(*more):
        told = agent.run(*words[number:], "-p", "--output-format", "json", *more, **variables)
        found = json.loads(told)
        assert found["result"] == ANSWER
        assert found["stop_reason"] == "end_turn"
        assert found["modelUsage"]["agent"]["contextWindow"] == 131_072
        usage = found["usage"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage

    num_read, _ = turn("Say hello.")
    assert num_read > 3000
    _, second = turn("--continue", "And again.")
    assert second["cache_read_input_tokens"] >= num_read - 16


@pytest.mark.slow
def test_opencode(agent):
    (agent.folder / "opencode.json").write_text(agent.settings["opencode"])

    def turn(*words):
        told = agent.run("opencode", "run", "--format", "json", *words)
        events = [json.loads(line) for line in told.splitlines()]
        parts = [event["part"] for event in events]
        (said,) = [part["text"] for part in parts if part["type"] == "text"]
        assert said == ANSWER
        assert parts[-1]["reason"] == "stop"
        return parts[-1]["tokens"]

    first = turn("Say hello.")
    num_read = first["input"] + first["cache"]["read"]
    assert num_read > 1500
    second = turn("--continue", "And again.")
    assert second["cache"]["read"] >= num_read - 16


def test_aider(agent):
    exports, command, _ = agent.settings["OpenAI's libraries"].splitlines()
    words = exports.removeprefix("export ").split()
    told = agent.run(
        *command.split(),
        *("--message", "Say hello.", "--yes-always", "--no-git", "--no-pretty"),
        *("--no-check-update", "--no-show-release-notes", "--analytics-disable"),
        **dict(word.split("=", 1) for word in words),
    )
    assert ANSWER in told


def test_codex_runs_what_the_model_calls(agent):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    config = agent.home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(agent.settings["Codex"])
    words = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    told = agent.run("codex", "exec", "--json", *words, "-m", "for-codex", "Say hello.")
    events = [json.loads(line) for line in told.splitlines()]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (ran,) = [item for item in items if item["type"] == "command_execution"]
    assert (ran["exit_code"], ran["aggregated_output"]) == (0, "hello\n")
    assert items[-1]["text"] == ANSWER


def test_claude_code_runs_what_the_model_calls(agent):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    exports, command = agent.settings["Claude Code"].splitlines()
    words = [*exports.removeprefix("export ").split(), *command.split()]
    variables = dict(word.split("=", 1) for word in words[: words.index("claude")])
    options = ("--allowedTools", "Bash", "--output-format", "stream-json", "--verbose")
    told = agent.run(
        "claude", "-p", "--model", "for-claude", *options, "Say hello.", **variables
    )
    events = [json.loads(line) for line in told.splitlines()]
    blocks = [
        block
        for event in events
        if event["type"] in ("assistant", "user")
        for block in event["message"]["content"]
    ]
    assert [block["type"] for block in blocks] == ["tool_use", "tool_result", "text"]
    assert blocks[0]["input"] == {"command": "echo hello"}
    assert blocks[1]["content"] == "hello"
    assert events[-1]["result"] == ANSWER


@pytest.mark.slow
def test_opencode_runs_what_the_model_calls(agent):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    settings = json.loads(agent.settings["opencode"])
    settings["provider"]["localspec"]["models"]["for-opencode"] = {}
    (agent.folder / "opencode.json").write_text(json.dumps(settings))
    words = ("--format", "json", "--model", "localspec/for-opencode", "Say hello.")
    events = [json.loads(line) for line in agent.run("opencode", "run", *words).splitlines()]
    parts = [event["part"] for event in events]
    (ran,) = [part["state"] for part in parts if part["type"] == "tool"]
    assert (ran["status"], ran["output"]) == ("completed", "hello\n")
    assert [part["text"] for part in parts if part["type"] == "text"] == [ANSWER]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("codex", ("exec", "--json", "--skip-git-repo-check")),
        ("claude", ("-p", "--output-format", "json")),
        pytest.param("opencode", ("run", "--format", "json"), marks=pytest.mark.slow),
    ],
)
def test_a_program_that_localspec_starts(program, words, tmp_path, demo_target):
    """`localspec codex` and the like, which start the server, too."""
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    if shutil.which(program, path=PATH) is None:
        pytest.skip(f"{program} is not installed")
    write_agent_preset(tmp_path / "config", demo_target, {})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
    start = (sys.executable, "-m", "localspec", program, "agent", "--port", port, "--")
    config = str(tmp_path / "config")
    told = Agent({}, home, folder).run(*start, *words, "Say hello.", XDG_CONFIG_HOME=config)
    assert json.dumps(ANSWER) in told
