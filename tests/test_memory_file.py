"""A memory on disk: found again, bound to a tokenizer, refused where it is damaged."""

from __future__ import annotations

import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

import localspec
from localspec.engine.memory_file import MemoryFile, forget_memories, kept_memories
from localspec.errors import BusyError, CacheError, OptionError
from localspec.speculative.memory import TextMemory
from localspec.speculative.policy_api import ProposerKind

ASKED = {"temperature": 0, "max_tokens": 48, "template": "chatml"}
QUESTION = "Tell me about a fox and a hen."


class Words:
    """A tokenizer's entries."""

    kind, size, bos, add_bos = 1, 3, -1, False

    def __init__(self, *words: bytes) -> None:
        self._words = list(words)

    def entries(self) -> list[bytes]:
        return self._words


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache folder of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "localspec"


TOKENIZER = Words(b"a", b"b", b"c")


def remembered(*texts: list[int]) -> TextMemory:
    memory = TextMemory()
    for text in texts:
        memory.add(text)
    return memory


def found(name: str, tokenizer: Words = TOKENIZER) -> list[list[int]]:
    memory = TextMemory()
    MemoryFile(name, tokenizer).load(memory)
    return [part.tokens.tolist() for part in memory.parts()]


def test_what_was_saved_is_found_again(own_cache):
    MemoryFile("work", TOKENIZER).save(remembered([1, 2, 3], [4, 5, 6, 7]), at_least=1)
    assert found("work") == [[1, 2, 3], [4, 5, 6, 7]]
    assert found("other") == []


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_only_the_user_may_read_it(own_cache):
    MemoryFile("work", TOKENIZER).save(remembered([1, 2, 3]), at_least=1)
    [kept] = kept_memories()
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.path.parent.stat().st_mode) == 0o700


def test_each_tokenizer_has_a_file_of_its_own(own_cache):
    other = Words(b"a", b"bc", b"")
    MemoryFile("work", TOKENIZER).save(remembered([1, 2, 3]), at_least=1)
    MemoryFile("work", other).save(remembered([7, 8, 9]), at_least=1)
    assert found("work") == [[1, 2, 3]]
    assert found("work", other) == [[7, 8, 9]]
    assert [kept.name for kept in kept_memories()] == ["work", "work"]


def test_two_processes_lose_nothing_of_each_other(own_cache):
    files = [MemoryFile("work", TOKENIZER) for _ in range(2)]
    memories = [TextMemory() for _ in files]
    for file, memory in zip(files, memories, strict=True):
        file.load(memory)
    for file, memory, text in zip(files, memories, ([1, 2, 3], [4, 5, 6]), strict=True):
        memory.add(text)
        file.save(memory, at_least=1)
    assert sorted(token for text in found("work") for token in text if token > 0) == [
        *range(1, 7)
    ]


DAMAGES = {
    "cut": lambda data: data[:-3],
    "a flipped bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "no header": lambda data: b"nonsense",
    "no bytes": lambda data: b"",
    "another length": lambda data: data.replace(b"[[1, 3]]", b"[[1, 2]]"),
    "another version": lambda data: data.replace(b'"version": 1', b'"version": 99'),
    "a negative length": lambda data: data.replace(b"[[1, 3]]", b"[[1, -3]]"),
    "endless nesting": lambda data: b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_and_stays(own_cache, damage):
    MemoryFile("work", TOKENIZER).save(remembered([1, 2, 3]), at_least=1)
    [kept] = kept_memories()
    damaged = DAMAGES[damage](kept.path.read_bytes())
    kept.path.write_bytes(damaged)
    with pytest.raises(CacheError, match="'work' cannot be read") as caught:
        found("work")
    assert "sessions forget work" in caught.value.hint
    assert kept.path.read_bytes() == damaged


def test_a_file_that_is_damaged_meanwhile_is_not_overwritten(own_cache, caplog):
    file = MemoryFile("work", TOKENIZER)
    memory = remembered([1, 2, 3])
    file.save(memory, at_least=1)
    [kept] = kept_memories()
    kept.path.write_bytes(b"damaged")
    memory.add([4, 5, 6])
    with caplog.at_level(logging.WARNING):
        file.save(memory, at_least=1)
    assert kept.path.read_bytes() == b"damaged"
    assert "was not saved" in caplog.text


@pytest.mark.parametrize("name", ["", "../up", "a/b", "-x", ".hidden", "x" * 65, 7, "ä"])
def test_a_name_that_is_none_is_refused(own_cache, name):
    with pytest.raises(OptionError, match="name of a memory"):
        MemoryFile(name, TOKENIZER)


def test_forgetting_deletes_all_of_a_name(own_cache):
    MemoryFile("work", TOKENIZER).save(remembered([1, 2, 3]), at_least=1)
    MemoryFile("other", TOKENIZER).save(remembered([1, 2, 3]), at_least=1)
    with pytest.raises(OptionError, match="no memory 'wrk'"):
        forget_memories(["other", "wrk"])
    assert forget_memories(["work"]) > 0
    assert [kept.name for kept in kept_memories()] == ["other"]


def test_a_later_engine_drafts_from_what_an_earlier_one_kept(own_cache, demo_target):
    texts, stats = [], []
    for _ in range(2):
        with localspec.load(target=demo_target, draft_tokens=8, memory="fox") as engine:
            reply = engine.generate(QUESTION, **ASKED).reply()
        texts.append(reply.token_ids)
        stats.append(reply.stats)
    assert texts[0] == texts[1]
    assert stats[1].num_steps < stats[0].num_steps / 2
    assert stats[1].accepted_per_proposer[ProposerKind.LOOKUP] > 24


def test_nothing_is_kept_without_a_name(own_cache, demo_target):
    with localspec.load(target=demo_target) as engine:
        engine.generate(QUESTION, **ASKED).reply()
    assert kept_memories() == []


def test_it_is_saved_before_another_answer_may_change_it(own_cache, demo_target, monkeypatch):
    save, refused = MemoryFile.save, []

    def while_somebody_asks(self, memory, *, at_least):
        with pytest.raises(BusyError), ThreadPoolExecutor() as pool:
            pool.submit(engine.remember, [1, 2, 3]).result()
        refused.append(at_least)
        save(self, memory, at_least=at_least)

    with localspec.load(target=demo_target, memory="work") as engine:
        monkeypatch.setattr(MemoryFile, "save", while_somebody_asks)
        engine.generate(QUESTION, **ASKED).reply()
        monkeypatch.setattr(MemoryFile, "save", save)
    assert len(refused) == 1
