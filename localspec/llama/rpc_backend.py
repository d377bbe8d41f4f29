"""libllama's RPC back end, which computes on other machines: its version, and its devices.

Each failure in the back end ends the process, so `rpc_servers` asks the servers first.
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
from localspec.llama.quirks.own_process import program_output
from localspec.llama.rpc_servers import Protocol, RpcServer, ask_servers

_Pointer = ctypes.c_void_p


def usable_servers(addresses: Sequence[str]) -> list[RpcServer]:
    """The descriptions of the RPC servers at these addresses, if all can be used.

    Args:
        addresses: Addresses that `rpc_address.checked_addresses` has checked.

    Raises:
        RpcError: For the first server that does not answer, or cannot be used.
        OptionError: If this build has no RPC back end.
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
    """The error that says why this libllama cannot use the server; None if it can."""
    try:
        _require_backend()
        _require_protocol(server)
    except LocalspecError as error:
        return error
    return None


def _require_backend() -> None:
    """Raise OptionError if this build of libllama has no RPC back end."""
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
    """The version of the RPC protocol that a libllama speaks; None if it cannot be found out.

    Args:
        library: The path of libllama. A program in another process asks it.
    """
    written = program_output(rpc_version.__file__, library)
    match = re.search(r" v(\d+)\.(\d+)\.(\d+)", written)
    if match is None:
        return None
    return Protocol(int(match[1]), int(match[2]), int(match[3]))


def _require_protocol(server: RpcServer) -> None:
    """Raise RpcError for a server whose protocol would make this libllama end the process.

    That is one with another major version, or a newer minor version. Raises nothing if
    libllama's own version is unknown.
    """
    ours = protocol_of(shared_library(llama_cpp)._name)
    theirs = server.protocol
    if ours is None:
        return
    if ours.major != theirs.major or ours.minor < theirs.minor:
        raise RpcError(
            f"{server.address} speaks version {theirs} of the RPC protocol, libllama {ours}",
            f"Build its ggml-rpc-server from the source of llama-cpp-python "
            f"{version('llama-cpp-python')}.",
        )


def remote_pointers(addresses: Sequence[str]) -> list[int]:
    """Connect libllama to the servers. Returns ggml's pointers to their devices, in order.

    The servers are not registered with ggml, so only models that name them use them. Raises
    RpcError for a server without a device.
    """
    size = ctypes.c_size_t
    num_devices = ggml_function(llama_cpp, "ggml_backend_reg_dev_count", size, _Pointer)
    get_device = ggml_function(
        llama_cpp,
        "ggml_backend_reg_dev_get",
        _Pointer,
        _Pointer,
        size,
    )
    pointers = []
    for address in addresses:
        registry = _add_server(address)
        if not registry:
            raise RpcError(f"{address} has no device", "Start it with one (--device).")
        for index in range(num_devices(registry)):
            pointers.append(get_device(registry, index))
    return pointers


def touch_servers(addresses: Sequence[str]) -> None:
    """Ask each device of the servers for its memory, so that a lost server is noticed.

    libllama ends the process if a server has gone.
    """
    for device in remote_pointers(addresses):
        device_memory(llama_cpp, device)


def _add_server(address: str) -> int | None:
    """Connect to a server. Returns ggml's pointer to its registry; None without a device."""
    text = ctypes.c_char_p
    backend_by_name = ggml_function(llama_cpp, "ggml_backend_reg_by_name", _Pointer, text)
    function_address = ggml_function(
        llama_cpp,
        "ggml_backend_reg_get_proc_address",
        _Pointer,
        _Pointer,
        text,
    )
    backend = backend_by_name(b"RPC")
    add_server_pointer = function_address(backend, b"ggml_backend_rpc_add_server")
    add_server = ctypes.CFUNCTYPE(_Pointer, text)(add_server_pointer)
    registry: int | None = add_server(address.encode())
    return registry
