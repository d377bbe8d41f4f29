"""`localspec claude`, `codex` and `opencode`: a coding agent with a local model behind it.

The agent gets what `localspec serve` prints for it, for this run alone: nothing is written into
its settings. A server that runs already is used; otherwise one is started, and ended behind the
agent.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import click

from localspec.cli.download import offer_download
from localspec.cli.help import Command
from localspec.cli.options import SERVED_CONTEXT, model_argument, shared
from localspec.cli.serve import DEFAULT_PORT, opencode_settings, require_server, usual_name
from localspec.cli.standard_streams import is_terminal
from localspec.cli.waiting import waiting
from localspec.errors import LocalspecError, OptionError
from localspec.presets.presets import stands_for

_HOST = "127.0.0.1"
_KEY = "local"  # a server without keys takes any
_ASK_S = 5.0  # for a server that is there to say what it has
_LOOK_S = 0.2  # between two looks whether the server is ready
_END_S = 60.0  # for the server to end
_LOG_BYTES = 65536  # of the log, read at a time
_CLOUDS = (
    "BEDROCK",
    "VERTEX",
    "FOUNDRY",
    "MANTLE",
    "ANTHROPIC_AWS",
)  # Claude Code would ask one
_OF_CMD = set('"%&|<>^!\r\n')  # Windows starts programs of npm by a shell, which reads these


class ServerFound(NamedTuple):
    """What a server has. address: like http://127.0.0.1:8617. context: tokens."""

    address: str
    model: str
    context: int


class Started(NamedTuple):
    """How a program is told of a server: arguments, and variables; None removes one."""

    arguments: list[str]
    variables: dict[str, str | None]


class _LaunchCommand(Command):
    """What stands behind -- is the program's, and no argument of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


def _of_claude(served: ServerFound) -> Started:
    return Started(
        ["--model", served.model],
        {
            "ANTHROPIC_BASE_URL": served.address,
            "ANTHROPIC_AUTH_TOKEN": _KEY,
            "ANTHROPIC_API_KEY": None,  # a key would go to the server
            **{f"CLAUDE_CODE_USE_{cloud}": None for cloud in _CLOUDS},
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context),
        },
    )


def _of_codex(served: ServerFound) -> Started:
    provider = "model_providers.localspec"
    settings: dict[str, str | int] = {
        "model": served.model,
        "model_provider": "localspec",
        "model_context_window": served.context,
        f"{provider}.name": "localspec",
        f"{provider}.base_url": f"{served.address}/v1",
        f"{provider}.wire_api": "responses",
        f"{provider}.experimental_bearer_token": _KEY,
    }
    # A string of JSON is one of TOML, too.
    words = [
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()
    ]
    return Started([part for word in words for part in ("-c", word)], {})


def _of_opencode(served: ServerFound) -> Started:
    settings = opencode_settings(served.address, served.model, served.context, _KEY)
    return Started([], {"OPENCODE_CONFIG_CONTENT": settings})  # above its files


def _launcher(
    program: str, title: str, package: str, tell: Callable[[ServerFound], Started]
) -> click.Command:
    """The command that starts a program. package: of npm."""

    @click.command(
        cls=_LaunchCommand,
        name=program,
        help=f"""Start {title} with a model of this machine.

        MODEL: as for serve. A localspec server that runs is used, else one is started and ended
        behind {title}. Arguments behind -- are {title}'s.

        \b
            localspec {program} qwen2.5-7b --ctx 32768
            localspec {program} -- --help
        """,
    )
    @model_argument
    @shared("context_length", help=SERVED_CONTEXT)
    @click.option(
        "--port",
        type=click.IntRange(1, 65535),
        default=DEFAULT_PORT,
        show_default=True,
        help="Where the server is, or is started.",
    )
    @click.pass_obj
    def launch(
        more: Sequence[str], *, model: str | None, context_length: int | None, port: int
    ) -> None:
        path = shutil.which(program)
        if path is None:
            raise OptionError(
                f"{title} is not installed: there is no program {program!r} in PATH",
                f"Install it: npm install -g {package}",
            )
        with _server(model, context_length, port) as served:
            arguments, variables = tell(served)
            code = _run([path, *arguments, *more], variables)
        raise click.exceptions.Exit(code)

    return launch


@contextlib.contextmanager
def _server(model: str | None, context_length: int | None, port: int) -> Iterator[ServerFound]:
    """The server at that port, started unless it runs, and then ended behind the block."""
    with waiting(lambda: f"Waiting for the server at port {port} …"):
        found = _models_at(port)
    if found is not None:
        yield _chosen(found, model, context_length, port)
        return
    require_server()  # before a download
    words = ["serve", *([] if model is None else [model]), "--port", str(port)]
    if context_length is not None:
        words += ["--ctx", str(context_length)]
    offer_download(model or usual_name())
    with tempfile.TemporaryFile() as log, _ended(_started(words, log)) as process:
        with waiting(lambda: "Starting the server …"):
            while (found := _models_at(port)) is None:
                if process.poll() is not None:
                    raise _failed(log)
                time.sleep(_LOOK_S)
        with _title(log):
            yield _chosen(found, None, None, port)


@contextlib.contextmanager
def _title(log: IO[bytes]) -> Iterator[None]:
    """The terminal's title says what prompt is read: the screen is the program's.

    The log is read without moving its end, where the server writes.
    """
    if sys.platform == "win32" or not is_terminal(sys.stderr):
        yield
        return
    done = threading.Event()
    shown = b""

    def show(title: bytes) -> None:
        nonlocal shown
        if title != shown:
            shown = title
            # At once, so that it does not stand amid what the program writes.
            os.write(sys.stderr.fileno(), b"\x1b]2;localspec " + title + b"\x07")

    def follow() -> None:
        at = 0
        while not done.wait(_LOOK_S):
            *lines, _ = os.pread(log.fileno(), _LOG_BYTES, at).split(b"\n")
            for line in lines:
                at += len(line) + 1
                show(line if line.startswith(b"reading ") else b"")
        show(b"")

    follower = threading.Thread(target=follow, name="localspec-title", daemon=True)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()


def _models_at(port: int) -> list[dict[str, object]] | None:
    """The models of the server at that port that answer; None if nothing listens there.

    A server that loads its first model listens, and is waited for. Raises OptionError if it is
    another program, or needs a key.
    """
    while True:
        with contextlib.suppress(TimeoutError):
            return _answered_models(port)


def _answered_models(port: int) -> list[dict[str, object]] | None:
    """As `_models_at`; raises TimeoutError if nothing answers for a while."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=_ASK_S)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {_KEY}"})
        response = connection.getresponse()
        told = response.read()
        listed = json.loads(told)["data"] if response.status == http.HTTPStatus.OK else []
        found = [each for each in listed if each.get("owned_by") == "localspec"]
    except TimeoutError:
        raise
    except OSError:
        return None
    except (http.client.HTTPException, ValueError, TypeError, KeyError, AttributeError):
        found = []
    finally:
        connection.close()
    models = [each for each in found if "max_model_len" in each]  # the others give vectors
    if not models:
        raise OptionError(
            f"what listens at {_HOST}:{port} is no localspec server, or needs a key",
            "Choose another port: --port N. With a key, use the settings that serve prints.",
        )
    return models


def _chosen(
    found: list[dict[str, object]], model: str | None, context_length: int | None, port: int
) -> ServerFound:
    """The model that is asked for, else the first. Raises OptionError if it is not there."""
    names = {model, stands_for(model), Path(model).stem} if model else {found[0]["id"]}
    for each in found:
        if each["id"] in names:
            context = int(str(each["max_model_len"]))
            break
    else:
        listed = ", ".join(str(each["id"]) for each in found)
        raise OptionError(
            f"the server at port {port} has {listed}, not {model}",
            "Stop it, name a model that it has, or start another: --port N.",
        )
    if sys.platform == "win32" and _OF_CMD & set(str(each["id"])):
        raise OptionError(
            f"the model's name {each['id']!r} has signs that Windows' shell reads",
            "Give it a name of your own: localspec models alias NAME MODEL",
        )
    if context_length not in (None, context):
        raise OptionError(
            f"the server at port {port} has a context of {context}, not {context_length}",
            "Stop it, leave --ctx out, or start another: --port N.",
        )
    return ServerFound(f"http://{_HOST}:{port}", str(each["id"]), context)


def _started(words: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """The server, whose words go into the log: the screen is the program's.

    In a group of its own, so that Ctrl-C reaches the program alone.
    """
    command = [sys.executable, "-m", "localspec", *words]
    flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # of Windows
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        creationflags=flags,
    )


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Behind the block the process has ended, also if this one is told to end."""

    def leave(_number: int, _frame: object) -> None:
        raise click.Abort

    names = ("SIGTERM", "SIGHUP")
    signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, leave) for number in signals}
    try:
        yield process
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if sys.platform == "win32":
            process.terminate()
        else:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _failed(log: IO[bytes]) -> LocalspecError:
    """What the server said when it could not start."""
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    error = next((line for line in lines if line.startswith("Error: ")), lines[-1:] or "")
    hint = next((line for line in lines if line.startswith("Hint: ")), "")
    return LocalspecError(
        f"the server did not start: {str(error).removeprefix('Error: ')}",
        hint.removeprefix("Hint: ") or "Try it by itself: localspec serve",
    )


def _no_proxies() -> dict[str, str]:
    """Variables with which no proxy is asked for the server: to it, this is another machine."""
    here = f"{_HOST},localhost"
    both = [os.environ.get(name) for name in ("no_proxy", "NO_PROXY")]
    found = {}
    for name, before in zip(("no_proxy", "NO_PROXY"), both, strict=True):
        known = before or both[0] or both[1]
        found[name] = known if known == "*" else f"{known},{here}" if known else here
    return found


def _run(command: Sequence[str], variables: dict[str, str | None]) -> int:
    """Run a program to its end, in this terminal; its exit code."""
    environment = {
        name: value
        for name, value in {**os.environ, **_no_proxies(), **variables}.items()
        if value is not None
    }
    # It decides what Ctrl-C means; its own handling is not changed by this one.
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
    return code if code >= 0 else 128 - code


LAUNCHERS = (
    _launcher("claude", "Claude Code", "@anthropic-ai/claude-code", _of_claude),
    _launcher("codex", "Codex", "@openai/codex", _of_codex),
    _launcher("opencode", "opencode", "opencode-ai", _of_opencode),
)
