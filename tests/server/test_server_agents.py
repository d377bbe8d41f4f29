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
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from agent_model import ANSWER, write_agent_preset
from server_runner import free_port
from waiting import wait_until

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
        wait_until(lambda: log.read_text().endswith("Ctrl-C stops.\n") or process.poll(), 120)
        found = re.findall(r"^(\S[^\n]*):\n((?: +\S[^\n]*\n)+)", log.read_text(), re.M)
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


class Turn(NamedTuple):
    """What came of a turn. num_read: tokens of its prompt; ran: what the tools returned."""

    said: str
    num_read: int
    num_cached: int
    ran: list[str]


def codex(agent, text, model="agent", *, goes_on=False):
    config = agent.home / ".codex" / "config.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(agent.settings["Codex"])
    words = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    resumed = ("resume", "--last") if goes_on else ("-m", model)
    command = ("codex", "exec", "--json", *words, *resumed, text)
    events = [json.loads(line) for line in agent.run(*command).splitlines()]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    ran = [item for item in items if item["type"] == "command_execution"]
    usage = events[-1]["usage"]
    numbers = usage["input_tokens"], usage["cached_input_tokens"]
    return Turn(items[-1]["text"], *numbers, [item["aggregated_output"] for item in ran])


def claude(agent, text, model="agent", *, goes_on=False):
    exports, command = agent.settings["Claude Code"].splitlines()
    words = [*exports.removeprefix("export ").split(), *command.split()]
    variables = dict(word.split("=", 1) for word in words[: words.index("claude")])
    options = ("--allowedTools", "Bash", "--output-format", "stream-json", "--verbose")
    resumed = ("--continue",) if goes_on else ()
    told = agent.run("claude", "-p", "--model", model, *options, *resumed, text, **variables)
    events = [json.loads(line) for line in told.splitlines()]
    last, usage = events[-1], events[-1]["usage"]
    assert last["modelUsage"][model]["contextWindow"] == 131_072
    said = [event["message"] for event in events if event["type"] in ("assistant", "user")]
    blocks = [block for message in said for block in message["content"]]
    ran = [block["content"] + "\n" for block in blocks if block["type"] == "tool_result"]
    cached = usage["cache_read_input_tokens"]
    return Turn(last["result"], usage["input_tokens"] + cached, cached, ran)


def opencode(agent, text, model="agent", *, goes_on=False):
    settings = json.loads(agent.settings["opencode"])
    settings["provider"]["localspec"]["models"].setdefault(model, {})
    (agent.folder / "opencode.json").write_text(json.dumps(settings))
    words = ("--continue",) if goes_on else ("--model", f"localspec/{model}")
    told = agent.run("opencode", "run", "--format", "json", *words, text)
    found = [json.loads(line)["part"] for line in told.splitlines()]
    (said,) = [part["text"] for part in found if part["type"] == "text"]
    ran = [part["state"]["output"] for part in found if part["type"] == "tool"]
    tokens = found[-1]["tokens"]
    cached = tokens["cache"]["read"]
    return Turn(said, tokens["input"] + cached, cached, ran)


ALL = [codex, claude, pytest.param(opencode, marks=pytest.mark.slow)]


@pytest.mark.parametrize("ask", ALL)
def test_a_conversation_goes_on_where_it_is_cached(agent, ask):
    first = ask(agent, "Say hello.")
    assert (first.said, first.ran) == (ANSWER, [])
    assert first.num_read > 1500
    second = ask(agent, "And again.", goes_on=True)
    assert second.said == ANSWER
    assert second.num_cached >= first.num_read - 16


@pytest.mark.parametrize("ask", ALL)
def test_it_runs_what_the_model_calls(agent, ask):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    turn = ask(agent, "Say hello.", f"for-{ask.__name__}")
    assert (turn.said, turn.ran) == (ANSWER, ["hello\n"])


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
    port = str(free_port())
    start = (sys.executable, "-m", "localspec", program, "agent", "--port", port, "--")
    config = str(tmp_path / "config")
    told = Agent({}, home, folder).run(*start, *words, "Say hello.", XDG_CONFIG_HOME=config)
    assert json.dumps(ANSWER) in told
