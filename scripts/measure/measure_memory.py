"""Compares the memory estimate with what a process really takes.

    python scripts/measure/measure_memory.py --folder pairs

For the demo pair and for two pairs of real shape, which are made in the folder if they are not
there (see make_pair.py; 1.7 GB of disk). Each is loaded by a process of its own, which reads a
prompt that fills the context and answers it, which takes some minutes. Prints estimate,
measured peak and ratio, in MB, and ends with 1 if one of them is off by more than 5 %.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

import psutil

from localspec.gguf_file.check import check_model_file
from localspec.machine import peak_memory_bytes
from localspec.preflight.free_memory import Planned, free_memory, pair_memory
from localspec.presets.located import locate
from localspec.presets.presets import find_preset
from shape_pair.bigrams import TextSpec
from shape_pair.pair import PairSpec, make_pair

_TEXT = TextSpec(entropy=1.0, agreement=(0.8,), segment=64, period=None, seed=1)
_ANSWER_TOKENS = 16
_LARGEST_ERROR = 0.05


def measured_peak_bytes(target: Path, draft: Path, context_length: int) -> int:
    """The memory of the calling process for the pair, without that of the process itself."""
    import localspec
    from localspec.llama import model as llama  # noqa: F401  its own memory is not the pair's

    localspec.load  # noqa: B018  loads what it needs
    before = psutil.Process().memory_info().rss
    with localspec.load(
        target=target,
        draft=draft,
        draft_tokens=3,  # both read the whole prompt
        context_length=context_length,
        num_threads=1,
        force=True,
    ) as engine:
        prompt = [token % 1000 + 300 for token in range(context_length - _ANSWER_TOKENS)]
        engine.generate_raw(prompt, max_tokens=_ANSWER_TOKENS).reply()
    return peak_memory_bytes() - before


def pairs(folder: Path) -> list[tuple[str, tuple[Path, Path], int]]:
    """Name, files and context of every pair that is measured."""
    demo_target, demo_draft = locate(find_preset("demo")).values()
    assert demo_draft is not None
    found = [("demo", (demo_target, demo_draft), 2048)]
    for target, context_length in (("0.5B", 8192), ("1.5B", 4096)):
        spec = PairSpec(target, "0.5B", "Q4_0", "Q4_0", _TEXT)
        found.append((f"{target} + 0.5B", make_pair(spec, folder), context_length))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare estimated and measured memory.")
    parser.add_argument("--folder", type=Path, required=True, help="where the made pairs lie")
    folder = parser.parse_args().folder
    worst = 0.0
    print(f"{'pair':14} {'context':>8} {'estimate':>9} {'measured':>9} {'ratio':>6}")
    for name, (target, draft), context_length in pairs(folder):
        models = [Planned(check_model_file(path)) for path in (target, draft)]
        estimated = pair_memory(models, context_length, free_memory()).peak_bytes
        # Spawned: a process that knows nothing of this one's memory.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            measured = pool.apply(measured_peak_bytes, (target, draft, context_length))
        ratio = estimated / measured
        worst = max(worst, abs(ratio - 1))
        print(
            f"{name:14} {context_length:8} {estimated / 1e6:9.1f} {measured / 1e6:9.1f} "
            f"{ratio:6.3f}"
        )
    sys.exit(worst > _LARGEST_ERROR)


if __name__ == "__main__":
    main()
