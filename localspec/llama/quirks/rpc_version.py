"""A program that prints which version of the RPC protocol a libllama speaks.

    python rpc_version.py LIBLLAMA

libllama has no function for the version, but its RPC server prints it when it starts. With an
invalid address, the server ends after that and has opened nothing. `rpc_backend` runs this
program in another process, since C writes to stdout. It runs as a file, so it imports nothing
of the package.

Remove it when libllama has a function for the version.
"""

from __future__ import annotations

import ctypes
import sys

_CPU_DEVICE = 0  # of enum ggml_backend_dev_type
_Pointer = ctypes.c_void_p


def main(library: str) -> None:
    """Let a libllama print the version, by starting its RPC server, which fails at once.

    Prints nothing if the library has no RPC server.

    Args:
        library: The path of libllama.
    """
    ggml = ctypes.CDLL(library)
    text = ctypes.c_char_p
    backend_by_name = ctypes.CFUNCTYPE(_Pointer, text)(("ggml_backend_reg_by_name", ggml))
    function_address = ctypes.CFUNCTYPE(_Pointer, _Pointer, text)(
        ("ggml_backend_reg_get_proc_address", ggml)
    )
    device_by_type = ctypes.CFUNCTYPE(_Pointer, ctypes.c_int)(
        ("ggml_backend_dev_by_type", ggml)
    )
    backend = backend_by_name(b"RPC")
    if not backend:
        return
    address = function_address(backend, b"ggml_backend_rpc_start_server")
    if not address:
        return
    start_type = ctypes.CFUNCTYPE(
        None,
        *(text, text),  # the address and the cache folder
        *(ctypes.c_size_t, ctypes.c_size_t),  # numbers of threads and devices
        ctypes.POINTER(_Pointer),
    )
    start_server = start_type(address)
    devices = (_Pointer * 1)(device_by_type(_CPU_DEVICE))
    start_server(b"nowhere", None, 1, 1, devices)


if __name__ == "__main__":
    main(sys.argv[1])
