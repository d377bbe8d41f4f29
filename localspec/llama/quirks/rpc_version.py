"""A program that prints which version of the RPC protocol a libllama speaks.

    python rpc_version.py LIBLLAMA

libllama has no function for it, but its server prints it first. With an invalid address, the
server then ends and has opened nothing. `rpc_backend` runs this in another process, since C
writes to stdout. It runs as a file, so it imports nothing of the package.

Remove it when libllama has a function for the version.
"""

from __future__ import annotations

import ctypes
import sys

_CPU_DEVICE = 0  # of enum ggml_backend_dev_type
_Pointer = ctypes.c_void_p


def main(library: str) -> None:
    """Start the server of the library at that path, which fails; nothing without a server."""
    ggml = ctypes.CDLL(library)
    named = ctypes.CFUNCTYPE(_Pointer, ctypes.c_char_p)(("ggml_backend_reg_by_name", ggml))
    find = ctypes.CFUNCTYPE(_Pointer, _Pointer, ctypes.c_char_p)(
        ("ggml_backend_reg_get_proc_address", ggml)
    )
    of_kind = ctypes.CFUNCTYPE(_Pointer, ctypes.c_int)(("ggml_backend_dev_by_type", ggml))
    registry = named(b"RPC")
    if not registry:
        return
    address = find(registry, b"ggml_backend_rpc_start_server")
    if not address:
        return
    devices = (_Pointer * 1)(of_kind(_CPU_DEVICE))
    start = ctypes.CFUNCTYPE(
        None,
        *(ctypes.c_char_p, ctypes.c_char_p),  # the address and the cache folder
        *(ctypes.c_size_t, ctypes.c_size_t),  # numbers of threads and devices
        ctypes.POINTER(_Pointer),
    )
    start(address)(b"nowhere", None, 1, 1, devices)


if __name__ == "__main__":
    main(sys.argv[1])
