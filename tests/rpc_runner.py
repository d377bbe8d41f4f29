"""llama.cpp's RPC servers for tests; scripts/develop/build_rpc_server.py builds the program."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import llama_cpp
import pytest

from comparison.llama_tools import RPC_SERVER, binaries_of, default_folder, program_in
from comparison.rpc_server import RpcServer

# Before tests have a cache of their own.
PROGRAM = program_in(binaries_of(default_folder()), RPC_SERVER)

needs_servers = pytest.mark.skipif(
    not (llama_cpp.llama_supports_rpc() and PROGRAM.exists()),
    reason="ggml-rpc-server is not installed, or this llama-cpp-python has no RPC backend",
)


@contextlib.contextmanager
def stopped(server: RpcServer) -> Iterator[None]:
    """While the block runs, it stands still."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)
