"""Every example does what it says, on the real demo pair."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import httpx
import pytest

import inside
import localspec
from call_families import write_calling_model
from standin_hub import StandinHub
from waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.process
def test_a_chat_on_a_terminal_in_ten_lines(tmp_path):
    source = (EXAMPLES / "terminal.py").read_text("utf-8")
    assert len(source.splitlines()) <= 10
    shutil.copy(EXAMPLES / "terminal.py", tmp_path)  # not beside the checkout's package
    done = subprocess.run(
        [sys.executable, "terminal.py"],
        cwd=tmp_path, input="Hello!\nTell me a story.\n\n", capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("> ") == 3
    assert len(done.stdout) > 50


@pytest.mark.process
@pytest.mark.parametrize(
    "name", ["asyncio_app", "batch", "download_bar", "json_class", "tools"]
)
def test_an_example_without_its_arguments_says_how_it_is_used(name):
    path = str(EXAMPLES / f"{name}.py")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"usage: python examples/{name}.py ")


@pytest.fixture
def engine(exact_target: Path, demo_draft: Path) -> Iterator[localspec.Engine]:
    """Demo pair, greedy and exact: its texts are the same however decodes are joined."""
    with localspec.load(exact_target, draft=demo_draft, exact=True, parallel=4) as engine:
        engine.sampling = replace(engine.sampling, temperature=0.0)
        yield engine


QUESTIONS = ("Write a haiku about the sea.", "Another one!")


TOO_LONG, REASON = "word " * 3000, "the context holds"


def answers_of(engine: localspec.Engine) -> list[str]:
    """What a visitor gets who is alone."""
    chat = engine.chat(system="You are terse.")
    return [chat.send(question).reply().text for question in QUESTIONS]


def test_the_asyncio_application_serves_several_at_once(engine):
    """Each has its own conversation; one hangs up in the middle of an answer.

    The answers have several lines of their own, and each comes as one.
    """
    module = load_example("asyncio_app")
    expected = answers_of(engine)

    async def ask(port: int) -> list[str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answers = []
        for question in QUESTIONS:
            writer.write(f"{question}\n".encode())
            answers.append((await reader.readline()).decode())
        writer.close()
        return answers

    async def hang_up(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"Tell me a long story.\n")
        await reader.read(1)
        writer.close()

    async def everybody() -> list[object]:
        server = await asyncio.start_server(module.Server(engine).serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await asyncio.gather(ask(port), hang_up(port), ask(port))

    first, _, second = asyncio.run(everybody())
    assert all("\n" in answer for answer in expected)
    assert first == second == [answer.replace("\n", " ") + "\n" for answer in expected]
    assert engine.generate_raw("Hi", max_tokens=2).reply().token_ids


def test_the_flask_application_serves_several_threads(engine):
    """Each visitor has a conversation; one hangs up in the middle of an answer."""
    pytest.importorskip("flask", reason="flask is not installed")
    app = load_example("flask_app").make_app(engine)
    expected = answers_of(engine)

    def ask(visitor: str) -> list[str]:
        client = app.test_client()
        return [client.post(f"/{visitor}", data=each).text for each in QUESTIONS]

    left = app.test_client().post("/eve", data="Tell me a long story.", buffered=False)
    assert next(left.iter_encoded())
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(ask, visitor) for visitor in ("anna", "ben")]
        left.close()
        assert [each.result() for each in waiting] == [expected, expected]
    client = app.test_client()
    refused = client.post("/anna", data=TOO_LONG)
    assert (refused.status_code, REASON in refused.text) == (400, True)
    engine.close()
    gone = client.post("/anna", data="Hello!")
    assert (gone.status_code, gone.text) == (503, "the engine is closed")


def test_the_starlette_application_serves_several_tasks(engine):
    """Each has a conversation; one hangs up in the middle of an answer."""
    pytest.importorskip("starlette", reason="starlette is not installed")
    app = load_example("starlette_app").make_app(engine)
    expected = answers_of(engine)

    def client() -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here")

    async def ask(visitor: str) -> list[str]:
        async with client() as one:
            return [(await one.post(visitor, content=each)).text for each in QUESTIONS]

    async def everybody() -> list[list[str]]:
        async with client() as one:
            left = asyncio.create_task(one.post("eve", content="Tell me a long story."))
            await asyncio.to_thread(wait_until, lambda: inside.num_in_line(engine) == 1)
            left.cancel()  # as Starlette does where a client has gone
            found = await asyncio.gather(ask("anna"), ask("ben"))
        assert left.cancelled()
        return found

    assert asyncio.run(everybody()) == [expected, expected]
    assert inside.num_in_line(engine) == 0

    async def post(question: str) -> tuple[int, str]:
        async with client() as one:
            response = await one.post("anna", content=question)
            return response.status_code, response.text

    status, reason = asyncio.run(post(TOO_LONG))
    assert (status, REASON in reason) == (400, True)
    engine.close()
    assert asyncio.run(post("Hello!")) == (503, "the engine is closed")


def test_a_batch_goes_on_where_it_was(tmp_path, exact_target, demo_draft, monkeypatch):
    """With exact settings, since the second run has other decodes."""
    files = {"target": exact_target, "draft": demo_draft}
    load = functools.partial(localspec.load, **files, exact=True)
    monkeypatch.setattr(localspec, "load", load)
    module = load_example("batch")
    questions, answers = tmp_path / "questions.txt", tmp_path / "answers.jsonl"
    many = "".join(f"What is {number} times 8?\n" for number in range(2, 49))
    questions.write_text(f"Hello!\nTell me a story.\n\nWhat is 7 times 8?\n{many}")
    module.main(questions, answers)
    whole = answers.read_text()
    results = [json.loads(line) for line in whole.splitlines()]
    asked = [line for line in questions.read_text().splitlines() if line]
    assert [result["question"] for result in results] == asked
    assert len(results) == 50
    assert "56" in results[2]["answer"]
    answers.write_text("".join(whole.splitlines(keepends=True)[:44]))
    module.main(questions, answers)
    again = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [r["answer"] for r in again] == [r["answer"] for r in results]


def test_json_becomes_an_object_of_a_class(engine):
    pytest.importorskip("pydantic", reason="pydantic is not installed")
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    module = load_example("json_class")
    animal = module.read_animal(engine, "Anna is a red fox of three years.")
    assert isinstance(animal, module.Animal)
    assert animal == module.read_animal(engine, "Anna is a red fox of three years.")


@pytest.mark.parametrize("agrees", [True, False])
def test_a_model_calls_functions_that_a_person_allows(agrees, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pydantic", reason="pydantic is not installed")
    call = ["<tool_call>", '\n{"name": "today", "arguments": {}}\n', "</tool_call>"]
    path = write_calling_model(tmp_path / "model.gguf", "Qwen", call)
    module = load_example("tools")
    monkeypatch.setattr(module, "TOOLS", [module.today])  # the model can call no other
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or "ny"[agrees])
    with localspec.load(target=path) as engine:
        engine.sampling = replace(engine.sampling, temperature=0.0)
        module.main(engine, "What day is it?")
    assert asked == ["Run today {}? [y/n] "]
    result, answer = capsys.readouterr().out.split("-> ")[1].splitlines()
    assert answer == "Done."
    today = str(dt.date.today())
    assert result == (today if agrees else "[The user has refused this call.]")


def test_two_chats_take_turns_in_threads(engine):
    module = load_example("two_chats")
    expected = [
        module.talk(engine.chat(system=f"You are {how}.")) for how in ("terse", "friendly")
    ]
    assert module.main(engine) == expected


def test_the_download_draws_its_bars(hub: StandinHub, capsys):
    load_example("download_bar").main("qwen2-7b")
    lines = capsys.readouterr().out.replace("\r", "\n").splitlines()
    for name in ("qwen2-7b-instruct", "qwen2-0_5b-instruct", "loading"):
        bars = [line for line in lines if line.startswith(name)]
        assert bars[-1].endswith(f"[{'#' * 40}] 100%")


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The display that is there, or one of Xvfb's."""
    if sys.platform != "linux" or os.environ.get("DISPLAY"):
        yield
        return
    xvfb = shutil.which("Xvfb")
    if xvfb is None:
        pytest.skip("Xvfb is not installed")
    ours, theirs = os.pipe()
    server = subprocess.Popen(
        [xvfb, "-displayfd", str(theirs)], pass_fds=[theirs], stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    with open(ours) as number:
        monkeypatch.setenv("DISPLAY", f":{number.readline().strip()}")
    yield
    server.terminate()
    server.wait()


@pytest.mark.process
@pytest.mark.usefixtures("display")
def test_the_tk_window_stays_alive_and_stops(engine):
    tkinter = pytest.importorskip("tkinter", reason="tkinter is not installed")
    root = tkinter.Tk()
    module = load_example("tk_window")
    window = module.ChatWindow(root, engine)

    def run(question: str, stop_at: int) -> str:
        before = len(window.transcript.get("1.0", "end"))
        window.entry.insert(0, question)
        window.send.invoke()
        assert window.is_answering()
        until = time.monotonic() + 60
        while window.is_answering() and time.monotonic() < until:
            root.update()
            if len(window.transcript.get("1.0", "end")) - before > stop_at:
                window.stop.invoke()
        assert not window.is_answering()
        return window.transcript.get("1.0", "end")[before:]

    whole = run("Tell me a story about a fox.", 10**9)
    assert whole.strip().startswith("> Tell me a story about a fox.")
    assert len(whole) > 60
    stopped = run("Tell me a very long story about an owl.", 60)
    assert len(stopped) > 60
    window.entry.insert(0, "And another one!")
    window.ask()
    window.close()
    assert engine.generate_raw("Hi", max_tokens=2).reply().token_ids
    root.destroy()


def test_the_qt_window_stays_alive_and_stops(engine, monkeypatch):
    pytest.importorskip(
        "PySide6.QtWidgets", reason="PySide6 is not installed", exc_type=ImportError
    )
    QtCore = pytest.importorskip("PySide6.QtCore")
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    module = load_example("pyside_window")
    application = module.QApplication([])
    window = module.ChatWindow(engine)
    window.show()

    def wait_until(is_over: Callable[[], bool]) -> None:
        loop, timer = QtCore.QEventLoop(), QtCore.QTimer()
        timer.timeout.connect(lambda: loop.quit() if is_over() else None)
        timer.start(10)
        loop.exec()

    def run(question: str, stop_at: int) -> str:
        before = len(window.transcript.toPlainText())

        def stop_or_done(num_shown: int) -> bool:
            if num_shown > stop_at:
                window.stop.click()
            return not window.stop.isEnabled()

        window.entry.setText(question)
        window.send.click()
        assert window.stop.isEnabled()
        wait_until(lambda: stop_or_done(len(window.transcript.toPlainText()) - before))
        assert window.send.isEnabled()
        return window.transcript.toPlainText()[before:]

    whole = run("Tell me a story about a fox.", 10**9)
    assert whole.strip().startswith("> Tell me a story about a fox.")
    assert len(whole) > 60
    stopped = run("Tell me a very long story about an owl.", 60)
    assert len(stopped) > 60
    window.entry.setText("And another one!")
    window.entry.returnPressed.emit()
    window.close()
    assert engine.generate_raw("Hi", max_tokens=2).reply().token_ids
    application.shutdown()
