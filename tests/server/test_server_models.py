"""Models and servers that come and go, and the caches of the texts that each keeps."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import pytest

import inside
from localspec.engine.cache_store import kept_files
from localspec.engine.open_models import CacheDisk
from localspec.errors import MemoryLimitError, OptionError
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.presets.presets import find_preset
from localspec.server.app import Limits
from localspec.server.served_models import ServedModel, ServedModels
from server_runner import running_server
from waiting import wait_until


@pytest.mark.process
def test_a_question_beside_a_conversation_does_not_take_its_place():
    """As an agent asks for a title between two turns."""
    system = {"role": "system", "content": "You help. " * 40}
    with running_server() as server:

        def turn(messages):
            found = server.chat(messages=messages, max_tokens=30)
            said = found["choices"][0]["message"]
            return [*messages, said], found["usage"]

        conversation, _ = turn([system, {"role": "user", "content": "Tell me a story. " * 20}])
        for number in range(3):
            side = [{"role": "user", "content": f"Number {number}: a title, please! " * 30}]
            turn(side)
            conversation, usage = turn([*conversation, {"role": "user", "content": "Go on."}])
            new = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
            assert new < 40
        kept = server.models.all[0].engine.memory()
        assert 0 < kept.kept_bytes <= kept.most_kept_bytes


@pytest.mark.process
def test_who_gave_up_and_asks_again_goes_on_where_the_prompt_was_read_to():
    long = [{"role": "user", "content": "Read this. " * 500}]
    body = {"messages": long, "max_tokens": 2, "stream": True}
    with running_server() as server:
        with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
            for line in response.iter_lines():
                if "prompt_progress" in line:
                    break
        server.chat(max_tokens=2)  # in between
        usage = server.chat(messages=long, max_tokens=2)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 256


@pytest.mark.process
def test_a_model_that_nobody_uses_is_closed_and_loaded_again():
    with running_server(limits=Limits(unload_s=0.1)) as server:
        server.chat(max_tokens=1)
        while server.models.all[0].engine is not None:
            time.sleep(0.02)
        assert server.chat(max_tokens=1)["choices"]


@pytest.mark.process
def test_models_make_room_for_each_other():
    """Nothing in use is closed for another."""
    opened: list[IsolatedEngine] = []

    class Model(ServedModel):
        def load(self):
            if opened:
                raise MemoryLimitError("there is no room", "Close something.")
            opened.append(super().load())
            return opened[0]

    class Models(ServedModels):
        async def close_one(self, model):
            await super().close_one(model)
            opened.clear()

    async def use():
        first, second = (Model(find_preset("demo"), size) for size in (512, 256))
        models = Models([first, second], takes_any_name=True)
        async with models.opened(first) as engine:
            assert engine.context_length == 512
            with pytest.raises(MemoryLimitError):
                async with models.opened(second):
                    pass
        async with models.opened(second) as engine:
            assert engine.context_length == 256
        assert first.engine is None
        await models.close()
        assert second.engine is None

    asyncio.run(use())


@pytest.mark.process
def test_a_load_that_its_client_gave_up_serves_the_next():
    async def use():
        model = ServedModel(find_preset("demo"), 256)
        models = ServedModels([model], takes_any_name=True)
        given_up = asyncio.create_task(models.opened(model).__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loading = model.loading
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        async with models.opened(model) as engine:
            assert engine is await loading
        await models.close()

    asyncio.run(use())


@pytest.mark.process
def test_a_model_remembers_or_does_not():
    forgetful, remembering = (ServedModel(find_preset("demo"), 256) for _ in range(2))
    forgetful.remembers = False
    with forgetful.load() as engine, pytest.raises(OptionError, match="no memory"):
        engine.remember("text")
    with remembering.load() as engine:
        engine.remember("text")


LONG = "Tell me of a fox. " + " ".join(f"It met {n} owls on hill {n + 7}." for n in range(60))
LARGE = CacheDisk(1_000_000_000)


def num_decoded(answer):
    usage = answer["usage"]
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.process
@pytest.mark.usefixtures("own_folders")
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


@pytest.mark.process
@pytest.mark.usefixtures("own_folders")
@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_what_an_idle_server_has_written_outlives_the_models_process(number):
    """A kill does after a pause; what tells all processes to end, at once."""
    save_s = 0.1 if number == "SIGKILL" else 3600.0
    with running_server(cache_disk=LARGE, limits=Limits(save_s=save_s)) as server:
        server.chat(LONG, max_tokens=12)
        engine = server.models.all[0].engine
        if number == "SIGKILL":
            wait_until(kept_files)
        os.kill(engine.process_id, getattr(signal, number))
        wait_until(lambda: not inside.child_process(engine).is_running())
        assert len(kept_files()) == 1
        assert num_decoded(server.chat(LONG, max_tokens=12)) == 1
