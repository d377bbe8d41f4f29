"""The files that describe MCP servers, in the notation `mcpServers` that other programs use."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeGuard
from urllib.parse import urlsplit

import platformdirs

from localspec.errors import OptionError, did_you_mean
from localspec.system.atomic_write import write_whole

CALL_S = 30.0  # seconds for a call, if the server's entry has no timeout
_MOST_S = 3600.0  # a larger timeout is taken for milliseconds, which some programs use
_LARGEST_TIMEOUT = 1e12  # in milliseconds, thirty years
_MOST_BYTES = 4_000_000  # bytes of a file
_KEY = "mcpServers"
_EXAMPLE = '{"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}'
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)\}")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,64}")


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server as a file describes it: by a command that starts it, or by its address."""

    name: str
    """The server's name."""

    command: str | None = None
    """The program to start; None for a server at an address."""

    args: tuple[str, ...] = ()
    """The program's arguments."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for the program, besides the usual ones such as PATH and HOME."""

    cwd: Path | None = None
    """The folder where the program starts; None for the user's home."""

    url: str | None = None
    """The address; None for a server with a command."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of each request to the address."""

    is_disabled: bool = False
    """Whether the file switches it off."""

    auto_approve: tuple[str, ...] = ()
    """Tools that are called without asking the user; * stands for all of them."""

    timeout_s: float = CALL_S
    """Seconds that a call may take."""

    @property
    def target(self) -> str:
        """The address, or the command with its arguments, to show to the user."""
        if self.url is not None:
            return self.url
        return " ".join([self.command or "", *self.args])


def own_file() -> Path:
    """The path of localspec's own file, which `localspec mcp add` writes."""
    return platformdirs.user_config_path("localspec", appauthor=False) / "mcp.json"


def files_of_others() -> dict[str, Path]:
    """The existing files of other programs, by the names of the programs."""
    home = Path(os.path.expanduser("~"))  # unlike `Path.home`, no error without a home folder
    claude = home / ".config/Claude"
    if sys.platform == "darwin":
        claude = home / "Library/Application Support/Claude"
    elif sys.platform == "win32":
        claude = Path(os.environ.get("APPDATA", home)) / "Claude"
    files = {
        "Claude Desktop": claude / "claude_desktop_config.json",
        "Cursor": home / ".cursor/mcp.json",
        "LM Studio": home / ".lmstudio/mcp.json",
    }
    return {name: path for name, path in files.items() if path.is_file()}


def read_servers(path: Path) -> dict[str, ServerEntry]:
    """The servers in a file by their names, including those that are switched off.

    Raises:
        OptionError: the file cannot be read, or an entry is wrong.
    """
    return servers_in(str(path), _read_json(path))


def servers_in(where: str, content: Mapping[str, Any]) -> dict[str, ServerEntry]:
    """The servers in the content of a file by their names.

    Args:
        where: the file or other source of the content, for errors.
        content: an object with the key `mcpServers`; without the key there are no servers.

    Raises:
        OptionError: an entry is wrong.
    """
    entries = _entries_in(where, content)
    return {name: _entry(where, name, values) for name, values in entries.items()}


def _entries_in(where: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """The unread entries of the servers by their names. Raises OptionError."""
    entries = content.get(_KEY, {})
    if not isinstance(entries, dict):
        raise OptionError(f"{_KEY} in {where} is {entries!r:.80}", f"Write it as in {_EXAMPLE}")
    return entries


def add_server(path: Path, name: str, values: Mapping[str, object]) -> None:
    """Add a server to a file. The other content of the file does not change.

    Args:
        path: the file; it is created if it does not exist.
        name: the server's name.
        values: the server's entry, as the file has it.

    Raises:
        OptionError: the file has a server of that name, or the entry or the file is wrong.
    """
    content = _read_or_empty(path)
    entries = _entries_in(str(path), content)
    if name in entries:
        raise OptionError(
            f"{path} has a server {name!r} already",
            f"Remove it: localspec mcp remove {name}",
        )
    _entry(str(path), name, dict(values))  # raises for a wrong entry
    _write(path, {**content, _KEY: {**entries, name: dict(values)}})


def remove_server(path: Path, name: str) -> None:
    """Remove a server from a file.

    Raises:
        OptionError: the file has no server of that name, or is wrong.
    """
    content = _read_or_empty(path)
    entries = _entries_in(str(path), content)
    if name not in entries:
        raise OptionError(f"{path} has no server {name!r:.80}", did_you_mean(name, entries))
    del entries[name]  # and so from the content
    _write(path, content)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file as JSON, as a whole or not at all. Its folder is made if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_whole(path, text.encode(), durable=True)


def _read_or_empty(path: Path) -> dict[str, Any]:
    """The content of a file; {} if the file does not exist. Raises OptionError."""
    if path.exists():
        return _read_json(path)
    return {}


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} for an empty file. Raises OptionError."""
    try:
        num_bytes = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise OptionError(
            f"the file of MCP servers {path} cannot be read: {error.strerror}",
            "Name a file, or make one: localspec mcp add NAME -- COMMAND",
        ) from error
    if len(data) > _MOST_BYTES:
        raise OptionError(
            f"{path} is too large: it has {num_bytes} bytes; the limit is {_MOST_BYTES}",
            "Name the file that has mcpServers, or remove what does not belong there.",
        )
    try:
        content = json.loads(data.decode("utf-8-sig") or "{}")
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"{path} is not JSON: {error}",
            f"Write it as in {_EXAMPLE}",
        ) from None
    if not isinstance(content, dict):
        raise OptionError(f"{path} holds no JSON object", f"Write it as in {_EXAMPLE}")
    return content


def _entry(where: str, name: str, values: object) -> ServerEntry:
    """Check a server's entry, and read it.

    Raises OptionError.

    Args:
        where: the file or other source of the entry, for errors.
        name: the server's name.
        values: the entry.
    """
    reader = _EntryReader(where, name, values)
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"the name of a server in {where} is {name!r:.80}",
            "Give 1 to 64 characters, none of them a control character.",
        )
    command = reader.text("command")
    url = reader.text("url")
    if (command is None) == (url is None):
        reader.refuse("command", "Give either a command or a url.")
    if url is not None and urlsplit(url).scheme not in ("http", "https"):
        reader.refuse("url", "Give an address that begins with http:// or https://.")
    folder = reader.text("cwd")
    cwd = None
    if folder is not None:
        cwd = Path(folder).expanduser()
    timeout_s = reader.seconds("timeout")
    return ServerEntry(
        name,
        command=command,
        args=reader.texts("args"),
        env=reader.texts_by_name("env"),
        cwd=cwd,
        url=url,
        headers=reader.texts_by_name("headers"),
        is_disabled=reader.flag("disabled"),
        auto_approve=reader.texts("autoApprove"),
        timeout_s=timeout_s,
    )


class _EntryReader:
    """Reads the values of a server's entry by their keys, and checks them.

    Each method raises OptionError for a value of another type. In texts, ${NAME} and
    ${env:NAME} stand for variables of this process.

    Args:
        where: the file or other source of the entry, for errors.
        name: the server's name.
        values: the entry.
    """

    def __init__(self, where: str, name: str, values: object) -> None:
        self._where = f"of the server {name!r:.80} in {where}"
        if not isinstance(values, dict):
            raise OptionError(f"the entry {self._where} is no object", f"Write: {_EXAMPLE}")
        self._values = values

    def refuse(self, key: str, hint: str) -> NoReturn:
        """Raise OptionError for the value of a key."""
        raise OptionError(f"{key} {self._where} is {self._values.get(key)!r:.200}", hint)

    def text(self, key: str) -> str | None:
        """A text that is not empty; None if the entry does not have the key."""
        value = self._values.get(key)
        if value is None:
            return None
        if not _is_text(value) or not value:
            self.refuse(key, "Give a text.")
        return self._with_variables(key, value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; () if the entry does not have the key."""
        texts = self._values.get(key) or []
        if not isinstance(texts, list) or not all(map(_is_text, texts)):
            self.refuse(key, "Give a list of texts.")
        return tuple(self._with_variables(key, text) for text in texts)

    def texts_by_name(self, key: str) -> dict[str, str]:
        """An object whose values are texts; {} if the entry does not have the key."""
        texts = self._values.get(key) or {}
        if not isinstance(texts, dict) or not all(map(_is_text, texts.values())):
            self.refuse(key, "Give an object of texts.")
        return {name: self._with_variables(key, text) for name, text in texts.items()}

    def flag(self, key: str) -> bool:
        """True or false; False if the entry does not have the key."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            self.refuse(key, "Give true or false.")
        return bool(value)

    def seconds(self, key: str) -> float:
        """A timeout in seconds; CALL_S if the entry does not have the key.

        A value above _MOST_S is taken for milliseconds.
        """
        value = self._values.get(key)
        if value is None:
            return CALL_S
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= _LARGEST_TIMEOUT:
            self.refuse(key, "Give seconds, more than 0.")
        seconds = float(value)
        if seconds > _MOST_S:
            return seconds / 1000
        return seconds

    def _with_variables(self, key: str, text: str) -> str:
        """The text with the values of variables in place of ${NAME} and ${env:NAME}."""

        def value_of(variable: re.Match[str]) -> str:
            """The value of a match of _VARIABLE. Raises OptionError if it is not set."""
            name = variable[1]
            if name == "userHome":  # no variable of the process, but known to other programs
                return os.path.expanduser("~")
            if name not in os.environ:
                raise OptionError(
                    f"{key} {self._where} names the variable {name}, which is not set",
                    f"Set it: export {name}=…",
                )
            return os.environ[name]

        return _VARIABLE.sub(value_of, text)


def _is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a text that a command or an address can contain."""
    return isinstance(value, str) and "\0" not in value
