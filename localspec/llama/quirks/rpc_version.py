"""A program that writes which version of the RPC protocol a libllama speaks.

    python rpc_version.py LIBLLAMA

libllama has no function for it, but its server says it before anything else. At an address that
is none it then ends, and has opened nothing. `rpc_backend` runs this in a process of its own,
since C writes it to stdout. It is run as a file, so it imports nothing of the package.

Goes when libllama has a function that says the version.
"""

from __future__ import annotations

import ctypes
import sys

_CPU_DEVICE = 0  # of enum ggml_backend_dev_type
_Pointer = ctypes.c_void_p


def main(library: str) -> None:
    """Have the server of the library at that path start, and fail. Nothing without one."""
    ggml = ctypes.CDLL(library)
    named = ctypes.CFUNCTYPE(_Pointer, ctypes.c_char_p)(("ggml_backend_reg_by_name", ggml))
    find = ctypes.CFUNCTYPE(_Pointer, _Pointer, ctypes.c_char_p)(
        ("ggml_backend_reg_get_proc_address", ggml)
    )
    of_kind = ctypes.CFUNCTYPE(_Pointer, ctypes.c_int)(("ggml_backend_dev_by_type", ggml))
    registry = named(b"RPC")
    address = find(registry, b"ggml_backend_rpc_start_server") if registry else None
    if not address:
        return
    devices = (_Pointer * 1)(of_kind(_CPU_DEVICE))
    start = ctypes.CFUNCTYPE(
        None,
        *(ctypes.c_char_p, ctypes.c_char_p),  # where, and its cache
        *(ctypes.c_size_t, ctypes.c_size_t),  # of threads and devices
        ctypes.POINTER(_Pointer),
    )
    start(address)(b"nowhere", None, 1, 1, devices)


if __name__ == "__main__":
    main(sys.argv[1])
