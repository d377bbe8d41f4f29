"""Times a model on a device, in a process of its own: a driver may crash, or never end.

    python -m localspec.llama.device_trial JSON

`planning.device_trials` starts it. It prints a line of JSON for each trial: its name and times,
or an error. After an error or a slow trial it ends.
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
_NUM_ROUNDS = 3  # measurements, whose median counts
_ENOUGH_S = 1.0  # seconds of reading after which fewer rounds suffice
_SLOW_READ_S = 3.0  # if TRIAL_TOKENS would take longer, only few tokens are read


def main() -> None:
    """Run the trials that the command line names, and print their results.

    Ends the process after the last trial, an error, or the first slow trial.
    """
    request = json.loads(sys.argv[1])
    # Ends this process if it takes too long, even if the process that started it has ended.
    watchdog = threading.Timer(request["seconds"], os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
    path = Path(request["path"])
    for trial in request["trials"]:
        options = LlamaOptions(**trial["options"])
        try:
            times = _run_trial(path, options, request["num_tokens"], request["slow_s"])
        except LocalspecError as error:
            lacks_memory = isinstance(error, MemoryLimitError)
            _print_line({"error": str(error), "lacks_memory": lacks_memory})
            break
        _print_line({"name": trial["name"], **times})
        if times["is_slow"]:
            break
    os._exit(0)  # a driver may crash when its library is unloaded


def _print_line(result: dict[str, Any]) -> None:
    """Print a line of JSON at once."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def _run_trial(
    path: Path,
    options: LlamaOptions,
    num_tokens: int,
    slow_s: float,
) -> dict[str, Any]:
    """Load a model, and time it. Returns the fields of `Times`, and "is_slow".

    Only an error frees the weights, and nothing frees the context: the process ends soon.

    Args:
        path: The model's file.
        options: The options with which it is opened.
        num_tokens: Tokens of its vocabulary.
        slow_s: The most seconds of `Times.cost_s`. A device that takes longer is slow, and is
            not timed further.
    """
    with (
        native.LoadWatch(lambda _share: None) as watch,
        loaded_weights(path, options, watch) as model,
    ):
        context = new_context(model, path.name, context_params(options, _CONTEXT_LENGTH))
        return _measure(context, num_tokens, slow_s)


def _measure(context: int, num_tokens: int, slow_s: float) -> dict[str, Any]:
    """Time a context's decodes. Arguments and result as for `_run_trial`.

    Args:
        context: libllama's pointer to the context.
    """
    memory = llama_cpp.llama_get_memory(context)

    def read(count: int) -> float:
        """Seconds to decode a prompt of `count` tokens."""
        llama_cpp.llama_memory_clear(memory, True)  # noqa: FBT003
        tokens = [7 * index % num_tokens for index in range(count)]
        return _decode_s(context, tokens)

    def write() -> float:
        """Seconds to decode one more token."""
        return _decode_s(context, [1])

    write()  # pages the weights in
    read(_FEW_TOKENS)  # lets the driver compile its kernels
    # An estimate of the time for TRIAL_TOKENS, from few tokens.
    read_s = TRIAL_TOKENS / _FEW_TOKENS * read(_FEW_TOKENS)
    write()  # warms up
    write_s = statistics.median(write() for _ in range(_NUM_ROUNDS))
    is_slow = Times(read_s, write_s).cost_s > slow_s
    if not is_slow and read_s < _SLOW_READ_S:
        read(TRIAL_TOKENS)
        read_s = _median_s(functools.partial(read, TRIAL_TOKENS))
    return {
        "read_s": read_s,
        "write_s": write_s,
        "is_slow": is_slow,
    }


def _median_s(measure: Callable[[], float]) -> float:
    """The median of several measurements in seconds; of fewer if they take long."""
    seconds = [measure()]
    while len(seconds) < _NUM_ROUNDS and sum(seconds) < _ENOUGH_S:
        seconds.append(measure())
    return statistics.median(seconds)


def _decode_s(context: int, tokens: list[int]) -> float:
    """Seconds that a decode of these tokens takes. Raises DecodeError if libllama fails."""
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
