"""`localspec claude`, `codex` and `opencode`: a coding agent that uses a local model.

The agent gets the settings that `localspec serve` prints, for this run alone: nothing is
written into its files. A server of this user that runs already is used; otherwise one is
started, and ended after the agent. Known keys of clouds are removed from the agent's
environment.

An agent shows nothing while its first prompt is read, which can take minutes. So the time that
this takes here, and the server's log, are shown before the agent starts.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from localspec.cli.agents import AGENT_CONTEXT, AGENTS, Agent, ServerFound, require_context
from localspec.cli.cloud_keys import CLOUD_KEYS
from localspec.cli.commands.serve import DEFAULT_PORT, require_server, usual_name
from localspec.cli.download_dialogue import offer_download
from localspec.cli.help import Command
from localspec.cli.launch_log import log_of_running, new_log
from localspec.cli.progress_line import waiting
from localspec.cli.screen import duration, fitted, say
from localspec.cli.shared_options import model_argument, shared
from localspec.cli.signal_handlers import leave_on_termination
from localspec.errors import LocalspecError, OptionError
from localspec.presets.model_names import resolve
from localspec.server.own_server import (
    HOST,
    MODELS_ENDED,
    PROOF_PATH,
    ServerKey,
    new_nonce,
    read_key,
)

_LOOK_S = 0.2  # between two looks whether the server is ready
_MOST_UNKNOWN = 50  # looks that may find a server which does not show whose it is
_CONNECT_S = 5.0  # a server that takes longer accepts no connection
_END_S = 60.0  # for the server to end
_MOST_ANSWERED = 16_000_000  # bytes of a list of models
# These bytes as hex digits make a prompt of about 110 tokens. The server would keep the cache
# of a prompt of 128 tokens on disk.
_MEASURED_BYTES = 60
_MEASURE_S = 60.0  # for such a prompt
_WARM_S = 2.0  # for a prompt that takes longer, loading kernels does not matter

_Found = TypeVar("_Found")


class _Server(NamedTuple):
    """The server that an agent uses."""

    found: ServerFound
    port: int

    log: Path | None
    """Its log; None if it was not started for an agent, and logs where it was started."""

    num_logged: int
    """The bytes that the log has when the agent is started."""

    @classmethod
    def ready(cls, found: ServerFound, port: int, log: Path | None) -> _Server:
        """A server that answers."""
        num_logged = 0
        if log is not None:
            num_logged = log.stat().st_size
        return cls(found, port, log, num_logged)

    @property
    def has_crashed(self) -> bool:
        """Whether the log says that the process of the models ended since then."""
        if self.log is None:
            return False
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self.num_logged)
            return MODELS_ENDED.encode() in log.read()
        return False  # the user has deleted it


class _LaunchCommand(Command):
    """A command that passes the arguments after -- to a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        num_own = len(args)
        if "--" in args:
            num_own = args.index("--")
        ctx.obj = args[num_own + 1 :]
        return super().parse_args(ctx, args[:num_own])


def _launcher(program: str, agent: Agent) -> click.Command:
    @click.command(
        cls=_LaunchCommand,
        name=program,
        help=f"""Start {agent.title} with a model of this machine.

        MODEL: as for serve. If a server of yours is running and needs no API key, it is
        used; otherwise one is started, and stopped when {agent.title} exits. {agent.title} gets
        no cloud keys from the environment. Arguments after -- go to {agent.title}.

        \b
            localspec {program} qwen2.5-7b
            localspec {program} -- --help
        """,
    )
    @model_argument
    @shared(
        "context_length",
        help=f"Context in tokens. [default: {AGENT_CONTEXT}; less if MODEL was trained for "
        "less, more if its preset has more]",
    )
    @click.option(
        "--port",
        type=click.IntRange(1, 65535),
        default=DEFAULT_PORT,
        show_default=True,
        help="The server's port. If another program uses it, a server is started at a free "
        "port.",
    )
    @click.pass_obj
    def launch(
        more: Sequence[str],
        *,
        model: str | None,
        context_length: int | None,
        port: int,
    ) -> None:
        path = shutil.which(program)
        if path is None:
            hint = f"Install it: npm install -g {agent.package}"
            raise OptionError(f"{agent.title} is not installed", hint)
        with _server(agent, model, context_length, port) as server:
            _say_what_to_expect(agent, server)
            arguments, variables = agent.settings_for(server.found)
            code = _run([path, *arguments, *more], variables)
            _say_if_it_failed(agent, server)
        raise click.exceptions.Exit(code)

    return launch


@contextlib.contextmanager
def _server(
    agent: Agent,
    model: str | None,
    context_length: int | None,
    port: int,
) -> Iterator[_Server]:
    """This user's server at that port; one that had to be started is ended at the exit.

    Raises OptionError if its context is too small for the agent.
    """
    with waiting(lambda: f"Waiting for the server at port {port} …"):
        listed = _models_at(port)
    if listed is not None:
        chosen = _chosen(listed, model, context_length, port)
        stop = f"Stop the server at port {port}. "
        require_context(agent, chosen.context, chosen.num_trained, stop)
        yield _Server.ready(chosen, port, log_of_running(port))
        return
    require_server()  # before a download
    if _listens(port):
        stranger = f"{HOST}:{port}"
        port = _free_port()
        click.echo(
            f"The program listening at {stranger} is not a localspec server of yours, or needs "
            f"a key. Another server is started at port {port}.",
            err=True,
        )
    name = model or usual_name()
    offer_download(name)
    context = _context_for(agent, name, context_length)
    words = ["serve", name, "--port", str(port), "--ctx", str(context)]
    with _started(words, port) as (process, log):
        with waiting(lambda: "Starting the server …"):
            listed = _models_once_ready(process, log, port)
        yield _Server.ready(_chosen(listed, None, None, port), port, log)


def _context_for(agent: Agent, name: str, wanted: int | None) -> int:
    """The tokens of context with which a server of this model is started for an agent.

    If none is wanted: AGENT_CONTEXT; less if the model was trained for less, more if its preset
    has more. Raises OptionError if that is too small for the agent, and as `ServedModel`.
    """
    from localspec.server.served_models import ServedModel

    model = ServedModel(name, wanted)
    context = model.context_length
    if wanted is None:
        context = max(context, min(model.num_trained, AGENT_CONTEXT))
    require_context(
        agent,
        context,
        model.num_trained,
        first_step="",
    )
    return context


def _models_once_ready(
    process: subprocess.Popen[bytes],
    log: Path,
    port: int,
) -> list[dict[str, Any]]:
    """The models of the server that was started. Raises LocalspecError if it does not start."""
    num_unknown = 0
    while True:
        listed = _models_at(port)
        if listed is not None:
            return listed
        # Our server writes its key as soon as it listens. Either it cannot, or another program
        # has its port.
        if _listens(port):
            num_unknown += 1
        if process.poll() is not None or num_unknown > _MOST_UNKNOWN:
            said = log.read_text("utf-8", errors="replace").strip()
            raise LocalspecError(f"the server did not start:\n{said}")
        time.sleep(_LOOK_S)


def _models_at(port: int) -> list[dict[str, Any]] | None:
    """The models of this user's server at that port that answer; None without such a server.

    A server that loads its first model listens, and answers once the model is loaded.
    """
    return _of_own_server(port, _answering_models)


def _answering_models(connection: http.client.HTTPConnection) -> list[dict[str, Any]] | None:
    """A server's models that answer; None without any. Raises what `_request_json` does."""
    listed = _request_json(connection, "/v1/models")["data"]
    # A model without a length is for vectors.
    return [model for model in listed if "max_model_len" in model] or None


def _of_own_server(
    port: int,
    ask: Callable[[http.client.HTTPConnection], _Found | None],
) -> _Found | None:
    """The answer of this user's server at that port; None without such a server.

    A program that cannot show that it is this user's is asked nothing else.

    Args:
        port: the server's port.
        ask: asks it. It may raise what `_request_json` raises; the answer is None then, too.
    """
    key = read_key(port)
    if key is None:
        return None
    connection = http.client.HTTPConnection(HOST, port)
    try:
        connection.connect()
        connection.auto_open = 0  # a second connection could lead to another program
        if _is_of_this_user(connection, key):
            return ask(connection)
        return None
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
        return None
    finally:
        connection.close()


def _is_of_this_user(connection: http.client.HTTPConnection, key: ServerKey) -> bool:
    """Whether the program that listens there knows the key.

    Raises what `_request_json` raises.
    """
    nonce = new_nonce()
    answer = _request_json(connection, f"{PROOF_PATH}?nonce={nonce}")
    proof = str(answer["proof"])
    return hmac.compare_digest(proof.encode(), key.proof(nonce).encode())


def _request_json(
    connection: http.client.HTTPConnection,
    path: str,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The JSON at that path.

    Args:
        connection: to the server.
        path: the path of the request.
        body: the body of a POST; None for a GET.

    Raises:
        OSError: the server cannot be reached.
        HTTPException: the answer is no HTTP.
        ValueError: the answer is no JSON.
    """
    if body is None:
        connection.request("GET", path)
    else:
        connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    content: dict[str, Any] = json.loads(response.read(_MOST_ANSWERED))
    return content


def _listens(port: int) -> bool:
    """Whether a program listens there."""
    try:
        socket.create_connection((HOST, port), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    """A port at which no program listens now."""
    with socket.create_server((HOST, 0)) as listening:
        return int(listening.getsockname()[1])


def _chosen(
    listed: list[dict[str, Any]],
    model: str | None,
    context_length: int | None,
    port: int,
) -> ServerFound:
    """The model that is asked for, or else the first. Raises OptionError if it is not there."""
    chosen = listed[0]
    if model:
        names = _served_names(model)
        matching = [served for served in listed if served["id"] in names]
        if not matching:
            served_names = ", ".join(str(served["id"]) for served in listed)
            raise OptionError(
                f"the server at port {port} serves {served_names}, not {model}",
                "Stop it, name a model that it serves, or start another server: --port N.",
            )
        chosen = matching[0]
    if sys.platform == "win32" and set('"%&|<>^!\r\n') & set(str(chosen["id"])):
        raise OptionError(  # a shell starts programs of npm there
            f"the model's name {chosen['id']!r} has characters that the Windows shell "
            "interprets",
            "Give the model another name: localspec models alias NAME MODEL",
        )
    context = int(chosen["max_model_len"])
    if context_length not in (None, context):
        raise OptionError(
            f"the server at port {port} has a context of {context}, not {context_length}",
            "Stop it, leave out --ctx, or start another server: --port N.",
        )
    num_trained = int(chosen["meta"]["n_ctx_train"])
    return ServerFound(f"http://{HOST}:{port}", str(chosen["id"]), context, num_trained)


def _served_names(model: str) -> set[str]:
    """Names that a server may have for a model: the given name, or that of its file."""
    names = {model, Path(model).stem}
    with contextlib.suppress(LocalspecError):  # perhaps only the server knows it
        meant = resolve(model).name
        names |= {meant, Path(meant).stem}
    return names


@contextlib.contextmanager
def _started(words: Sequence[str], port: int) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a server, and end it at the exit. Yields its process and its log.

    It is in a process group of its own, so that Ctrl-C reaches only the agent. A signal to end
    raises click.Abort. Raises LocalspecError if there can be no log.
    """
    try:
        path, log = new_log(port)
    except OSError as error:
        raise LocalspecError(
            f"the server's log cannot be written: {error}",
            "Make the folder writable, or free space on its disk.",
        ) from error
    with log:
        process = subprocess.Popen(
            [sys.executable, "-m", "localspec", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # of Windows
        )

        def leave(_number: int) -> None:
            raise click.Abort

        try:
            with leave_on_termination(leave):
                yield process, path
        finally:
            ending = signal.SIGINT
            if sys.platform == "win32":
                ending = signal.SIGTERM
            process.send_signal(ending)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _say_what_to_expect(agent: Agent, server: _Server) -> None:
    """Say how long the agent's first prompt takes to read, and where its progress is shown."""
    model = server.found.model
    num_tokens = agent.first_prompt
    prompt = f"the first prompt of {agent.title}, about {num_tokens:,} tokens"
    with waiting(lambda: f"Measuring how fast {model} reads a prompt …"):
        speed = _of_own_server(server.port, functools.partial(_tokens_per_s, model))
    if speed is None:
        say(f"It is not known yet how fast {model} reads {prompt}.")
    else:
        rounded = float(f"{speed:.2g}")
        took = duration(num_tokens / speed)
        text = (
            f"{model} reads about {rounded:,g} tokens/s here: {prompt}, takes {took} unless it "
            "is cached. Later prompts are read only from the first difference on."
        )
        say(fitted(text, err=True))
    if server.log is None:
        say(f"The server at port {server.port} logs the progress where it was started.")
    else:
        say(f"The server logs the progress: {server.log}")


def _tokens_per_s(model: str, connection: http.client.HTTPConnection) -> float | None:
    """The tokens of a prompt that the model reads per second; None if that is not known.

    The server knows how fast it has read the last long prompt. If it has read none, a short
    prompt is measured. Raises what `_request_json` raises.
    """
    query = urllib.parse.urlencode({"model": model})
    props = _request_json(connection, f"/props?{query}")
    if props["prompt_per_second"] is not None:
        return float(props["prompt_per_second"])
    connection.sock.settimeout(_MEASURE_S)
    timings = _timed_prompt(model, connection)
    if timings["prompt_ms"] < 1000 * _WARM_S:  # perhaps most of it was loading kernels
        timings = _timed_prompt(model, connection)
    return float(timings["prompt_per_second"]) or None


def _timed_prompt(model: str, connection: http.client.HTTPConnection) -> dict[str, Any]:
    """The timings of a short prompt, in llama-server's fields.

    Raises what `_request_json` raises.
    """
    text = secrets.token_hex(_MEASURED_BYTES)  # random: none of it is cached
    body = {"model": model, "prompt": text, "n_predict": 0}
    timings: dict[str, Any] = _request_json(connection, "/completion", body)["timings"]
    return timings


def _say_if_it_failed(agent: Agent, server: _Server) -> None:
    """Say so if the server failed while the agent ran. The agent may not have shown it."""
    where = ""
    if server.log is not None:
        where = f" Its log: {server.log}"
    if not _listens(server.port):
        say(f"The server ended while {agent.title} ran.{where}")
    elif server.has_crashed:
        say(f"The server's process with the model crashed while {agent.title} ran.{where}")


def _run(command: Sequence[str], variables: dict[str, str | None]) -> int:
    """Run a program to its end, in this terminal. Returns its exit code.

    Args:
        command: the program and its arguments.
        variables: see `LaunchSettings`.
    """
    environment = dict(os.environ)
    for name in CLOUD_KEYS:
        environment.pop(name, None)
    for name, value in variables.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    # The program decides what Ctrl-C means: this process does nothing, and the program does
    # not inherit that.
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        with subprocess.Popen(command, env=environment) as process:
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                raise
    finally:
        signal.signal(signal.SIGINT, before)
    if code >= 0:
        return code
    return 128 - code


LAUNCHERS = [_launcher(program, agent) for program, agent in AGENTS.items()]
