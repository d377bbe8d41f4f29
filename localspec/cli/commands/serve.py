"""`localspec serve`"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import json
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import click

from localspec.cli.agents import ServerForAgent, settings_of_agents
from localspec.cli.completers import complete_model
from localspec.cli.download_dialogue import offer_download
from localspec.cli.flags import read_option_file
from localspec.cli.help import Command
from localspec.cli.progress_line import waiting
from localspec.cli.screen import SIZE, in_flags, printable, readable_bytes
from localspec.cli.shared_options import CACHE_DISK, SERVED_CONTEXT, shared
from localspec.cli.tool_calls import OWN_FILE, configured_servers
from localspec.errors import OptionError
from localspec.gguf_file.projector_facts import NO_PROJECTOR
from localspec.presets.model_names import choose_model
from localspec.presets.presets import DEFAULT_PRESET

if TYPE_CHECKING:
    from localspec.presets.presets import Adapter
    from localspec.server.guard import AccessRules
    from localspec.server.served_models import ServedModel, ServedModels

logger = logging.getLogger(__name__)

DEFAULT_PORT = 8617  # no other model server uses it
_CLIENT_SETTINGS = Template("""\
OpenAI's libraries, aider, Open WebUI:
  export OPENAI_BASE_URL=$address/v1 OPENAI_API_BASE=$address/v1 OPENAI_API_KEY=$key
  aider --model openai/$model --no-show-model-warnings
  OPENAI_API_BASE_URL=$address/v1 open-webui serve
Ollama's library for Python, and programs that ask an Ollama:
  export OLLAMA_HOST=$address OLLAMA_API_KEY=$key
""")


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
    help="The port; 0 picks a free one.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file of API keys, one per line; requests need one of them. [default: any key "
    "works]",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Another host name, besides localhost, that clients use. Repeatable.",
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Web origins that may send requests, such as https://example.org; * allows all. "
    "Repeatable. [default: none]",
)
@shared(
    "mmproj",
    help="The projector with which the first MODEL sees images, as for chat; 'none': no MODEL "
    "sees any. [default: each preset's, or a file mmproj*.gguf beside the target's]",
)
@shared(
    "adapters",
    help="A LoRA adapter for the first MODEL, as for chat; /lora-adapters and the field lora "
    "of a request change its scale. Repeatable. [default: each preset's; SCALE: 1]",
)
@shared("context_length", help=SERVED_CONTEXT)
@shared("device", "rpc", "exact")
@click.option(
    "--embeddings",
    shell_complete=complete_model,
    metavar="MODEL",
    help="A model for /v1/embeddings, or a reranker: a preset such as bge-small-en-v1.5, a "
    "GGUF file, or hf:owner/repo/file.gguf. [default: none]",
)
@click.option("--log-json", is_flag=True, help="Log one JSON object per line.")
@click.option(
    "--parallel",
    type=click.IntRange(1, 16),
    default=4,
    show_default=True,
    help="How many requests a model answers at once, each with the whole context; fewer if "
    "memory is short.",
)
@click.option(
    "--cache-disk",
    type=SIZE,
    metavar="SIZE",
    help="The maximum disk space for caches of conversations, which survive a restart; 0 keeps "
    "none on disk. See 'localspec sessions wipe'. [default: 8GB; with several API keys 0]",
)
@click.option(
    "--known-models-only",
    is_flag=True,
    help="Refuse unknown model names. [default: use the loaded model for them]",
)
@click.option(
    "--page/--no-page",
    "has_page",
    default=True,
    help="Serve a chat page to browsers. [default: on]",
)
@click.option(
    "--mcp",
    "mcp_source",
    is_flag=False,
    flag_value=OWN_FILE,
    metavar="[FILE]",
    help="Let models call the tools of MCP servers, on the page and in /v1/responses: those of "
    "FILE, or of localspec's own file, see 'localspec mcp'.",
)
def serve(  # noqa: PLR0913  one argument for each option
    *,
    models: tuple[str, ...],
    host: str,
    port: int,
    api_key_file: Path | None,
    allowed_hosts: tuple[str, ...],
    cors_origins: tuple[str, ...],
    context_length: int | None,
    device: str | None,
    exact: bool | None,
    rpc: tuple[str, ...] | None,
    mmproj: str | None,
    adapters: tuple[Adapter, ...],
    parallel: int,
    cache_disk: int | None,
    known_models_only: bool,
    log_json: bool,
    embeddings: str | None,
    has_page: bool,
    mcp_source: str | None,
) -> None:
    """Serve the OpenAI, Anthropic and Ollama APIs.

    MODEL is a preset, an alias, a GGUF file, hf:owner/repo/file.gguf or owner/repo:QUANT.
    The first MODEL is loaded at once, the others on their first request. To listen on an
    address that other machines can reach, an API key is required. Ctrl-C stops the server.

    \b
        localspec serve qwen2.5-7b --ctx 32768
        curl http://127.0.0.1:8617/v1/chat/completions \\
            -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
    """
    require_server()
    from localspec.server.app import Limits, Server
    from localspec.server.guard import AccessRules
    from localspec.server.own_server import HOST, announced
    from localspec.server.running import Runner, listen
    from localspec.server.served_models import ServedEmbedder, ServedModel, ServedModels

    show = _start_log(in_json=log_json)
    keys: list[str] = []
    if api_key_file is not None:
        keys = _read_keys(api_key_file)
    access = AccessRules(
        keys=keys,
        hosts=allowed_hosts,
        origins=cors_origins,
    )
    _check_access(access, host, cache_disk)
    names = list(dict.fromkeys(models or (usual_name(),)))
    for name in filter(None, (*names, embeddings)):
        offer_download(name)
    first, *others = names
    make_model = partial(
        ServedModel,
        context_length=context_length,
        rpc=rpc,
        device=device,
        exact=exact,
    )
    served_models = [make_model(first, mmproj=mmproj, adapters=adapters or None)]
    mmproj_of_others = None
    if mmproj == NO_PROJECTOR:
        mmproj_of_others = NO_PROJECTOR
    for name in others:
        served_models.append(make_model(name, mmproj=mmproj_of_others))
    embedder = None
    if embeddings is not None:
        embedder = ServedEmbedder(embeddings)
    served = ServedModels(
        served_models,
        takes_any_name=not known_models_only,
        embedder=embedder,
    )
    _configure_models(served, access, parallel, cache_disk)
    with contextlib.ExitStack() as until_end:
        tool_servers = None
        if mcp_source is not None:
            tool_servers = until_end.enter_context(configured_servers(mcp_source, ()))
        listening = until_end.enter_context(listen(host, port))
        own_host, own_port = listening.getsockname()[:2]
        shown_host = host
        if ":" in host:
            shown_host = f"[{host}]"
        address = f"http://{shown_host}:{own_port}"
        own_key = None
        if not keys and own_host == HOST:
            # The commands that start agents find this server by its key's file.
            own_key = until_end.enter_context(announced(own_port))
        with waiting(lambda: "Loading the models …"):
            served.open_first()
        server = Server(
            served,
            Limits(),
            has_page=has_page,
            own_key=own_key,
            tool_servers=tool_servers,
        )
        greeting = _greeting(
            address,
            served.all[0],
            has_key=bool(keys),
            has_page=has_page,
        )
        runner = Runner(server.app(access), lambda: show(greeting), server.stop)
        with contextlib.suppress(KeyboardInterrupt):  # raised again once the server has stopped
            runner.run(sockets=[listening])


class LogFormatter(logging.Formatter):
    """Log lines without control characters, which could steer the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class JSONFormatter(LogFormatter):
    """Log lines that are JSON objects. The line of a request is the record's `facts`."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line of JSON."""
        message = {"level": record.levelname.lower(), "message": record.getMessage()}
        fields = getattr(record, "facts", message)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return printable(json.dumps(fields))


def _start_log(*, in_json: bool) -> Callable[[str], None]:
    """Set up the log. Returns a function that shows a text on stderr, or logs it as JSON."""
    formatter: type[LogFormatter] = LogFormatter
    if in_json:
        formatter = JSONFormatter
    log = logging.StreamHandler()
    log.setFormatter(formatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[log])
    if in_json:
        return logger.info
    return partial(click.echo, err=True)


def _check_access(access: AccessRules, host: str, cache_disk: int | None) -> None:
    """Raise OptionError if other machines could use the server without an API key.

    Also for --cache-disk with several keys, whose clients share no caches on disk.
    """
    if not access.keys and not _is_loopback(host):
        raise OptionError(
            f"{host} can be reached from other machines, and no API key is set",
            "Give --api-key-file FILE, or leave --host out.",
        )
    if not access.has_one_user and cache_disk:
        raise OptionError(
            "clients with several API keys share no caches on disk",
            "Leave --cache-disk out, or give one key.",
        )


def usual_name() -> str:
    """The name of the model that commands use if the user names none."""
    usual = choose_model(
        None,
        None,
        None,
        is_target=False,
    )
    return usual or DEFAULT_PRESET


def _configure_models(
    served: ServedModels,
    access: AccessRules,
    parallel: int,
    cache_disk: int | None,
) -> None:
    """Set how many answers the models give at once, and what they keep of earlier texts.

    With several API keys earlier texts draft nothing, and no caches are kept on disk. Raises
    OptionError if two models have the same name.

    Args:
        served: the models.
        access: its keys decide what is kept.
        parallel: the number of answers that a model gives at once.
        cache_disk: the bytes of disk for caches; None for the default.
    """
    from localspec.engine.open_models import CacheDisk

    if cache_disk is None:
        cache_disk = 0
        if access.has_one_user:
            cache_disk = CACHE_DISK
    # Caches have one owner, known by the key: with several keys none are kept.
    disk = CacheDisk(cache_disk, "".join(access.keys[:1]))
    for model in served.all:
        model.cache_disk = disk
        model.parallel = parallel
        model.remembers = access.has_one_user
    for name, number in Counter(model.name for model in served.all).items():
        if number > 1:
            raise OptionError(
                f"{number} models are called {name!r}, so clients could not choose between "
                "them",
                "Give one of them another name: localspec models add NAME --target FILE.",
            )


def _greeting(
    address: str,
    model: ServedModel,
    *,
    has_key: bool,
    has_page: bool,
) -> str:
    """Settings to copy into clients, facts about the first model, and the address.

    Args:
        address: the server's address, such as http://127.0.0.1:8617.
        model: the first model.
        has_key: whether clients need an API key.
        has_page: whether there is a page for browsers.
    """
    from localspec.engine.cache_store import kept_folder

    key = "local"
    if has_key:
        key = "YOUR_KEY"
    context = model.context_length
    settings = _CLIENT_SETTINGS.substitute(
        address=address,
        model=model.name,
        key=key,
    )
    served = ServerForAgent(address, model.name, context, model.num_trained)
    settings += settings_of_agents(served, key)
    text = f"{printable(settings)}\n{_parallel_in_words(model)}"
    if model.engine is not None:
        text += f"\n{printable(in_flags(model.engine.description))}."
    if model.cache_disk.num_bytes:
        size = readable_bytes(model.cache_disk.num_bytes)
        text += f"\nCaches of conversations are kept in {kept_folder()}, up to {size}."
    if has_page:
        text += "\nTo chat, open the address in a browser."
    # The address comes last, where a small window shows it.
    name = printable(model.name)
    return f"{text}\nListening on {address} with {name} (context {context}). Ctrl-C stops."


def _parallel_in_words(model: ServedModel) -> str:
    """The number of answers at once, and why it is less than --parallel if it is."""
    number = f"Answers at once: {model.num_slots}, each with the whole context"
    if model.num_slots == model.parallel:
        return f"{number}."
    reason = f"more caches of {model.context_length} tokens do not fit; use a smaller --ctx"
    if model.is_on_servers:
        reason = "a model on RPC servers gives one answer at a time"
    return f"{number}, not {model.parallel}: {reason}."


def require_server() -> None:
    """Raise OptionError if a package that the server needs is not installed."""
    needed = ("anyio", "starlette", "uvicorn")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"packages that the server needs are not installed: {', '.join(missing)}",
            "Install them: pip install 'localspec[all]'",
        )


def _read_keys(path: Path) -> list[str]:
    """The API keys in a file, one per line. Raises OptionError if there is none."""
    keys = []
    for line in read_option_file("--api-key-file", path).splitlines():
        key = line.strip()
        if key:
            keys.append(key)
    if not keys:
        raise OptionError(f"--api-key-file {path} has no key", "Write one key per line.")
    return keys


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on an address or host name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
