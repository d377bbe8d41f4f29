"""`localspec serve`"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from localspec.chat.text_file import read_text_file
from localspec.cli.client_settings import ready_settings
from localspec.cli.completion import complete_model
from localspec.cli.device_options import RPC_OPTION
from localspec.cli.download import offer_download
from localspec.cli.help import Command
from localspec.cli.model_options import context_option
from localspec.cli.waiting import waiting
from localspec.errors import OptionError
from localspec.presets.choice import choose_model
from localspec.presets.presets import DEFAULT_PRESET

DEFAULT_PORT = 8617  # that of no other program with models


@click.command(cls=Command)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="0 takes any that is free.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keys of which a client needs one, a line each. [default: any key will do]",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name besides localhost that clients call the server by. Repeatable.",
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Pages that may ask, as https://example.org; * is all. Repeatable. [default: none]",
)
@context_option("the preset's, or the model's own up to 8192")
@RPC_OPTION
@click.option(
    "--known-models-only",
    is_flag=True,
    help="Refuse the names of other models. [default: the loaded one stands for them]",
)
def serve(  # noqa: PLR0913  each is an option of the command
    *,
    models: tuple[str, ...],
    host: str,
    port: int,
    api_key_file: Path | None,
    allowed_hosts: tuple[str, ...],
    cors_origins: tuple[str, ...],
    context_length: int | None,
    rpc: tuple[str, ...] | None,
    known_models_only: bool,
) -> None:
    """Answer programs that speak OpenAI's, Anthropic's or Ollama's protocols.

    A MODEL is a preset, an alias, a GGUF file, hf:owner/repo/file.gguf or owner/repo:QUANT.
    The first one is loaded at once, the others when they are asked for. On any address but this
    machine's own a key is needed. Ctrl-C stops the server.

    \b
        localspec serve
        localspec serve qwen2.5-7b --ctx 32768
        localspec serve models/qwen2.5-7b-instruct-q4_k_m.gguf
        curl http://127.0.0.1:8617/v1/chat/completions \\
            -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
    """
    _require_server()
    from localspec.server.app import Limits, Server
    from localspec.server.guard import AccessRules
    from localspec.server.running import Runner, listen
    from localspec.server.served_models import ServedModel, ServedModels

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    keys = [] if api_key_file is None else _keys(api_key_file)
    if not keys and not _is_loopback(host):
        raise OptionError(
            f"{host} can be reached from other machines, and no key is needed",
            "Give --api-key-file FILE, or leave --host out.",
        )
    names = dict.fromkeys(models or (_usual_name(),))
    for name in names:
        offer_download(name)
    served = ServedModels(
        [ServedModel(name, context_length, rpc) for name in names],
        takes_any_name=not known_models_only,
    )
    _require_own_names([model.name for model in served.all])
    access = AccessRules(keys=keys, hosts=allowed_hosts, origins=cors_origins)
    with listen(host, port) as listening:
        address = _address(host, listening.getsockname()[1])
        with waiting(lambda: "Loading the models …"):
            served.open_first()
        server = Server(served, Limits())
        first = served.all[0]
        told = ready_settings(address, first.name, first.context_length, has_key=bool(keys))
        runner = Runner(server.app(access), lambda: click.echo(told, err=True), server.stop)
        with contextlib.suppress(KeyboardInterrupt):  # raised again once it has ended
            runner.run(sockets=[listening])


def _usual_name() -> str:
    """The model that commands use where none is named."""
    chosen = choose_model(None, None, None, is_target=False)
    return chosen.preset or chosen.target or DEFAULT_PRESET


def _require_own_names(names: Sequence[str]) -> None:
    for name, number in Counter(names).items():
        if number > 1:
            raise OptionError(
                f"{number} models are called {name!r}, and clients could not choose",
                "Name one: localspec models add NAME --target FILE.",
            )


def _require_server() -> None:
    for library in ("starlette", "uvicorn"):
        if importlib.util.find_spec(library) is None:
            raise OptionError(
                f"the server needs {library}, which is not installed",
                "Install both: python -m pip install starlette uvicorn",
            )


def _keys(path: Path) -> list[str]:
    try:
        lines = read_text_file(path).splitlines()
    except (OSError, ValueError) as error:
        raise OptionError(f"--api-key-file {path}: {error}", "Name a text file.") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise OptionError(f"--api-key-file {path} holds no key", "Put one into it.")
    return keys


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
