"""`localspec claude`, `codex` and `opencode`: a coding agent that uses a local model.

The agent gets the settings that `localspec serve` prints, for this run alone: nothing is
written into its files. If a server of this user is running already, it is used; otherwise one
is started, and ended after the agent. Known keys of clouds are removed from the agent's
environment.

An agent shows nothing while the model reads its first prompt, which can take minutes. So this
time and the path of the server's log are shown before the agent starts.
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

from localspec.cli.agents import AGENT_CONTEXT, AGENTS, Agent, ServerForAgent, require_context
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

_POLL_S = 0.2  # between two checks whether the server is ready
_MAX_UNKNOWN = 50  # checks that may find a program which does not prove that it is our server
_CONNECT_S = 5.0  # a program that takes longer to accept a connection does not listen
_END_S = 60.0  # for the server to end
_MAX_ANSWER_BYTES = 16_000_000  # of a JSON answer of the server
# This number of random bytes, as hex digits, makes a prompt of about 110 tokens. The server
# would keep the cache of a prompt of 128 tokens or more on disk.
_MEASURED_BYTES = 60
_MEASURE_S = 60.0  # the time limit for such a prompt
_SLOW_PROMPT_S = 2.0  # in a prompt that takes longer, the time of loading kernels hardly counts
# On Windows a shell starts programs of npm, and interprets these characters.
_WINDOWS_SHELL_SIGNS = frozenset('"%&|<>^!\r\n')

_Answer = TypeVar("_Answer")


class _Server(NamedTuple):
    """The server that an agent uses."""

    for_agent: ServerForAgent
    """What the agent has to know of it."""

    port: int

    log: Path | None
    """Its log; None if the user started it, in a terminal that shows the log."""

    num_logged: int
    """The size of the log in bytes before the agent starts."""

    @classmethod
    def ready(cls, for_agent: ServerForAgent, port: int, log: Path | None) -> _Server:
        """A server that answers, with the present size of its log."""
        num_logged = 0
        if log is not None:
            num_logged = log.stat().st_size
        return cls(for_agent, port, log, num_logged)

    @property
    def has_crashed(self) -> bool:
        """Whether the process with the models has ended since the agent started.

        It is read from the log; False without a log.
        """
        if self.log is None:
            return False
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self.num_logged)
            return MODELS_ENDED.encode() in log.read()
        return False  # the user has deleted the log


class _LaunchCommand(Command):
    """A command that passes the arguments after "--" to a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before "--"; those after it become `ctx.obj`."""
        if "--" not in args:
            ctx.obj = []
            return super().parse_args(ctx, args)
        end = args.index("--")
        ctx.obj = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


def _launcher(program: str, agent: Agent) -> click.Command:
    """The command of localspec that starts an agent; it has the name of the agent's program."""

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
        agent_arguments: Sequence[str],
        *,
        model: str | None,
        context_length: int | None,
        port: int,
    ) -> None:
        """Run the agent with a server, and exit with its exit code."""
        path = shutil.which(program)
        if path is None:
            hint = f"Install it: npm install -g {agent.package}"
            raise OptionError(f"{agent.title} is not installed", hint)
        with _server_for(agent, model, context_length, port) as server:
            _say_reading_time(agent, server)
            arguments, variables = agent.settings_for(server.for_agent)
            code = _run([path, *arguments, *agent_arguments], variables)
            _say_if_server_failed(agent, server)
        raise click.exceptions.Exit(code)

    return launch


@contextlib.contextmanager
def _server_for(
    agent: Agent,
    model: str | None,
    context_length: int | None,
    port: int,
) -> Iterator[_Server]:
    """Yield a server of this user: a running one, or one that is ended after the body.

    Raises OptionError if the model's context is too small for the agent.

    Args:
        agent: the agent that is to use the server.
        model: the model's name; None for any that a running server has, or for the usual model.
        context_length: the context in tokens; None for the server's, or for the default.
        port: the port of a running server. If another program uses it, the new server gets a
            free port.
    """
    with waiting(lambda: f"Waiting for the server at port {port} …"):
        listed = _models_at(port)
    if listed is not None:
        chosen = _choose_model(listed, model, context_length, port)
        first_step = f"Stop the server at port {port}. "
        require_context(agent, chosen.context, chosen.num_trained, first_step)
        yield _Server.ready(chosen, port, log_of_running(port))
        return
    require_server()  # before a download
    if _is_port_in_use(port):
        used_address = f"{HOST}:{port}"
        port = _free_port()
        click.echo(
            f"The program listening at {used_address} is not a localspec server of yours, or "
            f"needs a key. Another server is started at port {port}.",
            err=True,
        )
    name = model or usual_name()
    offer_download(name)
    context = _context_to_start(agent, name, context_length)
    arguments = ["serve", name, "--port", str(port), "--ctx", str(context)]
    with _start_server(arguments, port) as (process, log):
        with waiting(lambda: "Starting the server …"):
            listed = _models_once_ready(process, log, port)
        chosen = _choose_model(listed, None, None, port)
        yield _Server.ready(chosen, port, log)


def _context_to_start(agent: Agent, name: str, context_length: int | None) -> int:
    """The context in tokens with which a server is started for an agent.

    Raises OptionError if it is too small for the agent, and what `ServedModel` raises.

    Args:
        agent: the agent.
        name: the model's name.
        context_length: the context that the user wants. None stands for AGENT_CONTEXT, or less
            if the model was trained for less, or more if its preset has more.
    """
    from localspec.server.served_models import ServedModel

    model = ServedModel(name, context_length)
    context = model.context_length
    if context_length is None:
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
    """Wait for a server that was started, and return its models, as /v1/models lists them.

    Raises LocalspecError, with the log, if the server does not start.
    """
    num_unknown = 0
    while True:
        listed = _models_at(port)
        if listed is not None:
            return listed
        # Our server writes its key file as soon as it listens. If a program listens and has no
        # key file, the server cannot write one, or another program uses the port.
        if _is_port_in_use(port):
            num_unknown += 1
        if process.poll() is not None or num_unknown > _MAX_UNKNOWN:
            log_text = log.read_text("utf-8", errors="replace").strip()
            raise LocalspecError(f"the server did not start:\n{log_text}")
        time.sleep(_POLL_S)


def _models_at(port: int) -> list[dict[str, Any]] | None:
    """The chat models of this user's server at a port; None if it has none, or is not there.

    A server that is loading its first model answers once the model is loaded.
    """
    return _ask_own_server(port, _models_of)


def _models_of(connection: http.client.HTTPConnection) -> list[dict[str, Any]] | None:
    """A server's models that can chat; None if there are none.

    Raises what `_request_json` raises.
    """
    chat_models = []
    for model in _request_json(connection, "/v1/models")["data"]:
        if "max_model_len" in model:  # a model without a context length only makes embeddings
            chat_models.append(model)
    return chat_models or None


def _ask_own_server(
    port: int,
    ask: Callable[[http.client.HTTPConnection], _Answer | None],
) -> _Answer | None:
    """Ask this user's server at a port. Returns None if there is none, or if asking fails.

    A program that cannot prove that it is this user's server is asked nothing else.

    Args:
        port: the server's port.
        ask: asks the server, and returns the result. It may raise what `_request_json` raises.
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
    """Whether the program at the other end knows the key of this user's server.

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
    """The server's answer to a request, as JSON.

    Args:
        connection: the connection to the server.
        path: the path of the request.
        body: the body of a POST; None for a GET.

    Raises:
        OSError: the server cannot be reached.
        HTTPException: the answer is not HTTP.
        ValueError: the answer is not JSON.
    """
    if body is None:
        connection.request("GET", path)
    else:
        connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    content: dict[str, Any] = json.loads(response.read(_MAX_ANSWER_BYTES))
    return content


def _is_port_in_use(port: int) -> bool:
    """Whether a program listens at a port."""
    try:
        socket.create_connection((HOST, port), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    """A port at which no program listens now."""
    with socket.create_server((HOST, 0)) as listening:
        _, port = listening.getsockname()
        return int(port)


def _choose_model(
    listed: list[dict[str, Any]],
    model: str | None,
    context_length: int | None,
    port: int,
) -> ServerForAgent:
    """The model of a running server that the agent is to use.

    Raises OptionError if the server does not have the model or the context that the user wants.

    Args:
        listed: the server's models, as /v1/models lists them.
        model: the name of the model that the user wants; None for the first.
        context_length: the context in tokens that the user wants; None for any.
        port: the server's port.
    """
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
    if sys.platform == "win32" and _WINDOWS_SHELL_SIGNS.intersection(str(chosen["id"])):
        raise OptionError(
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
    return ServerForAgent(f"http://{HOST}:{port}", str(chosen["id"]), context, num_trained)


def _served_names(model: str) -> set[str]:
    """Names that a server may have for a model, with and without its folder and suffix."""
    names = {model, Path(model).stem}
    with contextlib.suppress(LocalspecError):  # perhaps only the server knows the name
        resolved = resolve(model).name
        names |= {resolved, Path(resolved).stem}
    return names


@contextlib.contextmanager
def _start_server(
    arguments: Sequence[str],
    port: int,
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a server that runs while the body does. Yields its process and the path of its log.

    The server is in a process group of its own, so that Ctrl-C reaches only the agent. SIGTERM
    and SIGHUP raise click.Abort. Raises LocalspecError if the log cannot be written.

    Args:
        arguments: the arguments with which localspec is a server.
        port: the server's port.
    """
    try:
        log_path, log = new_log(port)
    except OSError as error:
        raise LocalspecError(
            f"the server's log cannot be written: {error}",
            "Make the folder writable, or free space on its disk.",
        ) from error
    with log:
        process = subprocess.Popen(
            [sys.executable, "-m", "localspec", *arguments],
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
                yield process, log_path
        finally:
            end_signal = signal.SIGINT
            if sys.platform == "win32":
                end_signal = signal.SIGTERM
            process.send_signal(end_signal)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _say_reading_time(agent: Agent, server: _Server) -> None:
    """Say how long the model will read the agent's first prompt, and where the log is."""
    model = server.for_agent.model
    num_tokens = agent.first_prompt
    prompt = f"the first prompt of {agent.title}, about {num_tokens:,} tokens"
    with waiting(lambda: f"Measuring how fast {model} reads a prompt …"):
        speed = _ask_own_server(server.port, functools.partial(_tokens_per_s, model))
    if speed is None:
        say(f"It is not known yet how fast {model} reads {prompt}.")
    else:
        rounded = float(f"{speed:.2g}")
        reading_time = duration(num_tokens / speed)
        text = (
            f"{model} reads about {rounded:,g} tokens/s here: {prompt}, takes {reading_time} "
            "unless it is cached. Later prompts are read only from the first difference on."
        )
        say(fitted(text, err=True))
    if server.log is None:
        say(f"The server at port {server.port} logs the progress where it was started.")
    else:
        say(f"The server logs the progress: {server.log}")


def _tokens_per_s(model: str, connection: http.client.HTTPConnection) -> float | None:
    """The tokens of a prompt that the model reads per second; None if they are not known.

    The server knows the speed of the last long prompt. If there was none, a short prompt is
    measured. Raises what `_request_json` raises.
    """
    query = urllib.parse.urlencode({"model": model})
    properties = _request_json(connection, f"/props?{query}")
    if properties["prompt_per_second"] is not None:
        return float(properties["prompt_per_second"])
    if connection.sock is None:  # the server has closed it, as its answer said
        raise http.client.NotConnected
    connection.sock.settimeout(_MEASURE_S)
    timings = _time_prompt(model, connection)
    is_slow = timings["prompt_ms"] >= 1000 * _SLOW_PROMPT_S
    if not is_slow:  # perhaps most of the time was for loading kernels: measured again
        timings = _time_prompt(model, connection)
    return float(timings["prompt_per_second"]) or None  # 0 if no time was measured


def _time_prompt(model: str, connection: http.client.HTTPConnection) -> dict[str, Any]:
    """Let the model read a short prompt. Returns its timings, in llama-server's fields.

    Raises what `_request_json` raises.
    """
    text = secrets.token_hex(_MEASURED_BYTES)  # random: none of it is cached
    body = {"model": model, "prompt": text, "n_predict": 0}
    timings: dict[str, Any] = _request_json(connection, "/completion", body)["timings"]
    return timings


def _say_if_server_failed(agent: Agent, server: _Server) -> None:
    """Say so if the server failed while the agent ran: the agent may not have shown it."""
    log_hint = ""
    if server.log is not None:
        log_hint = f" Its log: {server.log}"
    if not _is_port_in_use(server.port):
        say(f"The server ended while {agent.title} ran.{log_hint}")
    elif server.has_crashed:
        say(f"The server's process with the model crashed while {agent.title} ran.{log_hint}")


def _run(command: Sequence[str], variables: dict[str, str | None]) -> int:
    """Run a program to its end, in this terminal, without `CLOUD_KEYS` in its environment.

    Returns its exit code; if a signal has ended it, 128 + the number of the signal.

    Args:
        command: the program and its arguments.
        variables: changes of the environment variables; None removes a variable.
    """
    environment = dict(os.environ)
    for name in CLOUD_KEYS:
        environment.pop(name, None)
    for name, value in variables.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    # The program decides what Ctrl-C means. This process ignores it by a handler: the program
    # would inherit SIG_IGN.
    previous = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        with subprocess.Popen(command, env=environment) as process:
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                raise
    finally:
        signal.signal(signal.SIGINT, previous)
    if code >= 0:
        return code
    signal_number = -code
    return 128 + signal_number  # as shells do


LAUNCHERS = [_launcher(program, agent) for program, agent in AGENTS.items()]
