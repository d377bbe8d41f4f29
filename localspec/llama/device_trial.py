"""Times a model on a device, in a process of its own: a driver may crash, or never end.

    python -m localspec.llama.device_trial JSON

`planning.device_trials` starts it. It prints a line of JSON for each trial that is done.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localspec.errors import DecodeError, LocalspecError, MemoryLimitError
from localspec.llama import native
from localspec.llama.device_times import TRIAL_TOKENS, Times
from localspec.llama.library import llama_cpp
from localspec.llama.model_options import LlamaOptions
from localspec.llama.opening import context_params, loaded_weights, new_context

_CONTEXT_LENGTH = 1024
_FEW_TOKENS = 64  # tokens that show how slow a device is, at an eighth of the cost
_ROUNDS = 3
_ENOUGH_S = 1.0  # seconds of reading that suffice with fewer rounds
_SLOW_READ_S = 3.0  # from here on only the time of few tokens is measured


def main() -> None:
    """Run the trials that the command line names, and print their times."""
    asked = json.loads(sys.argv[1])
    # If the starting process ends, only this timer ends this one.
    watchdog = threading.Timer(asked["seconds"], os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
    path = Path(asked["path"])
    for trial in asked["trials"]:
        options = LlamaOptions(**trial["options"])
        try:
            times = _times(path, options, asked["num_tokens"], asked["slow_s"])
        except LocalspecError as error:
            lacks_memory = isinstance(error, MemoryLimitError)
            _say({"error": str(error), "lacks_memory": lacks_memory})
            break
        _say({"name": trial["name"], **times})
        if times["is_slow"]:
            break
    os._exit(0)  # a driver may crash when its library is unloaded


def _say(result: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def _times(
    path: Path,
    options: LlamaOptions,
    num_tokens: int,
    slow_s: float,
) -> dict[str, Any]:
    """The fields of `Times`, and whether the device is too slow to be timed further.

    Args:
        path: The model's file.
        options: The options with which it is opened.
        num_tokens: Tokens of its vocabulary.
        slow_s: The most `Times.cost_s`, in seconds; a device that takes longer is too slow.
    """
    with (
        native.LoadWatch(lambda _share: None) as watch,
        loaded_weights(path, options, watch) as model,
    ):
        context = new_context(model, path.name, context_params(options, _CONTEXT_LENGTH))
        return _decoded(context, num_tokens, slow_s)


def _decoded(context: int, num_tokens: int, slow_s: float) -> dict[str, Any]:
    memory = llama_cpp.llama_get_memory(context)

    def read(count: int) -> float:
        llama_cpp.llama_memory_clear(memory, True)  # noqa: FBT003
        tokens = [7 * index % num_tokens for index in range(count)]
        return _decode_s(context, tokens)

    def write() -> float:
        return _decode_s(context, [1])

    write()  # pages the weights in
    read(_FEW_TOKENS)  # compiles what a driver compiles
    few_s = TRIAL_TOKENS / _FEW_TOKENS * read(_FEW_TOKENS)
    write()
    write_s = statistics.median(write() for _ in range(_ROUNDS))
    if Times(few_s, write_s).cost_s > slow_s:
        return {
            "read_s": few_s,
            "write_s": write_s,
            "is_slow": True,
        }
    read_s = few_s
    if few_s < _SLOW_READ_S:
        read(TRIAL_TOKENS)
        read_s = _median_of_some(functools.partial(read, TRIAL_TOKENS))
    return {
        "read_s": read_s,
        "write_s": write_s,
        "is_slow": False,
    }


def _median_of_some(timed: Callable[[], float]) -> float:
    """The median of several calls; of fewer if they take long."""
    seconds = [timed()]
    while len(seconds) < _ROUNDS and sum(seconds) < _ENOUGH_S:
        seconds.append(timed())
    return statistics.median(seconds)


def _decode_s(context: int, tokens: list[int]) -> float:
    """Seconds for a decode. Raises DecodeError if libllama refuses it."""
    array = (ctypes.c_int32 * len(tokens))(*tokens)
    batch = llama_cpp.llama_batch_get_one(array, len(tokens))
    begin = time.perf_counter()
    code = llama_cpp.llama_decode(context, batch)
    llama_cpp.llama_synchronize(context)
    seconds = time.perf_counter() - begin
    if code:
        raise DecodeError(f"libllama refused a decode of {len(tokens)} tokens ({code})")
    return seconds


if __name__ == "__main__":
    main()
