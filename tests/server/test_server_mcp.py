"""Tools of MCP servers in the server: in /v1/responses, and for the page."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

import localspec
from call_families import write_tool_caller
from inside import calls_under_way
from server_runner import lines_until_ready, presets_of, running_server
from waiting import at_once, processes_with, wait_until

pytest.importorskip("mcp", reason="the MCP SDK is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")

pytestmark = pytest.mark.process
SERVER = Path(__file__).parents[1] / "support" / "mcp_server.py"
CALLED = ("now", "erase", "hang")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Of models that call a tool of the tests' MCP server once, and say Done."""
    folder = tmp_path_factory.mktemp("mcp")
    files = {name: write_tool_caller(folder / f"{name}.gguf", name) for name in CALLED}
    entry = {"command": sys.executable, "args": [str(SERVER)], "timeout": 60}
    with (
        pytest.MonkeyPatch.context() as patch,
        presets_of(folder, **{name: (path, 2048) for name, path in files.items()}),
        localspec.McpServers({"mcpServers": {"tests": entry}}) as servers,
        running_server(
            presets=list(files),
            takes_any_name=False,
            tool_servers=servers,
            parallel=1,
        ) as running,
    ):
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield running


def never(tool, **more):
    """The tests' server with that tool, which may be called without approval."""
    return asking_for(tool, require_approval="never", **more)


def asking_for(tool, **more):
    return {"type": "mcp", "server_label": "tests", "allowed_tools": [tool], **more}


def asked(server, model, **more):
    fields = {"model": model, "input": "Hi", "temperature": 0, **more}
    response = server.ask("/v1/responses", **fields)
    assert response.status_code == 200, response.text
    return response.json()


def kinds(response):
    return [item["type"] for item in response["output"]]


def test_a_call_is_made_and_answered(server):
    found = asked(server, "now", tools=[never("now")])
    assert kinds(found) == ["mcp_list_tools", "mcp_call", "message"]
    listed, call, message = found["output"]
    assert [tool["name"] for tool in listed["tools"]] == ["now"]
    assert call["server_label"] == "tests"
    assert call["name"] == "now"
    assert call["output"] == "half past nine"
    assert call["status"] == "completed"
    assert message["content"][0]["text"] == "Done."
    assert found["tools"][0]["server_label"] == "tests"


def test_a_stream_has_the_events_of_the_call(server):
    events = server.events(
        "/v1/responses", model="now", input="Hi", temperature=0, tools=[never("now")]
    )
    types = [event["type"] for event in events]
    assert [kind for kind in types if "mcp" in kind] == [
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds(events[-1]["response"]) == ["mcp_list_tools", "mcp_call", "message"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in done] == [0, 1, 2]


def test_log_probabilities_of_a_message_are_those_of_its_text(server):
    """Streamed or not: those of a call's tokens do not go into the message behind it."""
    ask = {"tools": [never("now")], "include": ["message.output_text.logprobs"]}
    whole = asked(server, "now", **ask)
    events = server.events("/v1/responses", model="now", input="Hi", temperature=0, **ask)
    streamed = events[-1]["response"]
    listed = []
    for response in (whole, streamed):
        (part,) = response["output"][-1]["content"]
        listed.append([each["token"] for each in part["logprobs"]])
    assert "".join(listed[0]).startswith("Done.")
    assert listed[0] == listed[1]


@pytest.mark.parametrize("streams", [False, True])
def test_openais_library_reads_it(openai_client, streams):
    pytest.importorskip("openai")
    ask = {"model": "now", "input": "Hi", "temperature": 0, "tools": [never("now")]}
    if streams:
        with openai_client.responses.stream(**ask) as events:
            for _ in events:
                pass
            found = events.get_final_response()
    else:
        found = openai_client.responses.create(**ask)
    assert found.output[1].type == "mcp_call"
    assert found.output[1].output == "half past nine"
    assert found.output_text == "Done."


@pytest.fixture
def openai_client(server):
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        yield client


@pytest.mark.parametrize("approve", [True, False])
def test_a_call_waits_for_approval(server, approve):
    tools = [asking_for("now")]
    first = asked(server, "now", tools=tools)
    assert kinds(first) == ["mcp_list_tools", "mcp_approval_request"]
    request = first["output"][1]
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": approve,
    }
    said = [{"role": "user", "content": "Hi"}, *first["output"], answer]
    second = asked(server, "now", tools=tools, input=said)
    assert kinds(second) == (["mcp_call", "message"] if approve else ["message"])
    if approve:
        assert second["output"][0]["approval_request_id"] == request["id"]
        assert second["output"][0]["output"] == "half past nine"
        said += second["output"]
        third = asked(
            server, "now", tools=tools, input=[*said, {"role": "user", "content": "?"}]
        )
        assert "mcp_call" not in kinds(third)


def test_an_approved_call_of_another_server_is_not_made(server):
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "another"}
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"}
    items = [
        {"role": "user", "content": "Hi"},
        {**request, "name": "now", "arguments": "{}"},
        {**answer, "approve": True},
    ]
    found = asked(server, "now", tools=[asking_for("now")], input=items)
    assert "mcp_call" not in kinds(found)


def test_what_may_destroy_waits_whatever_the_request_says(server):
    found = asked(server, "erase", tools=[never("erase")])
    assert kinds(found) == ["mcp_list_tools", "mcp_approval_request"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"server_url": "http://10.0.0.1/"}, "cannot name an address"),
        ({"connector_id": "connector_dropbox"}, "cannot name an address"),
        ({"server_label": "another"}, "There are tests"),
        ({"require_approval": "perhaps"}, "Choose always or never"),
    ],
)
def test_a_wrong_request_is_refused_in_words(server, more, words):
    tools = [never("now") | more]
    response = server.ask("/v1/responses", model="now", input="Hi", tools=tools)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("choice", "is_there"),
    [
        ({"server_label": "tests", "name": "now"}, True),
        ({"server_label": "tests"}, True),
        ({"server_label": "another", "name": "now"}, False),
        ({"server_label": "another"}, False),
        ({"server_label": "tests", "name": "erase"}, False),
    ],
)
def test_a_choice_of_a_tool_that_is_not_there_is_refused(server, choice, is_there):
    fields = {"model": "now", "input": "Hi", "tools": [never("now")], "max_output_tokens": 1}
    choice = {"type": "mcp", **choice}
    response = server.ask("/v1/responses", **fields, tool_choice=choice)
    assert (response.status_code == 200) == is_there
    if not is_there:
        assert "no such tool" in response.json()["error"]["message"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_server_among_the_allowed_tools_is_called(server, mode):
    entry = {"type": "mcp", "server_label": "tests"}
    choice = {"type": "allowed_tools", "mode": mode, "tools": [entry]}
    found = asked(server, "now", tools=[never("now")], tool_choice=choice)
    assert kinds(found) == ["mcp_list_tools", "mcp_call", "message"]
    assert found["tool_choice"] == choice


def test_a_server_among_the_allowed_tools_that_is_not_there_is_refused(server):
    entry = {"type": "mcp", "server_label": "another"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [entry]}
    fields = {"model": "now", "input": "Hi", "tools": [never("now")]}
    response = server.ask("/v1/responses", **fields, tool_choice=choice)
    assert response.status_code == 400
    assert "no such tool" in response.json()["error"]["message"]


@contextlib.contextmanager
def hanging(server):
    """An answer within a call that returns nothing; its client leaves at the block's end."""
    fields = {"model": "hang", "input": "Hi", "stream": True, "temperature": 0}
    fields["tools"] = [never("hang")]
    with server.client.stream("POST", "/v1/responses", json=fields) as response:
        lines = response.iter_lines()  # where it is dropped, httpx hangs up
        while "mcp_call.in_progress" not in next(lines):
            pass
        wait_until(lambda: calls_under_way(server.server))
        yield


def test_a_second_client_is_answered_while_a_call_runs(server):
    asked(server, "now")  # loads the model
    with hanging(server):
        assert asked(server, "now")["status"] == "completed"
        assert calls_under_way(server.server)


def test_a_client_that_leaves_ends_the_call(server):
    """Long before its timeout would."""
    with hanging(server):
        pass
    wait_until(lambda: not calls_under_way(server.server), patience_s=30)


@pytest.mark.usefixtures("server")  # of which it has the model
def test_a_call_that_takes_too_long_fails_and_the_model_goes_on():
    entry = {"command": sys.executable, "args": [str(SERVER)], "timeout": 1}
    with (
        localspec.McpServers({"mcpServers": {"tests": entry}}) as servers,
        running_server(presets=["hang"], tool_servers=servers) as hasty,
    ):
        found = asked(hasty, "hang", tools=[never("hang")])
    assert kinds(found) == ["mcp_list_tools", "mcp_call", "message"]
    _, call, message = found["output"]
    assert call["status"] == "failed"
    assert "within 1 s" in call["error"]
    assert message["content"][0]["text"] == "Done."


def test_the_page_gets_the_tools_and_what_comes_of_calls(server):
    listed = server.ask("/mcp/tools").json()
    tools = {tool["name"]: tool for tool in listed["tools"]}
    assert tools["erase"]["is_destructive"]
    assert not tools["now"]["is_allowed"]
    unasked = server.ask("/mcp/call", name="now", model="now")
    assert unasked.status_code == 403
    made = server.ask("/mcp/call", name="now", model="now", approved="once").json()
    assert made == {"text": "half past nine", "note": "", "pictures": [], "is_error": False}
    drawn = server.ask("/mcp/call", name="draw", model="now", approved="once").json()
    assert drawn["text"] == "a red square"
    assert [each.partition(";")[0] for each in drawn["pictures"]] == [
        "data:image/png",
        "data:image/svg+xml",
    ]
    unknown = server.ask("/mcp/call", name="nothing", model="now", approved="once")
    assert unknown.status_code == 400


def test_no_call_is_made_or_allowed_for_a_model_that_is_not_there(server):
    wrong = server.ask("/mcp/call", name="now", model="absent", approved="always")
    assert wrong.status_code == 404
    tools = {tool["name"]: tool for tool in server.ask("/mcp/tools").json()["tools"]}
    assert not tools["now"]["is_allowed"]


def test_no_client_can_add_or_change_a_command(server):
    tools = [never("now") | {"command": "/bin/sh", "args": ["-c", "touch x"]}]
    assert kinds(asked(server, "now", tools=tools))[1] == "mcp_call"
    for path in ("/mcp/add", "/mcp/servers", "/mcp/config"):
        assert server.ask(path, command="x").status_code == 404


def test_a_result_is_cut_to_its_part_of_the_context(server):
    arguments = '{"text": "na ", "times": 500000}'
    made = server.ask(
        "/mcp/call", name="repeat", arguments=arguments, model="now", approved="once"
    ).json()
    assert "of 1,500,000 characters" in made["note"]
    assert len(made["text"]) < 10_000


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT")
def test_ctrl_c_in_a_call_ends_the_server_and_those_it_has_started(tmp_path):
    marker = str(tmp_path / "marker")
    noted = tmp_path / "numbers"
    entry = {"command": sys.executable, "args": [str(SERVER), "--fault", "", marker]}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"tests": entry | {"timeout": 600}}}))
    log = tmp_path / "localspec/mcp/tests.log"
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "localspec", "serve", "demo", "--port", "0", "--mcp", file]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            url = lines_until_ready(process.stderr)[-1].split()[2]

            def call(name, **arguments):
                fields = {"name": name, "arguments": json.dumps(arguments)}
                fields |= {"model": "demo", "approved": "once"}
                return httpx.post(f"{url}/mcp/call", json=fields, timeout=300, trust_env=False)

            assert call("have_child", path=str(noted)).status_code == 200
            numbers = [int(each) for each in noted.read_text().split()]
            with at_once(lambda: call("hang")):
                wait_until(lambda: "the call has come" in log.read_text())
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    wait_until(lambda: not processes_with(marker) and not any(map(psutil.pid_exists, numbers)))


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT")
def test_ctrl_c_while_a_server_starts_ends_the_request_that_waits_for_it(tmp_path):
    marker = str(tmp_path / "marker")
    entry = {"command": sys.executable, "args": [str(SERVER), "--fault", "hangs", marker]}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"tests": entry}}))
    command = [sys.executable, "-m", "localspec", "serve", "demo", "--port", "0", "--mcp", file]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = lines_until_ready(process.stderr)[-1].split()[2]
            fields = {"model": "demo", "input": "Hi", "tools": [never("now")]}

            def ask():
                return httpx.post(
                    f"{url}/v1/responses", json=fields, timeout=300, trust_env=False
                )

            with at_once(ask) as found:
                wait_until(lambda: processes_with(marker))
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert found[0].status_code == 503
    assert "the server is stopping" in found[0].text
    wait_until(lambda: not processes_with(marker))
