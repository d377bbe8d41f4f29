"""`localspec mcp`, and `localspec chat --mcp`: what is asked, made and said."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click
import pytest

import localspec
from call_families import write_tool_caller
from command_line import run
from localspec.cli import exit_codes
from localspec.cli.tool_calls import Toolbox
from localspec.tool_servers.configuration import own_file, read_servers
from localspec.tool_servers.servers import allowed_file
from waiting import processes_with, wait_until

pytest.importorskip("mcp", reason="the MCP SDK is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")

pytestmark = pytest.mark.process
SERVER = Path(__file__).parents[1] / "support" / "mcp_server.py"
GREEDY = ("--temperature", "0", "--max-tokens", "100")
CALLED = ("now", "erase", "hang", "draw")


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models that call a tool of the tests' server once, and say Done."""
    folder = tmp_path_factory.mktemp("models")
    return {name: write_tool_caller(folder / f"{name}.gguf", name) for name in CALLED}


def servers_file(folder: Path, *args: str, **more: object) -> Path:
    entry = {"command": sys.executable, "args": [str(SERVER), *args], **more}
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"tests": entry}}))
    return path


def test_the_command_for_another_programs_servers_can_be_pasted(tmp_path, monkeypatch):
    home = tmp_path / "Pat's home"
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    (home / ".cursor").mkdir(parents=True)
    path = servers_file(home / ".cursor")
    [line] = [line for line in run("mcp", "list").output.splitlines() if "Cursor" in line]
    command = line.partition(": ")[2]
    if sys.platform == "win32":
        assert command == f'localspec chat --mcp "{path}"'
    else:
        assert shlex.split(command) == ["localspec", "chat", "--mcp", str(path)]


def test_servers_are_added_listed_tried_and_removed():
    run("mcp", "add", "tests", "--env", "A=b", "--", sys.executable, SERVER)
    assert read_servers(own_file())["tests"].env == {"A": "b"}
    assert "has a server 'tests' already" in run("mcp", "add", "tests", "--", "x").output
    listed = run("mcp", "list").output
    assert "tests: works, MCP" in listed
    assert "tools, about" in listed
    tried = run("mcp", "test", "tests")
    assert tried.exit_code == 0
    assert "now: What time it is." in tried.output
    run("mcp", "remove", "tests")
    assert read_servers(own_file()) == {}


def test_a_server_that_fails_is_named_with_the_end_of_its_stderr(tmp_path):
    path = servers_file(tmp_path, "--fault", "ends")
    tried = run("mcp", "test", "tests", "--mcp", path)
    assert tried.exit_code == 1
    assert "cannot find my settings" in tried.output
    assert "tests.log" in tried.output


@pytest.mark.parametrize("servers", ["[]", "null"])
@pytest.mark.parametrize("command", [("add", "a", "--", "x"), ("remove", "a"), ("list",)])
def test_servers_that_are_no_object_are_refused_and_kept(servers, command):
    text = f'{{"mcpServers": {servers}}}'
    own_file().parent.mkdir(parents=True)
    own_file().write_text(text)
    refused = run("mcp", *command)
    assert refused.exit_code == exit_codes.USAGE
    assert "mcpServers in" in refused.stderr
    assert own_file().read_text() == text


def test_the_rest_of_a_file_stays(tmp_path):
    own_file().parent.mkdir(parents=True)
    own_file().write_text('{"theme": "dark", "mcpServers": {"a": {"command": "b", "x": 1}}}')
    run("mcp", "add", "wiki", "--url", "https://example.org/mcp", "--header", "k=v")
    content = json.loads(own_file().read_text())
    assert content["theme"] == "dark"
    assert content["mcpServers"]["a"] == {"command": "b", "x": 1}
    assert content["mcpServers"]["wiki"]["headers"] == {"k": "v"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no JSON object"),
        (
            '{"mcpServers": {}, "projects": "' + "x" * 4_000_000 + '"}',
            "is too large: it has 4000034 bytes; the limit is 4000000",
        ),
        ('{"mcpServers": {"a": {}}}', "Give either a command or a url"),
        ('{"mcpServers": {"a": {"url": "file:///etc"}}}', "begins with http"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"k": 1}}}}', "an object of texts"),
        ('{"mcpServers": {"a": {"command": "x", "timeout": -1}}}', "more than 0"),
        (
            f'{{"mcpServers": {{"a": {{"command": "x", "timeout": {10**400}}}}}}}',
            "Give seconds",
        ),
        ('{"mcpServers": {"a": {"command": "${env:NOT_SET}"}}}', "which is not set"),
        ('{"mcpServers": {"a": {"command": "no-such-program"}}}', "is not found"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(tmp_path, text, words):
    path = tmp_path / "mcp.json"
    path.write_text(text)
    assert words in " ".join(run("mcp", "test", "a", "--mcp", path).output.split())


def test_without_a_terminal_only_what_was_allowed_is_called(tmp_path, models):
    path = servers_file(tmp_path)
    words = ("chat", models["now"], "--mcp", path, "--mcp-tool", "now", *GREEDY)
    refused = run(*words, stdin="Hi\n")
    assert "was not called: nobody can be asked here" in refused.output
    assert "half past nine" not in refused.output
    path = servers_file(tmp_path, autoApprove=["now"])
    made = run(*words, stdin="Hi\n")
    assert "Called without asking, as you have allowed: tests.now" in made.output
    assert "half past nine" in made.output
    assert "Done." in made.output


def test_a_picture_of_a_result_is_named(tmp_path, models):
    path = servers_file(tmp_path, autoApprove=["draw"])
    words = ("chat", models["draw"], "--mcp", path, "--mcp-tool", "draw", *GREEDY)
    made = run(*words, stdin="Hi\n")
    assert "← a red square [2 images]" in made.output
    assert "Done." in made.output


def test_what_may_destroy_is_never_allowed_beforehand(tmp_path, models):
    path = servers_file(tmp_path, autoApprove=["*"])
    words = ("chat", models["erase"], "--mcp", path, "--mcp-tool", "erase", *GREEDY)
    assert "erased" not in run(*words, stdin="Hi\n").output


class Answers:
    """A person who answers these to questions, in order."""

    def __init__(self, *letters: str) -> None:
        self.letters = [*letters]
        self.questions: list[str] = []

    def __call__(self, question: str, **_: object) -> str:
        self.questions.append(question)
        letter = self.letters.pop(0)
        if letter == "^C":
            raise click.Abort
        return letter


@pytest.mark.parametrize(
    ("letters", "asked_again", "is_kept"),
    [("o", True, False), ("c", False, False), ("t", False, True), ("n", True, False)],
)
def test_an_answer_counts_for_as_long_as_it_says(
    tmp_path, models, monkeypatch, letters, asked_again, is_kept
):
    answers = Answers(letters, "n")
    monkeypatch.setattr("localspec.cli.tool_calls.click.prompt", answers)
    path = servers_file(tmp_path)
    with (
        localspec.McpServers(path, allowed_tools=["now"]) as servers,
        localspec.load(target=models["now"]) as engine,
    ):
        toolbox = Toolbox(servers, can_ask=True)
        toolbox.open(engine)
        for _ in range(2):
            asked = len(answers.questions)
            chat = engine.chat()
            steps = localspec.tool_steps(chat, "Hi", tools=toolbox.tools, temperature=0)
            for step in steps:
                if isinstance(step, localspec.RequestedCall):
                    if toolbox.may_run(step):
                        toolbox.run(step)
                    else:
                        step.refuse()
    assert (len(answers.questions) > asked) == asked_again
    assert allowed_file().exists() == is_kept
    with localspec.McpServers(path, allowed_tools=["now"]) as servers:
        assert servers.tools[0].function.is_allowed == is_kept


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal")
def test_a_person_is_asked_and_the_result_is_shown(tmp_path, models):
    pytest.importorskip("pexpect")
    from terminal import Terminal

    path = servers_file(tmp_path)
    words = ["chat", str(models["now"]), "--mcp", str(path), "--mcp-tool", "now", *GREEDY]
    terminal = Terminal(tmp_path, *words)
    try:
        terminal.wait_for_prompt(1)
        terminal.process.send("Hi\r")
        terminal.wait_for(lambda text: "Make this call?" in text)
        assert "tests.now {}" in terminal.text()
        shown = terminal.say("o")
        assert "half past nine" in shown
        assert "Done." in shown
        terminal.process.send("Hi\r")
        terminal.wait_for(lambda text: text.count("Make this call?") == 2)
        assert "(stopped)" in terminal.interrupt()
        assert terminal.leave() == 0
    finally:
        terminal.close()


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal")
def test_ctrl_c_in_a_call_ends_the_answer_and_no_server_stays(tmp_path, models):
    pytest.importorskip("pexpect")
    from terminal import Terminal

    path = servers_file(tmp_path, "--fault", "", str(tmp_path / "marker"), timeout=600)
    words = ["chat", str(models["hang"]), "--mcp", str(path), "--mcp-tool", "hang", *GREEDY]
    terminal = Terminal(tmp_path, *words)
    try:
        terminal.wait_for_prompt(1)
        terminal.process.send("Hi\r")
        terminal.wait_for(lambda text: "Make this call?" in text)
        terminal.process.send("o\r")
        terminal.wait_for(lambda text: "Calling tests.hang" in text)
        assert "(stopped)" in terminal.interrupt()
        assert terminal.leave() == 0
    finally:
        terminal.close()
    wait_until(lambda: not processes_with(str(tmp_path / "marker")))
