"""Runs the server on loopback, in a thread, for the tests that ask it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
import pytest

from localspec.engine.open_models import CacheDisk
from localspec.server.app import Limits, Server
from localspec.server.guard import AccessRules
from localspec.server.own_server import announced
from localspec.server.running import Runner, listen
from localspec.server.served_models import ServedEmbedder, ServedModel, ServedModels
from localspec.tool_servers.servers import McpServers
from waiting import wait_until


@dataclass
class Running:
    """A server that answers at `url`, and a client that asks it."""

    url: str
    client: httpx.Client
    models: ServedModels
    server: Server

    def ask(self, path: str, **fields: object) -> httpx.Response:
        """POST the fields as JSON."""
        return self.client.post(path, json=fields)

    def forget(self) -> None:
        """What was asked before, once all of it has ended."""
        wait_until(lambda: not any(model.num_users for model in self.models.all))
        for model in self.models.all:
            model.keep_s = None
            if model.engine is not None:
                model.engine.free_kept()

    def stream(self, path: str, **fields: object) -> list[dict]:
        """The objects in a stream's events."""
        with self.client.stream("POST", path, json={"stream": True, **fields}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            data = [line.removeprefix("data: ") for line in response.iter_lines()]
        return [json.loads(each) for each in data if each.startswith("{")]

    def events(self, path: str, **fields: object) -> list[dict]:
        """What the events of a stream say, each of which has its type as its name."""
        events = []
        with self.client.stream("POST", path, json={"stream": True, **fields}) as response:
            assert response.status_code == 200, response.read()
            text = response.read().decode()
        for block in text.strip().split("\n\n"):
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        return events

    def chat(self, text: str = "Tell me a story about a fox.", **fields: object) -> dict:
        """The whole answer of Chat Completions to one message.

        By default it is greedy, in steps whose sizes no clock decides: they round alike.
        """
        messages = [{"role": "user", "content": text}]
        fields = {"messages": messages, "temperature": 0, "draft_tokens": 3, **fields}
        response = self.ask("/v1/chat/completions", **fields)
        assert response.status_code == 200, response.text
        return response.json()


def lines_until_ready(stderr: IO[str]) -> list[str]:
    """The lines of `localspec serve` up to the one that says where it listens."""
    lines: list[str] = []
    while not any(line.startswith("Listening on ") for line in lines):
        lines.append(stderr.readline())
        assert lines[-1], lines  # it has ended
    return lines


def free_port() -> int:
    """A port of this machine at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextlib.contextmanager
def presets_of(folder: Path, **targets: tuple[Path, int]) -> Iterator[None]:
    """Presets of one's own within the block: by name, the file and the context's length."""
    path = folder / "localspec" / "models.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "".join(
            f'[{name}]\ndescription = "{name}"\ncontext_length = {context_length}\n'
            f'target.path = "{target.as_posix()}"\n'
            for name, (target, context_length) in targets.items()
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        yield


@contextlib.contextmanager
def running_server(
    *,
    presets: Sequence[str] = ("demo",),
    context_length: int | None = None,
    takes_any_name: bool = True,
    keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    limits: Limits | None = None,
    has_page: bool = True,
    embedder: str | None = None,
    parallel: int = 1,
    exact: bool | None = None,
    cache_disk: CacheDisk | None = None,
    tool_servers: McpServers | None = None,
) -> Iterator[Running]:
    """A server until the block is left. It loads its models when they are asked for."""
    models = ServedModels(
        [ServedModel(name, context_length, exact=exact) for name in presets],
        takes_any_name=takes_any_name,
        embedder=None if embedder is None else ServedEmbedder(embedder),
    )
    for model in models.all:
        model.parallel = parallel
        model.cache_disk = cache_disk or CacheDisk(0)
    is_ready = threading.Event()
    with contextlib.ExitStack() as until_end:
        listening = until_end.enter_context(listen("127.0.0.1", 0))
        port = listening.getsockname()[1]
        own_key = None if keys else until_end.enter_context(announced(port))
        server = Server(
            models,
            limits or Limits(),
            has_page=has_page,
            own_key=own_key,
            tool_servers=tool_servers,
        )
        app = server.app(AccessRules(keys=keys, hosts=hosts, origins=origins))
        runner = Runner(app, is_ready.set, server.stop)
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            assert is_ready.wait(60)
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
                yield Running(url, client, models, server)
        finally:
            runner.should_exit = True
            thread.join()
