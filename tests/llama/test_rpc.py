"""Models whose layers are on real RPC servers of llama.cpp: texts, faults, and what is said."""

from __future__ import annotations

import dataclasses
import json

import llama_cpp
import pytest

import inside
import localspec
from command_line import run
from comparison.rpc_server import running_servers
from head_maker import BlockHead, write_block_head, write_head_model
from localspec.isolated import process as child_process
from localspec.llama import native, rpc_backend, rpc_servers
from rpc_standin import (
    PROGRAM,
    answering,
    device_count,
    device_memory,
    hello,
    needs_servers,
    stopped,
)

pytestmark = [needs_servers, pytest.mark.process]

STORY = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"
LONG = localspec.SamplingParams(temperature=0, ignore_eos=True)
# The same on both sides: which kernels compute is chosen by whether there is a GPU or a server.
PLAIN = localspec.LlamaOptions(flash_attention="off")


@pytest.fixture(scope="module")
def servers():
    with running_servers(PROGRAM, 2, num_threads=1) as found:
        yield found


@pytest.fixture
def server():
    """One that a test may end."""
    with running_servers(PROGRAM, 1, num_threads=1) as [one]:
        yield one


def opened(*servers, **arguments):
    usual = {"draft_tokens": 3, "target_options": PLAIN}
    rpc = [server.address for server in servers]
    return localspec.IsolatedEngine(rpc=rpc, **usual | arguments)


def texts_of(engine):
    """Greedy, seeded with the coupled rule, and of a conversation."""
    chat = engine.chat(system="Be brief.")
    return [
        engine.generate_raw(STORY, temperature=0, max_tokens=80).reply().token_ids,
        engine.generate_raw(STORY, temperature=0.8, seed=3, max_tokens=80).reply().token_ids,
        [
            chat.send(text, temperature=0, max_tokens=20).reply().text
            for text in ("Hello!", "Why?")
        ],
    ]


def test_text_is_that_of_this_machine_and_draft_and_costs_are(servers):
    with localspec.load(draft_tokens=3, target_options=PLAIN) as engine:
        expected = texts_of(engine)
    with opened(*servers) as engine:
        assert texts_of(engine) == expected
        reply = engine.generate_raw(STORY, temperature=0, max_tokens=80).reply()
        memory = engine.memory().models
    assert reply.stats.num_accepted > 20
    target, draft = memory.models
    assert sum(target.gpu_layers[:2]) == target.num_layers
    assert min(target.gpu_layers[:2]) > 0
    assert sum(draft.gpu_layers) == 0


@pytest.mark.parametrize("name", ["qwen35", "gemma4", "dflash"])
def test_heads_read_a_target_that_is_elsewhere(name, servers, tmp_path, demo_target):
    """Inside its file only if asked for; apart, also one that shares its output or cache."""
    architecture = "qwen3" if name == "dflash" else name
    target = write_head_model(tmp_path / "target.gguf", demo_target, architecture)
    files = {"target": target}
    if name == "dflash":
        files["head"] = write_block_head(tmp_path / "h.gguf", target, BlockHead())
    elif name != "qwen35":
        files["head"] = write_head_model(tmp_path / "h.gguf", demo_target, name, part="head")
    options = dataclasses.replace(PLAIN, context_length=512)
    usual = {**files, "target_options": options, "draft_tokens": 3}
    prompt = [5 + 37 * index % 900 for index in range(30)]
    with localspec.load(proposer="head", **usual) as engine:
        expected = engine.generate_raw(prompt, temperature=0, max_tokens=40).reply()
    with opened(*servers, proposer="head", **usual) as engine:
        found = engine.generate_raw(prompt, temperature=0, max_tokens=40).reply()
    assert found.token_ids == expected.token_ids
    assert found.stats.num_accepted == expected.stats.num_accepted > 0
    with opened(*servers, **usual) as engine:
        drafted = engine.generate_raw(prompt, max_tokens=20).reply().stats.drafted_per_proposer
    assert (localspec.ProposerKind.HEAD in drafted) == (name != "qwen35")


def test_a_server_that_is_not_there_is_named_before_anything_is_loaded(server, servers):
    server.kill()
    with pytest.raises(localspec.RpcError, match=f"{server.address} cannot be reached"):
        opened(servers[0], server)
    found = run("generate", "--rpc", server.address, "Hi")
    assert found.exit_code == 1
    assert server.address in found.stderr


def test_a_server_of_another_version_is_refused_with_both_versions():
    ours = rpc_backend.protocol_of(inside.library_path(native.shared_library(llama_cpp)))
    answers = device_count(1), device_memory(1 << 30, 1 << 30)
    with answering(hello(ours.major + 1, 0), *answers) as address:
        with pytest.raises(localspec.RpcError) as caught:
            localspec.IsolatedEngine(rpc=[address])
        assert f"version {ours.major + 1}.0.0" in str(caught.value)
        assert str(ours) in str(caught.value)
        found = json.loads(run("doctor", "--json", "--rpc", address).output)
    assert str(caught.value) in [problem["what"] for problem in found["problems"]]


def test_a_server_killed_in_mid_answer(server, servers):
    """The text so far stays; the next question names who does not answer, or is answered."""
    with opened(servers[0], server) as engine:
        chat = engine.chat()
        stream = chat.send("Tell me a story.", sampling=LONG)
        said = [next(stream) for _ in range(8)]
        server.kill()
        with pytest.raises(localspec.CrashedError) as caught:
            said += list(stream)
        assert f"{server.address} cannot be reached" in str(caught.value)
        assert servers[0].address not in str(caught.value)
        assert "will be restarted" in caught.value.hint
        text = "".join(piece.text for piece in said)
        assert chat.messages[-1] == {"role": "assistant", "content": stream.reply().text}
        assert stream.reply().text.startswith(text)
        with pytest.raises(localspec.RpcError, match=f"{server.address} cannot be reached"):
            chat.send("Go on.").reply()
        server.start()
        assert chat.send("Go on.", sampling=LONG, max_tokens=5).reply().text
        assert len(chat.messages) == 4


def test_a_server_that_stands_still_is_not_waited_for_for_ever(server, monkeypatch):
    """In mid-answer and idle; it goes on afterwards, though its client has gone."""
    monkeypatch.setattr(child_process, "CHILD_SILENCE_S", 8.0)
    monkeypatch.setattr(rpc_servers, "SERVER_WAIT_S", 1.0)
    with opened(server) as engine:
        chat = engine.chat()
        stream = chat.send("Tell me a story.", sampling=LONG)
        for _ in range(3):
            next(stream)
        with stopped(server):
            with pytest.raises(localspec.CrashedError, match="waited too long") as caught:
                list(stream)
            assert f"{server.address} did not answer" in str(caught.value)
            with pytest.raises(localspec.RpcError, match=server.address):
                chat.send("Go on.").reply()
        assert chat.send("Go on.", sampling=LONG, max_tokens=5).reply().text
        assert server.process.poll() is None
        with stopped(server):
            engine.close()
    assert server.process.poll() is None
