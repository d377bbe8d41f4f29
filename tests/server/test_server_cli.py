"""`localspec serve` as a person starts it."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest

import inside
from command_line import run
from localspec.errors import EngineError
from localspec.server import served_models
from localspec.server.running import Runner, listen
from localspec.server.served_models import ServedModels
from server_runner import free_port, lines_until_ready, running_server
from waiting import wait_until


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("ends", [["SIGINT"], ["SIGINT", "SIGINT"], ["SIGKILL"]])
def test_it_says_where_it_listens_answers_and_stops(tmp_path, ends):
    """However it ends, its children end with it."""
    keys = tmp_path / "keys"
    keys.write_text("a-secret-key\n")
    command = [sys.executable, "-m", "localspec", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--api-key-file", keys],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        *told, line = lines_until_ready(process.stderr)
        url = line.split()[2]
        assert line == f"Listening on {url} with demo (context 2048). Ctrl-C stops.\n"
        assert f"  export OLLAMA_HOST={url} OLLAMA_API_KEY=YOUR_KEY\n" in told
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "odd": 1}
        with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
            assert client.post("/v1/chat/completions", json=body).status_code == 401
            key = {"authorization": "Bearer a-secret-key"}
            answer = client.post("/v1/chat/completions", json=body, headers=key)
        assert answer.status_code == 200
        assert "a-secret-key" not in str([p.info for p in psutil.process_iter(["cmdline"])])
        children = [child.pid for child in psutil.Process(process.pid).children()]
        for end in ends:
            process.send_signal(getattr(signal, end))
            time.sleep(0.05)  # the same signal twice at once is one
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (-signal.SIGKILL if ends == ["SIGKILL"] else 0)
    assert out == ""
    assert "a-secret-key" not in err
    assert "Traceback" not in err
    assert "ignores the field 'odd'" in err
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children))


@pytest.mark.process
def test_a_file_is_served_under_its_own_name(demo_target):
    """As everything that `localspec.load` takes."""
    with running_server(presets=[str(demo_target)]) as server:
        (listed,) = server.client.get("/v1/models").json()["data"]
        assert listed["id"] == demo_target.stem
        assert server.client.get("/v1/models/").json()["data"] == [listed]
        assert listed["max_model_len"] == 2048
        assert server.client.get(f"/v1/models/{listed['id']}").json() == listed
        shown = server.ask("/api/show", model=listed["id"]).json()
        assert shown["model_info"]["general.basename"] == demo_target.stem
        assert len(server.client.get("/api/tags").json()["models"][0]["digest"]) == 64
        assert server.chat(model=listed["id"], max_tokens=2)["model"] == demo_target.stem


@pytest.mark.parametrize(
    ("keys", "more", "expected"),
    [
        ([], [], (8_000_000_000, "")),
        (["one"], [], (8_000_000_000, "one")),
        (["one", "two"], [], (0, "one")),
        ([], ["--cache-disk", "1.5 GB"], (1_500_000_000, "")),
        ([], ["--cache-disk", "0"], (0, "")),
    ],
)
def test_what_may_be_kept_on_disk_and_whose_it_is(monkeypatch, tmp_path, keys, more, expected):
    """Another key finds nothing of the one before, and several share nothing."""
    found = []
    monkeypatch.setattr(
        ServedModels,
        "open_first",
        lambda models: found.append((models.all[0].cache_disk, models.all[0].remembers)),
    )
    monkeypatch.setattr(Runner, "run", lambda runner, **_: inside.say_ready(runner))
    path = tmp_path / "keys"
    path.write_text("".join(f"{key}\n" for key in keys))
    given = ["--api-key-file", str(path)] if keys else []
    result = run("serve", "--port", "0", *given, *more)
    assert result.exit_code == 0, result.output
    assert found == [(expected, len(keys) < 2)]
    told = " ".join(result.stderr.split())
    assert ("Caches of conversations are kept in" in told) is (expected[0] > 0)


@pytest.mark.parametrize("command", ["serve", "claude", "codex", "opencode"])
def test_packages_that_lack_are_asked_for_before_anything_starts(
    command, tmp_path, monkeypatch, own_config
):
    program = tmp_path / command
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("anyio", "uvicorn") else found(name, *rest),
    )
    result = run(command, "qwen2-7b", "--port", free_port())
    assert result.exit_code == 2, result.output
    assert "packages that the server needs are not installed: anyio, uvicorn" in result.stderr
    assert "pip install 'localspec[all]'" in result.stderr


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("demo --port TAKEN", 1, "cannot listen on"),
        ("demo --host 256.256.256.256x --api-key-file KEYS", 1, "cannot listen on"),
        ("--host 0.0.0.0", 2, "no API key is set"),
        ("--host 0.0.0.0 --api-key-file EMPTY", 2, "has no key"),
        ("--api-key-file absent", 2, "api-key-file"),
        ("--api-key-file KEYS --cache-disk 1GB", 2, "share no caches on disk"),
        ("--cache-disk 8XB", 2, "give one such as 8GB, 500MB or 0"),
        ("nothing", 2, "there is no preset 'nothing'"),
        ("", 2, "there is no preset 'usual'"),
        ("FILE COPY", 2, "2 models are called 'FILE'"),
    ],
)
def test_what_cannot_be_served(tmp_path, monkeypatch, demo_target, line, code, told):
    monkeypatch.setenv("LOCALSPEC_MODEL", "usual")
    copy = tmp_path / demo_target.name
    copy.write_bytes(demo_target.read_bytes())
    (tmp_path / "keys").write_text("one\ntwo\n")
    (tmp_path / "empty").write_text("\n \n")
    with listen("127.0.0.1", 0) as taken:
        names = {
            "TAKEN": taken.getsockname()[1],
            "KEYS": tmp_path / "keys",
            "EMPTY": tmp_path / "empty",
            "FILE": demo_target,
            "COPY": copy,
        }
        result = run("serve", *(names.get(word, word) for word in line.split()))
    assert result.exit_code == code, result.output
    assert told.replace("FILE", demo_target.stem) in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("named", "others"), [("x.gguf", None), ("none", "none"), (None, None)]
)
def test_a_projector_is_the_first_models_and_none_is_for_all(
    tmp_path, monkeypatch, named, others
):
    made = []

    def model(*_names, mmproj, **_options):
        made.append(mmproj)
        if len(made) == 3:
            raise EngineError("that is all")

    monkeypatch.setattr(served_models, "ServedModel", model)
    models = [str(tmp_path / f"{name}.gguf") for name in "abc"]
    for path in models:
        Path(path).touch()
    given = () if named is None else ("--mmproj", named)
    assert "that is all" in run("serve", *models, *given).output
    assert made == [named, others, others]


ALL_AGENTS = ("Claude Code:", "Codex, in ~/.codex/config.toml:", "opencode, in opencode.json:")
ALL_NEED = "Claude Code (25,000 tokens), Codex (12,600 tokens), opencode (11,200 tokens)"


@pytest.mark.parametrize(
    ("context", "trained", "shown", "said"),
    [
        (
            2048,
            2048,
            (),
            f"A larger context is needed for {ALL_NEED}: this model was trained for 2,048 "
            "tokens.",
        ),
        (
            8192,
            131_072,
            (),
            f"A larger context is needed for {ALL_NEED}: --ctx 32768.",
        ),
        (
            16_384,
            32_768,
            ALL_AGENTS[1:],
            "A larger context is needed for Claude Code (25,000 tokens): --ctx 32768.",
        ),
        (8192, 16_384, (), "opencode (11,200 tokens): --ctx 16384."),
        (32_768, 32_768, ALL_AGENTS, None),
    ],
)
def test_agents_settings_are_shown_where_the_context_suffices(
    monkeypatch, context, trained, shown, said
):
    monkeypatch.setattr(ServedModels, "open_first", lambda models: sized(models.all[0]))
    monkeypatch.setattr(Runner, "run", lambda runner, **_: inside.say_ready(runner))

    def sized(model):
        model.context_length = context
        model.num_trained = trained

    result = run("serve", "--port", "0")
    lines = result.stderr.splitlines()
    assert [line for line in lines if line in ALL_AGENTS] == list(shown)
    told = [line for line in lines if line.startswith("A larger context")]
    if said is None:
        assert told == []
    else:
        assert [line[-len(said) :] for line in told] == [said]
    assert lines[-1].startswith("Listening on http://127.0.0.1:")


@pytest.mark.parametrize(
    ("slots", "is_remote", "said"),
    [
        (4, False, "Answers at once: 4, each with the whole context."),
        (2, False, "not 4: more caches of 32768 tokens do not fit; use a smaller --ctx."),
        (1, True, "not 4: a model on RPC servers gives one answer at a time."),
    ],
)
def test_how_many_are_answered_at_once_is_said_with_the_reason(slots, is_remote, said):
    model = SimpleNamespace(
        num_slots=slots, parallel=4, context_length=32768, is_on_servers=is_remote
    )
    assert inside.answers_at_once(model).endswith(said)
