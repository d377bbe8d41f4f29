"""Runs the server on loopback, in a thread, for the tests that ask it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from localspec.server.app import Limits, Server
from localspec.server.guard import AccessRules
from localspec.server.running import Runner, listen
from localspec.server.served_models import ServedModel, ServedModels


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

    def chat(self, text: str = "Tell me a story about a fox.", **fields: object) -> dict:
        """The whole answer of Chat Completions to one message.

        By default it is greedy, in steps whose sizes no clock decides: they round alike.
        """
        messages = [{"role": "user", "content": text}]
        fields = {"messages": messages, "temperature": 0, "draft_tokens": 3, **fields}
        response = self.ask("/v1/chat/completions", **fields)
        assert response.status_code == 200, response.text
        return response.json()


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
) -> Iterator[Running]:
    """A server until the block is left. It loads its models when they are asked for."""
    models = ServedModels(
        [ServedModel(name, context_length) for name in presets],
        takes_any_name=takes_any_name,
    )
    server = Server(models, limits or Limits())
    app = server.app(AccessRules(keys=keys, hosts=hosts, origins=origins))
    is_ready = threading.Event()
    with listen("127.0.0.1", 0) as listening:
        runner = Runner(app, is_ready.set, server.stop)
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            assert is_ready.wait(60)
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
                yield Running(url, client, models, server)
        finally:
            runner.should_exit = True
            thread.join()
