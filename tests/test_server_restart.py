"""A server that was stopped or killed: what the next one need not read again."""

from __future__ import annotations

import os
import signal
import sys

import pytest

import inside
from localspec.engine.cache_disk import CacheDisk
from localspec.engine.cache_store import kept_files
from localspec.server.app import Limits
from server_runner import running_server
from waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("own_folders")]

LONG = "Tell me of a fox. " + " ".join(f"It met {n} owls on hill {n + 7}." for n in range(60))
LARGE = CacheDisk(1_000_000_000)


def num_decoded(answer):
    usage = answer["usage"]
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


def test_a_server_that_is_stopped_writes_and_the_next_one_reads():
    with running_server(cache_disk=LARGE) as server:
        first = server.chat(LONG, max_tokens=12)
        assert num_decoded(first) > 500
    assert len(kept_files()) == 1
    with running_server(cache_disk=LARGE) as server:
        again = server.chat(LONG, max_tokens=12)
        assert num_decoded(again) == 1
        assert again["choices"][0]["message"] == first["choices"][0]["message"]
    with running_server(cache_disk=CacheDisk(LARGE.num_bytes, "another key")) as server:
        assert num_decoded(server.chat(LONG, max_tokens=2)) > 500
    with running_server() as server:
        assert num_decoded(server.chat(LONG, max_tokens=2)) > 500


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_what_an_idle_server_has_written_outlives_the_models_process(number):
    """A kill does after a pause; what tells all processes to end, at once."""
    keep_s = 0.1 if number == "SIGKILL" else 3600.0
    with running_server(cache_disk=LARGE, limits=Limits(keep_s=keep_s)) as server:
        server.chat(LONG, max_tokens=12)
        engine = server.models.all[0].engine
        if number == "SIGKILL":
            wait_until(kept_files)
        os.kill(engine.process_id, getattr(signal, number))
        wait_until(lambda: not inside.child_process(engine).is_running())
        assert len(kept_files()) == 1
        assert num_decoded(server.chat(LONG, max_tokens=12)) == 1
