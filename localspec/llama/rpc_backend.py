"""libllama's RPC backend: whether this build has it, its version, and its devices.

Each failure in it ends the process, so `rpc_servers` asks the servers first.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from importlib.metadata import version

from localspec.errors import LocalspecError, OptionError, RpcError
from localspec.llama.devices import device_memory
from localspec.llama.library import llama_cpp
from localspec.llama.native import ggml_function, shared_library
from localspec.llama.quirks import rpc_version
from localspec.llama.quirks.own_process import written_by
from localspec.llama.rpc_servers import Protocol, RpcServer, ask_servers

_Pointer = ctypes.c_void_p


def usable_servers(addresses: Sequence[str]) -> list[RpcServer]:
    """Ask the RPC servers at checked addresses, and check that each can be used.

    Raises RpcError for the first that cannot, OptionError if this build has no RPC backend.
    """
    if addresses:
        _require_backend()
    servers = []
    for server in ask_servers(addresses):
        if isinstance(server, RpcError):
            raise server
        _require_protocol(server)
        servers.append(server)
    return servers


def server_fault(server: RpcServer) -> LocalspecError | None:
    """Why this libllama cannot use the server; None if it can."""
    try:
        _require_backend()
        _require_protocol(server)
    except LocalspecError as error:
        return error
    return None


def _require_backend() -> None:
    if not llama_cpp.llama_supports_rpc():
        name = "llama-cpp-python"
        raise OptionError(
            "this build of llama.cpp has no RPC backend, so it cannot use other machines",
            "Build it here: CMAKE_ARGS=-DGGML_RPC=ON python -m pip install "
            f"--force-reinstall --no-deps --no-cache-dir --no-binary {name} "
            f"{name}=={version(name)}",
        )


@functools.cache
def protocol_of(library: str) -> Protocol | None:
    """The version of the protocol that the libllama at that path speaks.

    None if no process can be started to find out.
    """
    written = written_by(rpc_version.__file__, library)
    match = re.search(r" v(\d+)\.(\d+)\.(\d+)", written)
    if match is None:
        return None
    return Protocol(int(match[1]), int(match[2]), int(match[3]))


def _require_protocol(server: RpcServer) -> None:
    """Raise RpcError for a server whose protocol would make this libllama end the process."""
    ours = protocol_of(shared_library(llama_cpp)._name)
    theirs = server.protocol
    if ours is not None and (ours.major != theirs.major or ours.minor < theirs.minor):
        raise RpcError(
            f"{server.address} speaks version {theirs} of the RPC protocol, libllama {ours}",
            f"Build its ggml-rpc-server from the source of llama-cpp-python "
            f"{version('llama-cpp-python')}.",
        )


def remote_pointers(addresses: Sequence[str]) -> list[int]:
    """Connect to the servers. Returns ggml's pointers to their devices, in order.

    The servers are not registered with ggml, so only models that name them use them.
    """
    size = ctypes.c_size_t
    count = ggml_function(llama_cpp, "ggml_backend_reg_dev_count", size, _Pointer)
    get = ggml_function(llama_cpp, "ggml_backend_reg_dev_get", _Pointer, _Pointer, size)
    devices = []
    for address in addresses:
        registry = _add_server(address)
        if not registry:
            raise RpcError(f"{address} has no device", "Start it with one (--device).")
        devices += [get(registry, index) for index in range(count(registry))]
    return devices


def touch_servers(addresses: Sequence[str]) -> None:
    """Ask each server of an idle model once; if one has gone, the process ends."""
    for device in remote_pointers(addresses):
        device_memory(llama_cpp, device)


def _add_server(address: str) -> int | None:
    """ggml's pointer to a server's registry; None if it has no device."""
    text = ctypes.c_char_p
    get_address = "ggml_backend_reg_get_proc_address"
    by_name = ggml_function(llama_cpp, "ggml_backend_reg_by_name", _Pointer, text)
    find = ggml_function(llama_cpp, get_address, _Pointer, _Pointer, text)
    function = find(by_name(b"RPC"), b"ggml_backend_rpc_add_server")
    add = ctypes.CFUNCTYPE(_Pointer, text)(function)
    registry: int | None = add(address.encode())
    return registry
