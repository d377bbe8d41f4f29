"""Models of one name are told apart by what is in them, and kept caches and costs with them."""

from __future__ import annotations

import os
import shutil

import llama_cpp
import numpy as np
import pytest

import inside
import localspec
from gguf_maker import split_model, write_random_model
from localspec.advice.explanation import explain
from localspec.engine import prefill
from localspec.errors import CacheError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.file_content import FileContent
from localspec.gguf_file.header import read_header
from localspec.speculative.policy_api import ProposerKind

GREEDY = localspec.SamplingParams(temperature=0)
NAME = "ggml-model-Q4_K_M.gguf"
QUESTION = "Tell me a story about a fox."


def digest(path):
    return FileContent(check_model_file(path)).digest()


@pytest.fixture
def fine_tunes(tmp_path, demo_target):
    """Two models that share name, size, shape and vocabulary."""
    paths = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        paths.append(
            write_random_model(folder / NAME, demo_target, seed=seed, extra={"n": seed})
        )
    assert paths[0].stat().st_size == paths[1].stat().st_size
    return paths


def asked(path, caches=None, **options):
    """An engine of the file that has answered a question, or was given somebody's caches."""
    engine = localspec.load(target=path, num_threads=1, context_length=512, **options)
    chat = engine.chat(template="chatml")
    used = caches is not None and engine.load_caches(chat, caches)
    reply = chat.send(QUESTION, sampling=GREEDY, max_tokens=5).reply()
    return engine, chat, reply, used


def test_caches_are_not_restored_into_another_fine_tune(tmp_path, fine_tunes):
    first, second = fine_tunes
    caches = tmp_path / "x.caches"
    engine, chat, _, _ = asked(first)
    with engine:
        assert engine.save_caches(chat, caches)
    renamed = shutil.copy(first, tmp_path / "renamed.gguf")
    for path, is_same in ((second, False), (first, True), (renamed, True)):
        engine, _, reply, used = asked(path, caches)
        engine.close()
        assert used is is_same
        assert (reply.stats.cached_prompt_tokens > 0) is is_same


def test_costs_of_another_fine_tune_are_not_taken_for_its_own(
    fine_tunes, own_folders, monkeypatch
):
    """Neither when it is loaded nor when it is explained."""
    monkeypatch.setattr(prefill, "_FAST_S", 0.0)  # they are not timed when they are loaded
    first, second = fine_tunes
    profiles = []
    for path in fine_tunes:
        with localspec.load(target=path, draft=fine_tunes[0], num_threads=1) as engine:
            profiles.append(inside.profile(engine).path)
            if path is first:
                with inside.lent(engine) as loop:
                    costs = loop.draft_policy.costs
                    costs.learn_plain(0.1)
                    costs.learn_size(4, 1.5)
                    costs.learn_draft(ProposerKind.DRAFT, 1, 1, 0.01)
                inside.save_profile(engine)
    assert profiles[0] != profiles[1]
    draft = str(first)
    assert explain(target=str(first), draft=draft).gains is not None
    assert explain(target=str(second), draft=draft).gains is None


def test_every_tensor_and_the_header_count(tmp_path, demo_target):
    """A merge may touch one tensor; every value of it changes, by little."""
    path = write_random_model(tmp_path / "a.gguf", demo_target, num_layers=2)
    data, before = path.read_bytes(), digest(path)
    header = read_header(path)
    seen = {before}
    for tensor in header.tensors:
        begin, end = tensor.offset, tensor.offset + tensor.size_bytes
        values = np.frombuffer(data[begin:end], dtype=np.float32) * np.float32(1.0001)
        path.write_bytes(data[:begin] + values.tobytes() + data[end:])
        seen.add(digest(path))
    assert len(seen) == 1 + len(header.tensors)
    path.write_bytes(data.replace(b"<|im_start|>", b"<|im_begin|>", 1))
    assert digest(path) not in seen
    path.write_bytes(data)
    assert digest(path) == before
    first = split_model(path, tmp_path)
    before, second = digest(first), tmp_path / "split-00002-of-00002.gguf"
    changed = bytearray(second.read_bytes())
    changed[read_header(second).tensors[-1].offset] ^= 1
    second.write_bytes(changed)
    assert digest(first) not in (None, before)


def test_a_file_that_changes_while_it_is_loaded_has_no_content(tmp_path, fine_tunes):
    """Nobody knows then which of the two libllama has read."""
    path = shutil.copy(fine_tunes[0], tmp_path / NAME)

    def replace(fraction):
        if fraction == 1.0:
            os.replace(shutil.copy(fine_tunes[1], tmp_path / "new"), path)

    with localspec.load(target=path, progress=replace, context_length=512) as engine:
        chat = engine.chat(template="chatml")
        chat.send(QUESTION, max_tokens=2).reply()
        with pytest.raises(CacheError, match=r"ggml-model-Q4_K_M.gguf was removed or changed"):
            engine.save_caches(chat, tmp_path / "x.caches")
        assert inside.profile(engine) is None


def adopted_identity(path, **options):
    llama = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, verbose=False, **options)
    with localspec.load(target=llama) as engine:
        found = inside.target(engine).identity
    llama.close()
    return found


def test_what_an_application_did_to_its_llama_counts(tmp_path, demo_target):
    path = write_random_model(tmp_path / NAME, demo_target, num_layers=3)
    plain = adopted_identity(path)
    assert plain is not None
    assert plain == adopted_identity(path)
    assert adopted_identity(path, rope_freq_base=50000.0) not in (None, plain)


def test_nothing_is_kept_of_an_adopted_llama_whose_file_is_gone(tmp_path, fine_tunes, caplog):
    path = fine_tunes[0]
    llama = llama_cpp.Llama(str(path), n_ctx=256, verbose=False)
    path.unlink()
    engine, chat, reply, _ = asked(llama)
    with engine:
        assert reply.stats.completion_tokens
        for keep in (engine.save_caches, engine.load_caches):
            with pytest.raises(CacheError, match="could be mistaken for another model's"):
                keep(chat, tmp_path / "x.caches")
        assert inside.profile(engine) is None
    assert not (tmp_path / "x.caches").exists()
    assert "does not exist" in caplog.text
    llama.close()
