"""Builds ggml-rpc-server from the source of the installed llama-cpp-python.

    python scripts/develop/build_rpc_server.py

It takes minutes, once, and needs CMake and a C++ compiler. Prints the path of the program,
which the tests of RPC servers start. They also need a llama-cpp-python with that backend:

    CMAKE_ARGS=-DGGML_RPC=ON python -m pip install --force-reinstall --no-deps \\
        --no-cache-dir --no-binary llama-cpp-python llama-cpp-python
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "compare"))

from comparison.llama_tools import RPC_SERVER, build_programs, default_folder, program_in
from localspec.errors import LocalspecError


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build llama.cpp's RPC server.")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers")
    asked = parser.parse_args()
    try:
        binaries = build_programs(asked.folder, [RPC_SERVER], jobs=asked.jobs)
    except LocalspecError as error:
        parser.exit(1, f"Error: {error}\nHint: {error.hint}\n")
    print(program_in(binaries, RPC_SERVER))


if __name__ == "__main__":
    main()
