"""Conversations' caches in a folder: a later engine goes on with them, or decodes anew."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

import inside
import localspec
from command_line import run
from engines import PLACES, Owner, answered
from hybrid_maker import CACHE_KINDS, write_cache_kind
from localspec.engine.cache_file import PooledCache
from localspec.engine.cache_store import (
    CacheStore,
    kept_files,
    kept_folder,
    kept_sizes,
)
from localspec.engine.open_models import CacheDisk
from localspec.errors import OptionError
from localspec.llama.cache_state import CacheState
from localspec.system.atomic_write import UNFINISHED

TEXT = [5 + 37 * index % 900 for index in range(300)]
LARGE = 1_000_000_000
_owners: list[Owner] = []


@pytest.fixture(autouse=True)
def _own_folder(own_folders):
    _owners.clear()


@pytest.fixture
def load(demo_target):
    """Opens the demo's target, which keeps its texts on disk."""

    def loaded(**options):
        usual = {"target": demo_target, "draft_tokens": 0, "num_threads": 1}
        return localspec.load(**{**usual, "cache_disk": LARGE, **options})

    return loaded


def asked(engine, tokens, **options):
    """An answer to a new conversation's prompt, and the tokens of it that were decoded."""
    owner = Owner()
    _owners.append(owner)  # a conversation that nobody has any more is not kept
    return answered(engine, owner, tokens, **options)


def store(*, num_bytes=LARGE, owner="", identities=("a",)):
    """A store of texts that can be cut anywhere."""
    return CacheStore(
        CacheDisk(num_bytes, owner),
        lambda _scales: list(identities),
        lambda _state, count: count,
        10_000,
    )


def kept_text(tokens, *, size=1000):
    data = np.full(size, tokens[0] % 251, dtype=np.uint8)
    return PooledCache(list(tokens), [CacheState(len(tokens), data)])


@pytest.mark.parametrize("place", PLACES)
def test_an_engine_goes_on_where_the_one_before_was_closed(place):
    """Also what drafts: its cache is there again."""
    options = {"draft_tokens": 3, "num_threads": 1, "cache_disk": LARGE}
    with place(**options) as engine:
        said, num_decoded = asked(engine, TEXT, max_tokens=20)
        assert num_decoded == len(TEXT)
        expected = asked(engine, [*TEXT, *said, 7, 8])
    with place(**options) as engine:
        assert asked(engine, [*TEXT, *said, 7, 8]) == (expected[0], 1)
        assert asked(engine, TEXT, max_tokens=20) == (said, 1)
    with place(**{**options, "cache_disk": 0}) as engine:
        assert asked(engine, TEXT, max_tokens=20)[1] == len(TEXT)


def test_other_models_settings_and_owners_find_nothing(load, blurred_draft):
    with load(cache_disk=CacheDisk(LARGE, "one")) as engine:
        asked(engine, TEXT)
    for other in (
        {"cache_disk": CacheDisk(LARGE, "other")},
        {"cache_disk": LARGE},
        {"target": blurred_draft},
        {"num_threads": 2},
        {"parallel": 2},
    ):
        with load(**{"cache_disk": CacheDisk(LARGE, "one"), **other}) as engine:
            assert asked(engine, TEXT)[1] == len(TEXT), other
    with load(cache_disk=CacheDisk(LARGE, "one")) as engine:
        assert asked(engine, TEXT)[1] == 1
    named = "".join(path.read_bytes().split(b"\n")[0].decode() for path in kept_files())
    assert '"one"' not in named  # an owner may be known by a secret


def test_without_leave_nothing_is_written(load):
    with load(cache_disk=0) as engine:
        asked(engine, TEXT)
    assert not kept_folder().exists()
    for wrong in (-1, True, "8GB", CacheDisk(-1)):
        with pytest.raises(OptionError, match="cache_disk is") as caught:
            load(cache_disk=wrong)
        assert caught.value.hint == "Give bytes: 0 (none) or more."


def test_an_owner_that_is_no_text_is_named_and_not_the_number_of_bytes(load):
    with pytest.raises(OptionError, match="the owner of cache_disk is 7") as caught:
        load(cache_disk=CacheDisk(LARGE, 7))
    assert "bytes" not in caught.value.hint


def test_a_conversation_has_one_file_which_only_this_user_may_read(load):
    """The longer text takes the place of the shorter; a few tokens more are not worth it."""
    with load() as engine:
        owner = Owner()
        said, _ = answered(engine, owner, TEXT)
        inside.keep_on_disk(engine)
        (first,) = kept_files()
        answered(engine, owner, [*TEXT, *said, 7])
        inside.keep_on_disk(engine)
        assert kept_files() == [first]
        answered(engine, owner, [*TEXT, *said, 7, *range(300, 340)])
        asked(engine, TEXT[:20])  # read at once in any case
    (second,) = kept_files()
    assert first != second
    if os.name == "posix":
        assert stat.S_IMODE(second.stat().st_mode) == 0o600
        assert stat.S_IMODE(kept_folder().stat().st_mode) == 0o700


def test_what_the_memory_has_no_room_for_goes_to_disk(load):
    texts = [[*range(100 * n, 100 * n + 250)] for n in range(4)]
    with load(kept_bytes=0) as engine:
        for text in texts:
            asked(engine, text)
        for text in texts:
            assert asked(engine, text)[1] == 1
    with load(cache_disk=0) as engine:
        asked(engine, texts[0])
        num_bytes = inside.target(engine).cache.state_bytes()
    with load(kept_bytes=int(1.5 * num_bytes)) as engine:
        owners = [Owner() for _ in texts]
        texts = [[*text, 900] for text in texts]
        for owner, text in zip(owners, texts, strict=True):
            answered(engine, owner, text)
            assert engine.memory().kept_bytes <= 1.5 * num_bytes
        for owner, text in zip(owners, texts, strict=True):
            assert answered(engine, owner, text)[1] < 20


def test_those_that_were_of_use_longest_ago_leave_first():
    texts = [kept_text(range(1000 * n, 1000 * n + 200), size=100_000) for n in range(4)]
    kept = store(num_bytes=330_000)
    for number, text in enumerate(texts[:3]):
        kept.keep(text)
        for path in kept_files():
            if os.path.getmtime(path) > 1e9:
                os.utime(path, (number, number))
    assert kept.best([*texts[0].tokens, 7], 0).tokens == texts[0].tokens
    kept.keep(texts[3])
    assert sum(kept_sizes().values()) <= 330_000
    found = [kept.best([*text.tokens, 7], 0) is not None for text in texts]
    assert found == [True, False, True, True]
    kept.keep(kept_text(range(9000, 9200), size=400_000))  # larger than all may be
    assert len(kept_files()) == 3


def test_two_stores_of_one_folder_see_and_bound_each_other():
    one, other = store(num_bytes=250_000), store(num_bytes=250_000)
    texts = [kept_text(range(1000 * n, 1000 * n + 200), size=100_000) for n in range(3)]
    one.keep(texts[0])
    assert other.best([*texts[0].tokens, 7], 0) is not None
    other.keep(texts[1])
    one.keep(texts[2])
    assert sum(kept_sizes().values()) <= 250_000
    assert other.best([*texts[2].tokens, 7], 0) is not None
    for path in kept_files():
        path.unlink()  # by a third
    assert one.best([*texts[2].tokens, 7], 0) is None


def test_the_longest_beginning_wins_if_it_spares_more_than_it_costs():
    kept = store()
    shared = [*range(500)]
    kept.keep(kept_text([*shared, *range(1000, 1300)]))
    kept.keep(kept_text([*shared[:300], *range(2000, 2300)]))
    found = kept.best([*shared, 7, 8], 0)
    assert found.tokens[500] == 1000
    assert kept.best([*shared[:300], 7], 250) is None  # most of it is there
    assert kept.best([*shared[:50], *range(3000, 3300)], 0) is None


def test_files_that_are_broken_cut_or_foreign_do_no_harm(load, caplog):
    """A tenth of the places where a byte can change or a file end, drawn anew each time."""
    with load() as engine:
        expected = asked(engine, TEXT)
    (path,) = kept_files()
    whole, draw = path.read_bytes(), random.Random()
    head = whole.index(b"\n")
    foreign = kept_folder() / "notes.txt"
    foreign.write_text("mine")
    with load() as engine:
        for _ in range(40):
            place = draw.choice([draw.randrange(head), draw.randrange(len(whole))])
            broken = draw.choice(
                [
                    whole[:place],
                    whole[:place]
                    + bytes([whole[place] ^ draw.randrange(1, 256)])
                    + whole[place + 1 :],
                    whole[:place] + whole[place + draw.randrange(1, 90) :],
                    whole[place:],
                ]
            )
            path.write_bytes(broken)
            with inside.lent(engine):
                pass  # nothing is cached
            engine.free_kept()
            assert asked(engine, TEXT)[0] == expected[0]
    assert foreign.read_text() == "mine"
    assert "is damaged, and is removed" in caplog.text


def test_a_full_disk_is_a_line_in_the_log(load, monkeypatch, caplog):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    caplog.set_level(logging.WARNING)
    with load() as engine:
        asked(engine, TEXT)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            inside.keep_on_disk(engine)
            asked(engine, range(300, 600))
            inside.keep_on_disk(engine)
            assert kept_sizes() == {}
    assert len([each for each in caplog.messages if "No space left" in each]) == 1
    assert len(kept_files()) == 2  # there was room again


KILLED = """
import sys, time
import numpy as np
from localspec.engine.open_models import CacheDisk
from localspec.engine.cache_store import CacheStore, kept_folder, kept_sizes
from localspec.engine.cache_file import PooledCache
from localspec.llama.cache_state import CacheState

def check():
    if any(kept_sizes().values()):
        print("half", flush=True)
        time.sleep(600)

data = np.ones(20_000_000, dtype=np.uint8)
kept = PooledCache(list(range(200)), [CacheState(200, data)])
store = CacheStore(CacheDisk(10**9), lambda _scales: ["a"], lambda _state, count: count, 999)
store.keep(kept, check)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_a_kill_in_the_middle_leaves_nothing_that_is_read(monkeypatch):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert kept_files() == []
    ((left, size),) = kept_sizes().items()
    assert 0 < size < 20_000_000
    kept = store()
    assert kept.best([*range(200), 7], 0) is None
    kept.keep(kept_text(range(200)))
    assert left.exists()  # another process might be writing it
    os.utime(left, (time.time() - 3600,) * 2)
    kept.keep(kept_text(range(300, 500)))
    assert not left.exists()
    assert len(kept_files()) == 2


@pytest.mark.parametrize("architecture", CACHE_KINDS)
def test_what_comes_back_of_each_architecture(tmp_path, demo_target, architecture):
    """Whole texts of all; of hybrids also a prompt whose answer comes back changed."""
    path = write_cache_kind(tmp_path / "model.gguf", demo_target, architecture)
    options = {"target": path, "draft_tokens": 0, "context_length": 512, "num_threads": 1}
    with localspec.load(**options) as engine:
        said, _ = asked(engine, TEXT, max_tokens=8)
        longer, changed = [*TEXT, *said, 7, 8, 9], [*TEXT, said[0], 7, 8, 9]
        expected = []
        for tokens in (longer, changed):
            with inside.lent(engine):
                pass
            expected.append(asked(engine, tokens)[0])
    for number, tokens in enumerate((longer, changed)):
        with localspec.load(**options, cache_disk=LARGE) as engine:
            asked(engine, TEXT, max_tokens=8)
        with localspec.load(**options, cache_disk=LARGE) as engine:
            again, num_decoded = asked(engine, tokens)
        assert again == expected[number]
        if architecture == "gemma3" and number == 1:
            assert num_decoded == len(tokens)  # the window's beginning is gone
        else:
            assert num_decoded <= 12
        for path in kept_files():
            path.unlink()


def test_they_are_listed_counted_and_wiped(load, demo_target):
    alone = localspec.Preset(
        name="x", target=localspec.LocalModel(path=demo_target), context_length=2048
    )
    with load() as engine:
        asked(engine, TEXT)
    (path,) = kept_files()
    assert localspec.disk_usage(alone).caches == {path: path.stat().st_size}
    doctor = json.loads(run("doctor", "--json").stdout)
    assert doctor["kept_conversations"] == {str(path): path.stat().st_size}
    unfinished = path.with_name(f".{path.name}.0123{UNFINISHED}")  # as a kill leaves it
    unfinished.write_bytes(bytes(2_000_000))
    assert f"{path.parent}: caches of 1 conversation, " in run("doctor").stdout
    refused = run("sessions", "wipe")
    assert refused.exit_code == 2
    assert path.exists()
    size = path.stat().st_size
    done = run("sessions", "wipe", "--yes")
    assert done.exit_code == 0
    assert f"{size / 1e6:.1f} MB freed" in done.stderr or " freed" in done.stderr
    assert kept_sizes() == {}
