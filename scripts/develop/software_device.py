"""Runs the tests of a GPU's path on a device that is software: Mesa's llvmpipe, by Vulkan.

    python scripts/develop/software_device.py

It says nothing of speed. On Debian and Ubuntu the packages are mesa-vulkan-drivers (Mesa 23
or newer: 22.3 corrupts its memory) and libvulkan1. llvmpipe compiles a program for each kind
and size of a decode, in one thread: a minute or two for a first decode alone. So the first run
takes long, and later ones are short, since the programs are kept in --shaders. The time is
printed. Exit code 0 where there is no such device, which is said. Further arguments go to
pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "tests/llama/test_device_path.py"
# Prints the software devices that libllama finds.
_LOOK = """
from localspec.llama.library import devices
print(*[each.description for each in devices() if "llvmpipe" in each.description], sep="\\n")
"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run the tests of a GPU's path on software.")
    usual = Path.home() / ".cache" / "localspec" / "shaders"
    parser.add_argument("--shaders", type=Path, default=usual, help="where programs are kept")
    asked, for_pytest = parser.parse_known_args()
    environment = {
        **os.environ,
        "GGML_VK_VISIBLE_DEVICES": "0",  # without it ggml passes over devices that are software
        "GGML_VK_SERIALIZE_SUBMISSIONS": "1",
        "MESA_SHADER_CACHE_DIR": str(asked.shaders),
        "MESA_SHADER_CACHE_MAX_SIZE": "2G",
    }
    found = subprocess.run(
        [sys.executable, "-c", _LOOK],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    device = found.stdout.strip()
    if found.returncode or not device:
        said = found.stderr.strip().splitlines() or ["Vulkan shows none to this libllama"]
        print(f"There is no software device here: {said[-1]}")
        print("Nothing was tried. It needs mesa-vulkan-drivers and libvulkan1.")
        return
    is_warm = asked.shaders.is_dir() and any(asked.shaders.rglob("*"))
    state = "kept programs" if is_warm else "no kept programs"
    print(f"{device}, {state} in {asked.shaders}", flush=True)
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", "0"]
    # The first decode of a kind may take minutes.
    command += ["-o", "faulthandler_timeout=0", "-o", "timeout=0"]
    done = subprocess.run(
        [*command, str(TESTS), *for_pytest], env=environment, cwd=TESTS.parents[2], check=False
    )
    print(f"{(time.monotonic() - begin) / 60:.1f} minutes, with {state}")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
