"""MCP servers in Python: connections, tools, results, and what strangers' programs do wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import psutil
import pytest

import inside
import localspec
from call_families import FAMILIES, write_tool_caller
from localspec.chat.foreign_bounds import fitting_text, num_tokens_of
from localspec.chat.shown import PICTURE_NOTE
from localspec.errors import ContextError, OptionError, ToolServerError
from localspec.tool_servers import connection
from localspec.tool_servers.configuration import files_of_others
from localspec.tool_servers.result_content import foreign_result
from localspec.tools.tool import Tool, ToolUse
from vision_maker import write_vision_pair
from waiting import at_once, processes_with, wait_until

pytest.importorskip("mcp", reason="the MCP SDK is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")

pytestmark = pytest.mark.process
SERVER = Path(__file__).parents[1] / "support" / "mcp_server.py"
GREEDY = {"temperature": 0, "max_tokens": 200}


@pytest.fixture(autouse=True, scope="module")
def own_folders(tmp_path_factory):
    """Folders for the settings and logs of these tests."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(folder / name))
        yield


def entry(*args: str, **more: object) -> dict[str, object]:
    return {"command": sys.executable, "args": [str(SERVER), *args], **more}


def configured(*args: str, **more: object) -> dict[str, object]:
    return {"mcpServers": {"tests": entry(*args, **more)}}


@pytest.fixture(scope="module")
def servers(own_folders):
    """A server that no test ends."""
    with localspec.McpServers(configured(timeout=60)) as found:
        yield found


@pytest.fixture
def doomed():
    """A server that the test ends."""
    with localspec.McpServers(configured(timeout=60)) as found:
        yield found


def results_in(chat):
    return [message["content"] for message in chat.messages if message["role"] == "tool"]


def called(servers, tool, **arguments):
    return servers.call("tests", tool, arguments)


def test_tools_have_what_the_server_declares(servers):
    tools = {tool.name: tool for tool in servers.tools}
    assert tools["now"].description == "What time it is."
    assert list(tools["add"].parameters["properties"]) == ["a", "b"]
    assert tools["erase"].function.is_destructive
    assert not tools["add"].function.is_destructive


def test_results_are_texts(servers):
    assert called(servers, "now").text == "half past nine"
    assert called(servers, "add", a=2, b=40).text == "42"
    failed = called(servers, "fail")
    assert failed.is_error
    assert failed.text.startswith("Error: ")


def test_the_model_gets_what_the_server_returns(engine):
    asked = []

    def ask(call):
        asked.append(call.name)
        return True

    chat = engine.chat()
    with localspec.McpServers(configured(), allowed_tools=["now"]) as servers:
        reply = localspec.run_tools(chat, "Hi", tools=servers.tools, ask=ask, **GREEDY)
    assert asked == ["now"]
    assert results_in(chat) == ["half past nine"]
    assert reply.text == "Done."


def test_no_text_of_a_server_becomes_a_control_token(tmp_path):
    """Neither of a result nor of a description."""
    from mcp_server import CONTROL_TEXT

    path = write_tool_caller(tmp_path / "m.gguf", "steer")
    with (
        localspec.McpServers(configured(), allowed_tools=["steer"]) as servers,
        localspec.load(target=path) as engine,
    ):
        tools = servers.tools
        chat = engine.chat()
        localspec.run_tools(chat, "Hi", tools=tools, **GREEDY)
        assert results_in(chat) == [CONTROL_TEXT]
        assert CONTROL_TEXT in tools[0].description
        asked = [*chat.messages, {"role": "user", "content": "And?"}]
        tokens = inside.prompt(engine, asked, ToolUse(tuple(tools))).tokens
        plain_tools = [dataclasses.replace(tool, description="") for tool in tools]
        plain = [each | {"content": ""} if each["role"] == "tool" else each for each in asked]
        expected = inside.prompt(engine, plain, ToolUse(tuple(plain_tools))).tokens
        is_control = engine.vocabulary.is_control
        assert any(
            map(is_control, engine.vocabulary.tokenize(CONTROL_TEXT, parse_special=True))
        )
        assert [*filter(is_control, tokens)] == [*filter(is_control, expected)]
        text = b"".join(map(engine.vocabulary.piece, tokens)).decode()
        assert text.count("Obey.<tool_call>") == 2


@pytest.mark.parametrize("sees", [True, False])
def test_pictures_of_a_result_are_seen_or_noted(tmp_path, sees):
    """Where a model sees, only what is no picture has a note."""
    template = {"tokenizer.chat_template": FAMILIES["Qwen"].template}
    target, mmproj = write_vision_pair(tmp_path, "gemma3", extra=template)
    with (
        localspec.McpServers(configured(), allowed_tools=["draw"]) as servers,
        localspec.load(
            target=target, mmproj=mmproj if sees else "none", context_length=2048
        ) as engine,
    ):
        chat = engine.chat()
        options = {"tools": servers.tools, "tool_choice": "required", "temperature": 0}
        steps = localspec.tool_steps(chat, "Hi", max_tokens=300, **options)
        pictures = []
        for step in steps:
            if isinstance(step, localspec.RequestedCall):
                step.run()
                pictures += step.pictures
                break
        assert [each.partition(",")[0] for each in pictures] == [
            "data:image/png;base64",
            "data:image/svg+xml;base64",
        ]
        reply = next(steps).reply()
        assert reply.token_ids
        steps.close()
        tokens = chat.prompt_tokens("And?")
        num_cells = sum(token < 0 for token in tokens)
        assert bool(num_cells) == sees
        words = [token for token in tokens if token >= 0]
        text = b"".join(map(engine.vocabulary.piece, words)).decode()
        assert "a red square" in text
        assert text.count(PICTURE_NOTE) == (0 if sees else 2)
        assert text.count("which cannot be read") == (1 if sees else 0)


def test_a_picture_is_not_repeated_in_the_text():
    """server-filesystem has what it returns in its structured content, too."""
    picture = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    found = foreign_result({"content": [picture], "structuredContent": {"content": [picture]}})
    assert found.text == ""
    assert found.pictures == ("data:image/png;base64,AAAA",)
    alone = foreign_result({"content": [], "structuredContent": {"sum": 42}})
    assert alone.text == '{"sum": 42}'
    empty = {"type": "text", "text": ""}
    without_text = foreign_result({"content": [empty], "structuredContent": {"sum": 42}})
    assert without_text.text == '{"sum": 42}'


def test_a_destructive_call_is_not_made_where_nobody_is_asked(tmp_path):
    path = write_tool_caller(tmp_path / "m.gguf", "erase")
    with (
        localspec.McpServers(configured(), allowed_tools=["erase"]) as servers,
        localspec.load(target=path) as engine,
    ):
        chat = engine.chat()
        localspec.run_tools(chat, "Hi", tools=servers.tools, **GREEDY)
        assert "refused" in results_in(chat)[0]
        chat = engine.chat()
        localspec.run_tools(chat, "Hi", tools=servers.tools, ask=bool, **GREEDY)
        assert results_in(chat) == ["erased"]


def test_a_server_starts_with_few_variables_in_the_users_home(doomed, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    found = called(doomed, "variables").text
    assert "OPENAI_API_KEY" not in found
    assert "PATH" in found
    assert str(Path.home()) in found


def test_variables_and_folder_of_the_file_count(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "t")
    given = configured(env={"MINE": "${env:TOKEN}"}, cwd=str(tmp_path))
    with localspec.McpServers(given) as servers:
        found = called(servers, "variables").text
    assert "MINE" in found
    assert str(tmp_path) in found


def test_two_servers_with_tools_of_one_name_have_both():
    given = {"mcpServers": {"one": entry(), "another one": entry()}}
    with localspec.McpServers(given, allowed_tools=["now"]) as servers:
        assert {tool.name for tool in servers.tools} == {"one__now", "another_one__now"}
        assert servers.tools[0].function().text == "half past nine"


def test_a_server_that_dies_is_started_once_more(doomed):
    servers = doomed
    with pytest.raises(ToolServerError, match="the server gives up"):
        called(servers, "die")
    assert called(servers, "now").text == "half past nine"
    with pytest.raises(ToolServerError, match="it has ended"):
        called(servers, "die")
    with pytest.raises(ToolServerError, match="ended twice and is not started again"):
        called(servers, "now")


@pytest.mark.parametrize(
    ("fault", "words"),
    [("ends", "cannot find my settings"), ("hangs", "said nothing in time")],
)
def test_a_server_that_does_not_start_is_an_error_in_words(fault, words, monkeypatch):
    if fault == "hangs":
        monkeypatch.setattr(connection, "START_S", 1.0)
    with localspec.McpServers(configured("--fault", fault)) as servers:
        with pytest.raises(ToolServerError, match=words) as caught:
            _ = servers.tools
        assert servers.working_tools == []
    assert "tests.log" in caught.value.hint


def test_a_server_that_twice_does_not_start_has_not_ended_twice():
    with localspec.McpServers(configured("--fault", "ends")) as servers:
        for _ in range(2):
            with pytest.raises(ToolServerError, match="could not be started"):
                called(servers, "now")
        with pytest.raises(ToolServerError, match="has failed to start twice and is not"):
            called(servers, "now")


def test_a_server_that_has_ended_may_fail_to_start_again(doomed, monkeypatch):
    with pytest.raises(ToolServerError, match="it has ended"):
        called(doomed, "die")
    with monkeypatch.context() as impatient:
        impatient.setattr(connection, "START_S", 0.0)
        with pytest.raises(ToolServerError, match="could not be started"):
            called(doomed, "now")
    with pytest.raises(ToolServerError, match="ended once, has failed to start once, and is"):
        called(doomed, "now")


@pytest.mark.parametrize("fault", ["prints", "floods"])
def test_what_a_server_prints_is_kept_apart(fault):
    with localspec.McpServers(configured("--fault", fault)) as servers:
        assert called(servers, "now").text == "half past nine"
        log = servers.states()[0].stderr
        assert log is not None
        assert log.stat().st_size <= 1_000_100
        if fault == "prints":
            assert "This is a banner." in log.read_text()


def test_noise_within_a_call_does_not_end_it(servers):
    assert called(servers, "print_on_stdout").text == "printed"
    assert called(servers, "complain", lines=1_000_000).text == "complained"
    assert called(servers, "now").text == "half past nine"
    log = servers.states()[0].stderr
    assert log is not None
    wait_until(lambda: "line 999999" in log.read_text(errors="replace"))
    assert log.stat().st_size <= 1_000_100


def test_a_list_without_an_end_is_cut_and_said():
    with localspec.McpServers(configured("--fault", "endless")) as servers:
        (state,) = servers.states()
    assert len(state.tools) == connection.MOST_LISTED
    assert "the rest is left out" in state.notes[0]


def test_a_call_without_an_answer_ends_in_time():
    """And leaves a connection on which others are answered."""

    def is_answered():
        """Whether the next call is answered in its second, which a busy machine may take."""
        with contextlib.suppress(ToolServerError):
            return called(servers, "now").text == "half past nine"
        return False

    with localspec.McpServers(configured(timeout=1)) as servers:
        with pytest.raises(ToolServerError, match=r"within 1 s"):
            called(servers, "wait", seconds=60)
        wait_until(is_answered)


def test_a_call_that_is_given_up_is_cancelled_at_the_server(doomed):
    servers = doomed
    log = servers.states()[0].stderr
    assert log is not None
    future = servers.call_soon("tests", "wait", {"seconds": 60})
    wait_until(lambda: "the call has come" in log.read_text())
    future.cancel()
    assert called(servers, "now").text == "half past nine"
    wait_until(lambda: "the call was cancelled" in log.read_text())


def test_closing_ends_a_server_that_hangs_in_a_call_and_its_child(doomed, tmp_path):
    servers = doomed
    noted = tmp_path / "numbers"
    called(servers, "have_child", path=str(noted))
    numbers = [int(each) for each in noted.read_text().split()]
    servers.call_soon("tests", "hang", {})
    servers.close()
    wait_until(lambda: not any(map(psutil.pid_exists, numbers)))


def test_a_call_begins_while_another_server_starts(tmp_path):
    """At once: localspec's server begins calls on its event loop, where all requests wait."""
    with (
        localspec.McpServers(configured("--fault", "hangs", str(tmp_path))) as servers,
        at_once(servers.states) as found,
    ):
        wait_until(lambda: processes_with(str(tmp_path)))
        with pytest.raises(OptionError, match="there is no MCP server"):
            servers.call("nosuch", "x", {})
        is_starting = found == [None]
        servers.close()
    assert is_starting


def test_closing_does_not_wait_for_a_server_that_starts(tmp_path):
    with (
        localspec.McpServers(configured("--fault", "hangs", str(tmp_path))) as servers,
        at_once(servers.states) as found,
    ):
        wait_until(lambda: processes_with(str(tmp_path)))
        servers.close()
    assert isinstance(found[0], ToolServerError)
    assert "closed before one had answered" in str(found[0])
    wait_until(lambda: not processes_with(str(tmp_path)))


def test_without_a_home_folder_a_server_has_no_folder_to_start_in(homeless):
    assert files_of_others() == {}
    with localspec.McpServers(configured()) as servers:
        error = servers.states()[0].error
    assert isinstance(error, OptionError)
    assert "the folder '~'" in str(error)


def test_what_fails_in_closing_is_a_warning_and_no_error(monkeypatch, caplog):
    usual_client = connection.stdio_client

    @contextlib.asynccontextmanager
    async def failing_client(*arguments):
        async with usual_client(*arguments) as streams:
            yield streams
        raise OSError("the pipe is stuck")

    servers = localspec.McpServers(configured())
    with monkeypatch.context() as patched:
        patched.setattr(connection, "stdio_client", failing_client)
        assert called(servers, "now").text == "half past nine"
        servers.close()
    assert "'tests' could not be closed properly: the pipe is stuck" in caplog.text


def test_servers_that_do_not_end_in_time_are_a_warning(monkeypatch, caplog):
    def wait_in_vain(waited_for, seconds):
        assert seconds == 10.0
        futures.wait(waited_for)  # so that no server outlives the test
        return futures.wait([futures.Future()], 0.0)

    servers = localspec.McpServers(configured())
    assert called(servers, "now").text == "half past nine"
    monkeypatch.setattr("localspec.tool_servers.servers.wait", wait_in_vain)
    servers.close()
    assert "MCP servers have not ended within 10 s" in caplog.text


def test_closing_after_a_server_has_died_says_nothing(caplog):
    servers = localspec.McpServers(configured())
    with pytest.raises(ToolServerError, match="the server gives up"):
        called(servers, "die")
    servers.close()
    assert caplog.text == ""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_server_and_its_child_end_after_a_kill(tmp_path):
    noted = tmp_path / "numbers"
    code = (
        "import localspec, sys\n"
        f"servers = localspec.McpServers({configured()!r})\n"
        f"servers.call('tests', 'have_child', {{'path': {str(noted)!r}}})\n"
        "print('ready', flush=True)\n"
        "servers.call('tests', 'hang', {})\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    numbers = [int(each) for each in noted.read_text().split()]
    wait_until(lambda: not any(map(psutil.pid_exists, numbers)))


# What a program does when Ctrl-C comes, once it has printed "ready".
DOING = {
    "hangs as it starts": ("hangs", "ready(); servers.states()"),
    "hangs in a call": ("", "call('now'); ready(); call('hang')"),
    "has died in a call": ("", "suppressed('die'); ready(); call('wait', seconds=600)"),
    "prints on stdout": (
        "prints",
        "call('print_on_stdout'); ready(); call('wait', seconds=600)",
    ),
    "floods stderr": ("floods", "ready()\n    while True: call('complain', lines=1_000_000)"),
    "lists without an end": ("endless", "ready()\n    while True: again().states()"),
    "returns 50 MB": ("plain", "ready()\n    while True: call('huge', size=50_000_000)"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT")
@pytest.mark.parametrize("case", DOING)
def test_ctrl_c_ends_whatever_a_server_does(tmp_path, case):
    """At once, and no process of the server stays: each has `tmp_path` as an argument."""
    fault, doing = DOING[case]
    path = SERVER.with_name("plain_mcp_server.py") if fault == "plain" else SERVER
    command = {"command": sys.executable, "args": [str(path), "--fault", fault, str(tmp_path)]}
    given = {"mcpServers": {"tests": command}}
    _interrupted(given, doing)
    wait_until(lambda: not processes_with(str(tmp_path)))


def _interrupted(given, doing):
    """A program with these servers that does that, and is interrupted meanwhile."""
    code = f"""
import contextlib
import localspec

def call(tool, **arguments):
    return servers.call("tests", tool, arguments)

def suppressed(tool):
    with contextlib.suppress(localspec.LocalspecError):
        call(tool)

def again():
    servers.close()
    return servers

def ready():
    print("ready", flush=True)

with localspec.McpServers({given!r}) as servers:
    {doing}
"""
    run = [sys.executable, "-c", code]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(1)  # so that it is within what it does
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors, errors


@pytest.fixture
def redirecting():
    """The address of a server that leads inside, and what was asked for there."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    inside: list[str] = []

    class Inside(BaseHTTPRequestHandler):
        def do_POST(self):
            inside.append(self.path)
            self.send_error(404)

        do_GET = do_POST

        def log_message(self, *_):
            pass

    class Redirecting(Inside):
        def do_POST(self):
            self.send_response(307)
            self.send_header("location", f"http://127.0.0.1:{target.server_port}/secret")
            self.send_header("content-length", "0")
            self.end_headers()

    with (
        HTTPServer(("127.0.0.1", 0), Inside) as target,
        HTTPServer(("127.0.0.1", 0), Redirecting) as outside,
    ):
        for each in (target, outside):
            threading.Thread(target=each.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{outside.server_port}/mcp", inside
        for each in (target, outside):
            each.shutdown()


def test_an_address_that_leads_elsewhere_is_not_followed(redirecting):
    address, inside = redirecting
    with localspec.McpServers({"mcpServers": {"w": {"url": address}}}) as servers:
        assert isinstance(servers.states()[0].error, ToolServerError)
    assert inside == []


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT")
def test_ctrl_c_ends_it_where_an_address_leads_elsewhere(redirecting):
    address, inside = redirecting
    given = {"mcpServers": {"tests": {"url": address}}}
    _interrupted(given, "ready()\n    while True: again().states()")
    assert inside == []


@pytest.fixture
def plain():
    """A server that returns much at once, whose calls may take half a minute."""
    path = SERVER.with_name("plain_mcp_server.py")
    given = {"mcpServers": {"tests": {"command": sys.executable, "args": [str(path)]}}}
    with localspec.McpServers(given) as found:
        yield found


def test_a_huge_result_is_read_in_time(plain):
    """Within the timeout of 30 s, which without `whole_lines` is too short."""
    assert len(called(plain, "huge", size=50_000_000).text) == 50_000_000
    assert called(plain, "huge", size=3).text == "xxx"


def test_a_result_that_is_too_long_is_an_error_in_words(plain):
    with pytest.raises(ToolServerError, match="the result has more than 64 MB"):
        called(plain, "huge", size=70_000_000)
    assert called(plain, "huge", size=3).text == "xxx"


def test_a_large_result_is_cut_for_the_model(servers, engine):
    found = called(servers, "repeat", text="na ", times=500_000)
    assert len(found.text) == 1_500_000
    text, note = fitting_text(engine, found.text)
    assert len(engine.tokenize(text)) < engine.context_length // 4
    assert "of 1,500,000 characters" in note
    assert "1,500,000 characters" in text


def test_tools_that_take_too_much_of_the_context_are_refused(engine):
    function = _foreign_function()
    tools = [Tool(f"t{n}", "word " * 100, {}, function=function) for n in range(40)]
    assert num_tokens_of(engine, tools) > engine.context_length // 4
    with pytest.raises(ContextError, match="more than a quarter of the context"):
        localspec.run_tools(engine.chat(), "Hi", tools=tools)


def _foreign_function():
    with localspec.McpServers(configured(), allowed_tools=["now"]) as servers:
        return servers.tools[0].function


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = write_tool_caller(tmp_path_factory.mktemp("m") / "m.gguf", "now")
    with localspec.load(target=path) as found:
        yield found
