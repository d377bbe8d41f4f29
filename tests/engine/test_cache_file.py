"""Files of caches: whole or of no use, written and read without copies."""

from __future__ import annotations

import json
import os
import tracemalloc

import numpy as np
import pytest

import localspec
from command_line import run
from localspec.engine.cache_file import PooledCache, header_line, read_caches, write_caches
from localspec.engine.cache_store import kept_files
from localspec.errors import CacheError
from localspec.llama.cache_state import CacheState


def with_head(data, **changes):
    """The file's bytes with other fields in its first line, which still fits its checksum."""
    begin = data.index(b"\n") + 1
    head = json.loads(data[:begin])
    del head["check"]
    return header_line(head | changes) + data[begin:]


@pytest.fixture
def kept(tmp_path):
    """The file of a conversation's caches."""
    with localspec.load(draft_tokens=3) as engine:
        chat = engine.chat()
        chat.send("Tell me a story about a fox.", max_tokens=20).reply()
        assert engine.save_caches(chat, tmp_path / "x.caches")
    return tmp_path / "x.caches"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_caches_never_replace_what_is_no_regular_file(tmp_path):
    """A pipe of our own: a fault that replaced a device would harm the machine."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with localspec.load() as engine:
        chat = engine.chat()
        chat.send("Hi!", max_tokens=2).reply()
        for path in (pipe, link):
            with pytest.raises(FileExistsError, match="not a regular file"):
                engine.save_caches(chat, path)
    assert pipe.is_fifo()


def test_a_damaged_file_is_of_no_use(kept):
    """Wherever a byte is lost or changed; nothing of it reaches libllama."""
    data = kept.read_bytes()
    head = json.loads(data[: data.index(b"\n")])
    assert read_caches(kept, head["identities"], lambda _size: None) is not None
    for damaged in (
        b"", b"{}", b"[]\n", b"{", data[:-1], data[: len(data) // 2],
        data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        data.replace(b'"version": 3', b'"version": 4'),
        data.replace(b'"num_cached": [', b'"num_cached": [9'),
        data.replace(b'"tokens": [', b'"tokens": [9, '),
        with_head(data, num_cached=[10**6, *head["num_cached"][1:]]),
        with_head(data, num_cached=[float("inf"), *head["num_cached"][1:]]),
        with_head(data, sizes=[1180591620717411303424, *head["sizes"][1:]]),
        with_head(data, sizes=[-1, *head["sizes"][1:]]),
        with_head(data, tokens=head["tokens"][:5]),
        with_head(data, pictures=[[[0, 10**6, 4, 3]], *head["pictures"][1:]]),
        with_head(data, identities="no list of them"),
    ):  # fmt: skip
        kept.write_bytes(damaged)
        assert read_caches(kept, head["identities"], lambda _size: None) is None


def peak_bytes(work):
    """What `work` returns, and the most that Python and NumPy held more than before."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_large_caches_are_written_and_read_without_copies(tmp_path):
    """They are gigabytes: beside the ones in memory there is room for no others."""
    path, size = tmp_path / "x.caches", 40_000_000
    states = [CacheState(9, np.full(size, fill, dtype=np.uint8)) for fill in (1, 2)]
    kept = PooledCache(list(range(9)), [states[0], None, states[1]])
    _, peak = peak_bytes(lambda: write_caches(path, kept, ["a", "b", "c"]))
    assert peak < 0.1 * size
    granted = []
    found, peak = peak_bytes(lambda: read_caches(path, ["a", "b", "c"], granted.append))
    assert peak < 2.1 * size
    assert granted == [2 * size]
    assert found.tokens == kept.tokens
    assert [state and state.num_cached for state in found.states] == [9, None, 9]
    for one, other in zip(found.states, kept.states, strict=True):
        assert one is other or np.array_equal(one.data, other.data)


def test_caches_that_are_too_large_are_not_even_read(kept):
    head = json.loads(kept.read_bytes().split(b"\n")[0])

    def refuse(size):
        raise CacheError(f"{size} bytes are too many")

    with pytest.raises(CacheError, match=f"^{sum(head['sizes'])} bytes are too many"):
        read_caches(kept, head["identities"], refuse)


def test_a_file_that_claims_a_terabyte_takes_no_memory(kept):
    data = kept.read_bytes()
    head = json.loads(data[: data.index(b"\n")])
    kept.write_bytes(with_head(data, sizes=[1 << 40, *head["sizes"][1:]]))
    found, peak = peak_bytes(lambda: read_caches(kept, head["identities"], lambda _size: None))
    assert found is None
    assert peak < 10_000_000


def test_a_write_that_is_interrupted_half_way_leaves_the_old_file(tmp_path):
    path, states = tmp_path / "x.caches", [CacheState(1, np.ones(20_000_000, np.uint8))]
    write_caches(path, PooledCache([5], states), ["a"])
    before = path.read_bytes()

    def interrupt():
        if any(each.stat().st_size for each in tmp_path.iterdir() if each != path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_caches(path, PooledCache([7], states), ["a"], check=interrupt)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_chat_of_the_command_line_keeps_them(own_folders):
    given = "chat --keep-caches --temperature 0 --max-tokens 20 --threads 1"
    result = run(*given.split(), stdin="Hello! " * 70)
    assert result.exit_code == 0, result.output
    [path] = kept_files()
    assert path.stat().st_size > 10_000
