"""RPC servers before libllama sees them: addresses, what answers there, where layers go."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

import localspec
from localspec.errors import OptionError, RpcError
from localspec.gguf_file.check import check_model_file
from localspec.llama import rpc_servers
from localspec.llama.devices import REMOTE, Device
from localspec.llama.model_options import LlamaOptions
from localspec.llama.placement import MAIN_MEMORY, is_in_main_memory, place_layers
from localspec.llama.rpc_servers import (
    ask_server,
    ask_servers,
    reset_connections_at_end,
)
from localspec.planning.free_memory import MemoryRoom, Planned
from localspec.planning.plan import plan_layers
from rpc_standin import answering, device_count, device_memory, hello

GIB = 1 << 30


def remote(address: str, free_bytes: int) -> Device:
    return Device(
        name=address,
        description="",
        kind=REMOTE,
        free_bytes=free_bytes,
        total_bytes=64 * GIB,
        server=address,
    )


def gpu(free_bytes: int) -> Device:
    return Device(
        name="GPU0", description="", kind="GPU", free_bytes=free_bytes, total_bytes=free_bytes
    )


@pytest.mark.parametrize(
    "addresses",
    [
        "workshop-pc:50052",
        ["workshop-pc"],
        ["workshop-pc:0"],
        ["workshop-pc:50052 "],
        ["[::1]:50052"],
        [":50052"],
        ["a:1", "a:1"],
        [f"a:{port}" for port in range(1, 18)],
        7,
    ],
)
def test_what_is_no_list_of_addresses_is_refused(addresses):
    with pytest.raises(OptionError):
        localspec.load(rpc=addresses)
    with pytest.raises(OptionError):
        LlamaOptions(rpc=addresses)


def test_a_server_says_what_it_is():
    answers = (
        hello(7, 0, 2), device_count(2), device_memory(3 * GIB, 4 * GIB),
        device_memory(GIB, 2 * GIB),
    )  # fmt: skip
    with answering(*answers) as address:
        server = ask_server(address)
    assert server.address == address
    assert server.protocol == (7, 0, 2)
    assert [(one.free_bytes, one.total_bytes) for one in server.devices] == [
        (3 * GIB, 4 * GIB), (GIB, 2 * GIB),
    ]  # fmt: skip
    assert [one.name for one in server.devices] == [address, f"{address}, device 2"]
    assert {(one.kind, one.server) for one in server.devices} == {(REMOTE, address)}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "does not answer as an RPC server"),
        ([b"x"], "does not answer as an RPC server"),
        ([hello(7, 0), b""], "did not answer within|does not answer as"),
        ([hello(7, 0), device_count(0)], "has no device"),
        ([hello(7, 0), device_count(1), hello(7, 0)], "it sent 28 bytes instead of 16"),
        ([], "did not answer within"),
    ],
)
def test_what_answers_otherwise_is_no_server_and_is_waited_for_briefly(
    answers, words, monkeypatch
):
    if "within" in words:  # others would be as silent on a busy machine
        monkeypatch.setattr(rpc_servers, "SERVER_WAIT_S", 0.5)
    with answering(*answers) as address, pytest.raises(RpcError, match=words) as caught:
        ask_server(address)
    assert str(caught.value).startswith(address)
    assert caught.value.hint


def test_where_nobody_listens_it_says_so_and_all_are_asked():
    with answering(hello(7, 0), device_count(1), device_memory(1, 1)) as address:
        pass
    with answering(hello(7, 0), device_count(1), device_memory(1, 1)) as other:
        found = ask_servers([address, other, "no-such-host.invalid:1"])
    assert f"{address} cannot be reached" in str(found[0])
    assert found[1].address == other
    assert str(found[2]).startswith("no-such-host.invalid:1 cannot be reached")


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="lists no file descriptors")
def test_connections_are_set_to_be_reset_and_nothing_stays_open(tmp_path):
    """Beside files, which are no sockets, and a server whose name is not found any more."""
    with (
        (tmp_path / "file").open("wb"),
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connection,
    ):
        port = listening.getsockname()[1]
        addresses = ["no-such-host.invalid:1", f"127.0.0.1:{port}"]
        reset_connections_at_end(addresses)  # the first one may open a connection to a resolver
        num_open = len(os.listdir("/dev/fd"))
        reset_connections_at_end(addresses)
        assert len(os.listdir("/dev/fd")) <= num_open
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER)


def test_no_address_is_contacted_but_those_that_are_given(demo_target):
    contacted = []
    is_on = True

    def hear(event: str, arguments: tuple) -> None:
        if is_on and event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            contacted.append(arguments)

    sys.addaudithook(hear)
    with answering(hello(7, 0), device_count(1), device_memory(GIB, GIB)) as address:
        found = ask_servers([address])
        localspec.explain(target=str(demo_target))
    is_on = False
    host, _, port = address.partition(":")
    assert [arguments[1] for arguments in contacted] == [(host, int(port))]
    assert found[0].devices


def test_layers_go_to_servers_first_and_to_those_alone_that_a_model_names(demo_target):
    header = check_model_file(demo_target)
    devices = [remote("a:1", GIB), remote("b:2", GIB), gpu(GIB)]
    free = [GIB] * 3

    def layers(**options) -> tuple[int, ...]:
        return place_layers(header, LlamaOptions(**options), devices, free).gpu_layers()

    assert layers() == (0, 0, 25)
    assert layers(rpc=("a:1",), tensor_split=(24.0, 1.0)) == (24, 0, 1)
    assert layers(rpc=("b:2", "a:1"), tensor_split=(5.0, 20.0, 0.0)) == (20, 5, 0)
    placed = place_layers(header, LlamaOptions(rpc=("b:2", "a:1")), devices, free).layers
    assert placed[0] == 1  # in the order in which the model names them
    assert placed[-1] == 2  # the output is here
    assert layers(rpc=("a:1",), num_gpu_layers=0) == (0, 0, 0)
    assert layers(main_gpu=0) == (0, 0, 25)


def test_a_plan_shares_the_target_by_free_memory_and_keeps_the_draft_here(
    demo_target, demo_draft, monkeypatch
):
    monkeypatch.setattr(sys, "platform", "darwin")  # where GPUs have no memory of their own
    assert not is_in_main_memory(remote("a:1", GIB))
    target = check_model_file(demo_target)
    wanted = [
        Planned(target, LlamaOptions(rpc=("a:1", "b:2"))),
        Planned(check_model_file(demo_draft), LlamaOptions(), "draft"),
    ]

    def plan(*free_bytes: int):
        gpus = tuple(remote(f"{'ab'[at]}:{at + 1}", free) for at, free in enumerate(free_bytes))
        return plan_layers(wanted, 512, MemoryRoom(main_bytes=64 * GIB, gpus=gpus, repacked={}))

    target_memory, draft_memory = plan(4 * GIB, 2 * GIB).memory.models
    assert sum(target_memory.gpu_layers) == target_memory.num_layers
    assert target_memory.gpu_layers[0] > target_memory.gpu_layers[1] > 0
    assert draft_memory.gpu_layers == (0, 0)
    assert draft_memory.gpu_bytes == (0, 0)
    little = plan(4 << 20, 4 << 20).memory.models[0]
    assert sum(little.gpu_layers) < little.num_layers
    none = plan(0, 0)
    assert none.models[0].options.num_gpu_layers == 0
    assert set(place_layers(target, none.models[0].options, none.free.gpus, (0, 0)).layers) == {
        MAIN_MEMORY
    }
