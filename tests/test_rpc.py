"""Models whose layers are on real RPC servers of llama.cpp: texts, faults, and what is said."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import threading

import llama_cpp
import pytest
from click.testing import CliRunner
from head_maker import BlockHead, write_block_head, write_head_model
from rpc_runner import PROGRAM, needs_servers, stopped
from rpc_standin import answering, device_count, device_memory, hello

import inside
import localspec
from comparison.rpc_server import running_servers
from localspec.cli import main
from localspec.isolated import process as child_process
from localspec.llama import native, rpc_backend, rpc_servers
from localspec.llama.rpc_servers import ask_server
from localspec.presets.presets import find_preset
from localspec.server.served_models import ServedModel, ServedModels

pytestmark = [needs_servers, pytest.mark.process]

STORY = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"
LONG = localspec.SamplingParams(temperature=0, ignore_eos=True)
# The same on both sides: which kernels compute is chosen by whether there is a GPU or a server.
PLAIN = localspec.LlamaOptions(flash_attention="off")
SHORT = dataclasses.replace(PLAIN, context_length=512)


@pytest.fixture(scope="module")
def servers():
    with running_servers(PROGRAM, 2, num_threads=1) as found:
        yield found


@pytest.fixture
def server():
    """One that a test may end."""
    with running_servers(PROGRAM, 1, num_threads=1) as [one]:
        yield one


@pytest.fixture
def brief(monkeypatch):
    """Waits that are over soon."""
    monkeypatch.setattr(child_process, "CHILD_SILENCE_S", 8.0)
    monkeypatch.setattr(rpc_servers, "SERVER_WAIT_S", 1.0)


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


def test_shares_decide_which_server_has_which_layers(servers):
    shares = dataclasses.replace(PLAIN, tensor_split=(24.0, 1.0), num_gpu_layers=25)
    with opened(*servers, target_options=shares) as engine:
        assert engine.memory().models.models[0].gpu_layers[:2] == (24, 1)
        assert engine.generate_raw(STORY, temperature=0, max_tokens=5).reply().token_ids
    few = dataclasses.replace(PLAIN, num_gpu_layers=3)
    with opened(*servers, target_options=few) as engine:
        assert sum(engine.memory().models.models[0].gpu_layers[:2]) == 3
        assert engine.generate_raw(STORY, temperature=0, max_tokens=5).reply().token_ids


def test_a_draft_is_on_a_server_where_it_is_told_so(servers):
    there = dataclasses.replace(PLAIN, rpc=(servers[1].address,))
    with opened(servers[0], draft_options=there) as engine:
        target, draft = engine.memory().models.models
        text = engine.generate_raw(STORY, temperature=0, max_tokens=40).reply().token_ids
    assert target.gpu_layers[:2] == (target.num_layers, 0)
    assert draft.gpu_layers[:2] == (0, draft.num_layers)
    with localspec.load(draft_tokens=3, target_options=PLAIN, draft_options=PLAIN) as engine:
        assert (
            engine.generate_raw(STORY, temperature=0, max_tokens=40).reply().token_ids == text
        )


@pytest.mark.parametrize("name", ["qwen35", "gemma4", "qwen3", "dflash"])
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


def test_libllama_speaks_the_version_that_its_server_says(server):
    ours = rpc_backend.protocol_of(inside.library_path(native.shared_library(llama_cpp)))
    assert ours == ask_server(server.address).protocol


def test_a_server_that_is_not_there_is_named_before_anything_is_loaded(server, servers):
    server.kill()
    with pytest.raises(localspec.RpcError, match=f"{server.address} cannot be reached"):
        opened(servers[0], server)
    found = CliRunner().invoke(main, ["generate", "--rpc", server.address, "Hi"])
    assert found.exit_code == 1
    assert server.address in found.stderr


def test_a_mute_port_is_waited_for_briefly():
    with answering() as address, pytest.raises(localspec.RpcError, match="did not answer"):
        localspec.IsolatedEngine(rpc=[address])


def test_a_server_of_another_version_is_refused_with_both_versions():
    ours = rpc_backend.protocol_of(inside.library_path(native.shared_library(llama_cpp)))
    answers = device_count(1), device_memory(1 << 30, 1 << 30)
    with answering(hello(ours.major + 1, 0), *answers) as address:
        with pytest.raises(localspec.RpcError) as caught:
            localspec.IsolatedEngine(rpc=[address])
        assert f"version {ours.major + 1}.0.0" in str(caught.value)
        assert str(ours) in str(caught.value)
        found = json.loads(
            CliRunner().invoke(main, ["doctor", "--json", "--rpc", address]).output
        )
    assert str(caught.value) in [problem["what"] for problem in found["problems"]]


def test_a_server_killed_while_models_are_loaded(server):
    """From the callback that hears of the load: the loading process dies, this one does not."""

    def kill(share):
        if share > 0.3:
            server.kill()

    with pytest.raises(localspec.CrashedError, match=f"{server.address} cannot be reached"):
        opened(server, progress=kill)


def test_a_server_killed_while_a_prompt_is_read(server):
    with opened(server) as engine:
        stream = engine.generate_raw(
            STORY * 60, on_prompt=lambda *_: server.kill(), max_tokens=5
        )
        with pytest.raises(localspec.CrashedError, match=server.address):
            list(stream)
        server.start()
        assert engine.generate_raw(STORY, max_tokens=3).reply().token_ids


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
        assert "is started again" in caught.value.hint
        text = "".join(piece.text for piece in said)
        assert chat.messages[-1] == {"role": "assistant", "content": stream.reply().text}
        assert stream.reply().text.startswith(text)
        with pytest.raises(localspec.RpcError, match=f"{server.address} cannot be reached"):
            chat.send("Go on.").reply()
        server.start()
        assert chat.send("Go on.", sampling=LONG, max_tokens=5).reply().text
        assert len(chat.messages) == 4


def test_a_server_killed_while_nothing_is_asked(server):
    """If it is there again the question is answered, else it is named; nothing is lost."""
    with opened(server) as engine:
        chat = engine.chat()
        chat.send("Hello!", max_tokens=5).reply()
        server.kill()
        server.start()
        assert chat.send("Hello again!", sampling=LONG, max_tokens=5).reply().text
        server.kill()
        with pytest.raises(localspec.RpcError, match=server.address):
            chat.send("Are you there?").reply()
        assert len(chat.messages) == 4


@pytest.mark.usefixtures("brief")
def test_a_server_that_stands_still_is_not_waited_for_for_ever(server):
    """In mid-answer and idle; it goes on afterwards, though its client has gone."""
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


@pytest.mark.usefixtures("brief")
def test_nobody_waits_long_for_an_answer_that_was_left(server, monkeypatch):
    """As by a second Ctrl-C, while the server stands still."""
    monkeypatch.setattr(child_process, "CHILD_PATIENCE_S", 1.0)
    monkeypatch.setattr(child_process, "CHILD_SILENCE_S", 600.0)
    with opened(server) as engine:
        stream = engine.generate_raw(STORY, sampling=LONG)
        next(stream)
        with stopped(server):
            alarm = threading.Timer(
                0.3, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]
            )
            alarm.start()
            with pytest.raises((KeyboardInterrupt, localspec.CrashedError)):
                list(stream)
            alarm.join()


def test_a_second_client_is_told_and_harms_nobody(server, monkeypatch):
    """A server has one client at a time; those who gave up waiting must not end it later."""
    monkeypatch.setattr(rpc_servers, "SERVER_WAIT_S", 0.5)
    with opened(server) as engine:
        stream = engine.generate_raw(STORY, sampling=LONG)
        next(stream)
        with pytest.raises(localspec.RpcError, match="did not answer") as caught:
            ask_server(server.address)
        assert "one client at a time" in caught.value.hint
        assert next(stream).token_ids
        stream.close()
    for _ in range(3):
        assert ask_server(server.address).devices
    with opened(server) as engine:
        assert engine.generate_raw(STORY, max_tokens=3).reply().token_ids
    assert server.process.poll() is None


def test_a_client_that_is_killed_in_mid_answer_leaves_the_server_running(server):
    for _ in range(3):
        with opened(server) as engine:
            stream = engine.generate_raw(STORY, sampling=LONG)
            next(stream)
            inside.system_process(engine).kill()
            with pytest.raises(localspec.CrashedError, match="which answer now"):
                list(stream)
    assert server.process.poll() is None


def test_commands_use_servers_and_say_where_layers_go(servers):
    rpc = ",".join(server.address for server in servers)

    def said(*words: str) -> str:
        found = CliRunner().invoke(main, words)
        assert found.exit_code == 0, found.output
        return found.stdout

    fixed = ("--draft-tokens", "3", "--flash-attn", "off", "--temperature", "0")
    here = said("generate", *fixed, "--json", "--max-tokens", "40", "Tell me a story.")
    there = said(
        "generate", *fixed, "--json", "--max-tokens", "40", "Tell me a story.", "--rpc", rpc
    )
    here, there = json.loads(here), json.loads(there)
    assert here["token_ids"] == there["token_ids"]
    assert here["draft_tokens"] == there["draft_tokens"] == 3
    explained = said("explain", "--rpc", rpc)
    for server in servers:
        assert f"of {server.address} (llama.cpp RPC server" in explained
    shared = json.loads(said("explain", "--rpc", rpc, "--tensor-split", "1,0", "--json"))
    assert shared["memory"]["models"][0]["gpu_layers"][:2] == [25, 0]
    examined = said("doctor", "--rpc", rpc)
    for server in servers:
        assert f"{server.address}: llama.cpp RPC server, protocol " in examined
    assert "cannot be reached" not in examined


def test_doctor_names_servers_that_do_not_answer(server):
    server.kill()
    examined = CliRunner().invoke(main, ["doctor", "--rpc", server.address]).output
    assert f"Problem    {server.address} cannot be reached" in examined


@pytest.mark.slow
def test_measurements_and_checks_run_where_the_models_are(server, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Tell me a story.\n")
    common = ("--rpc", server.address, "--draft-tokens", "3", "--prompts", str(prompts))
    measured = CliRunner().invoke(
        main, ["bench", *common, "--seconds", "60", "--max-tokens", "64", "--json"]
    )
    assert measured.exit_code == 0, measured.output
    assert json.loads(measured.stdout)["costs"]["ratios"][0] == 1.0
    checked = CliRunner().invoke(main, ["verify", *common, "--seconds", "9", "--details"])
    assert checked.exit_code in (0, 3), checked.output
    assert "NOT lossless" not in checked.stdout
    assert "Vocabulary:" in checked.stdout


def test_bench_of_a_server_that_dies_says_so(server):
    timer = threading.Timer(2.0, server.kill)
    timer.start()
    found = CliRunner().invoke(main, ["bench", "--rpc", server.address, "--seconds", "600"])
    timer.join()
    assert found.exit_code == 1
    assert f"{server.address} cannot be reached" in found.stderr


@pytest.mark.slow
def test_models_of_one_server_take_turns_on_it(server, monkeypatch):
    """`serve` closes the one that is not in use, as where memory is short."""
    monkeypatch.setattr(rpc_servers, "SERVER_WAIT_S", 0.5)
    demo = find_preset("demo")
    models = ServedModels(
        [
            ServedModel(dataclasses.replace(demo, name=name, rpc=(server.address,)), 512)
            for name in ("one", "two")
        ],
        takes_any_name=False,
    )

    async def use() -> None:
        try:
            for name in ("one", "two", "one"):
                async with models.opened(models.named(name)) as engine:
                    assert engine.generate_raw("Hi", max_tokens=2).reply().token_ids
                assert [m.name for m in models.all if m.engine is not None] == [name]
        finally:
            await models.close()

    asyncio.run(use())
