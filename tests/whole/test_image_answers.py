"""Images from messages to answers: here, in a process of its own, and served.

Projectors are known by their headers, matched with their models, and found in their folders.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pickle
import shutil
import signal
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

import localspec
from command_line import run
from gguf_maker import add_keys
from localspec import MemoryLimitError, ModelFileError, OptionError
from localspec.chat.template import BUILT_IN
from localspec.cli import exit_codes
from localspec.errors import PairError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.projector_facts import (
    cells_at_once,
    checked_projector,
    named_projectors,
    projector_beside,
    projector_facts,
    require_free_of_position,
    require_projector_of,
)
from model_writer import ModelWriter
from server_runner import running_server
from vision_maker import random_picture, write_projector, write_vision_pair

FOX = random_picture(1, 40, 40)
OWL = random_picture(2, 64, 32)
QUESTION = "what is it"
KEYWORDS = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_vision_pair(tmp_path_factory.mktemp("pair"), "gemma3")


@pytest.fixture(scope="module")
def engine(pair):
    target, mmproj = pair
    with localspec.load(target=target, mmproj=mmproj) as opened:
        yield opened


def chat_of(engine):
    return engine.chat(template="chatml")


def parts(*pictures):
    content = [{"type": "image", "image": each} for each in pictures]
    return [{"role": "user", "content": [*content, {"type": "text", "text": QUESTION}]}]


def test_another_picture_is_another_prompt(engine):
    tokens = [chat_of(engine).prompt_tokens(QUESTION, [each]) for each in (FOX, OWL, FOX)]
    assert tokens[0] == tokens[2] != tokens[1]
    asked = [engine.generate(parts(each), template="chatml", logprobs=3, **KEYWORDS).reply()
             for each in (FOX, OWL, FOX)]  # fmt: skip
    first, other, again = ([each.logprobs[0].before, each.token_ids] for each in asked)
    assert first[1] == again[1]
    assert first[0] != other[0]


def test_retry_edit_and_undo_keep_the_picture(engine):
    chat = chat_of(engine)
    said = chat.send(QUESTION, images=[FOX], **KEYWORDS).reply()
    assert chat.retry(**KEYWORDS).reply().token_ids == said.token_ids
    chat.edit("and now", images=[OWL], **KEYWORDS).reply()
    assert [each.given for each in chat.messages[0]["pictures"]] == [OWL, FOX]
    chat.prepare()
    assert chat.undo() == "and now"
    assert chat.send(QUESTION, images=[FOX], **KEYWORDS).reply().token_ids == said.token_ids


def test_the_projector_beside_the_model_is_used_and_none_is_none(pair):
    target, _ = pair
    beside = target.with_name("mmproj-F16.gguf")
    shutil.copy(pair[1], beside)
    try:
        with localspec.load(target=target) as opened:
            assert opened.vision is not None
            assert opened.memory().models.roles[-1] == "mmproj"
        with localspec.load(target=target, mmproj="none") as opened:
            assert opened.vision is None
            with pytest.raises(OptionError, match="no projector to see it"):
                opened.generate(parts(FOX), template="chatml").reply()
    finally:
        beside.unlink()


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("loading.check_fit", MemoryLimitError),
        ("loading.open_projector", MemoryLimitError),
        ("loading.open_projector", ModelFileError),
        ("loading.open_projector", OptionError),
    ],
)
def test_a_projector_that_was_only_found_does_not_keep_a_model_from_loading(
    pair, tmp_path, monkeypatch, caplog, error, where
):
    def refused(plan, *_others):
        if where.endswith("open_projector") or "mmproj" in plan.memory.roles:
            raise error("it is refused")

    monkeypatch.setattr(f"localspec.engine.{where}", refused)
    target, mmproj = (shutil.copy(path, tmp_path / path.name) for path in pair)
    with localspec.load(target=target) as opened:
        assert opened.vision is None
        assert opened.memory().models.roles == ("target",)
    assert f'{mmproj.name} is not used: it is refused. mmproj="none"' in caplog.text
    with pytest.raises(error, match="it is refused"):
        localspec.load(target=target, mmproj=mmproj)


def test_generate_shows_an_image(pair, tmp_path):
    target, mmproj = pair
    (tmp_path / "fox.png").write_bytes(FOX.png())
    command = ["generate", "--target", str(target), "--mmproj", str(mmproj), "--temperature",
               "0", "--max-tokens", "4", "--chat-template", "chatml", "--json"]  # fmt: skip
    num_tokens = []
    fox = tmp_path / "fox.png"
    for images in ((), ("-f", fox), ("--image", fox), ("--image", fox, "--image", fox)):
        done = run(*command, *images, QUESTION)
        assert done.exit_code == 0, done.output
        num_tokens.append(json.loads(done.stdout)["stats"]["prompt_tokens"])
    assert num_tokens[1] == num_tokens[2]
    assert num_tokens[2] >= num_tokens[0] + 16  # the picture's cells
    assert num_tokens[3] >= num_tokens[2] + 16


@pytest.mark.parametrize("flag", ["-f", "--image"])
def test_generate_loads_no_model_that_cannot_see_its_image(pair, tmp_path, monkeypatch, flag):
    """The error names both. A projector beside the model counts, unless it is left out."""
    target, _ = pair
    (tmp_path / "fox.png").write_bytes(FOX.png())

    def nothing_is_loaded(*_arguments, **_keywords):
        raise AssertionError

    monkeypatch.setattr("localspec.engine.loading.load", nothing_is_loaded)
    images = (flag, tmp_path / "fox.png", QUESTION)
    for model, called in (((), "demo"), (("-m", target, "--mmproj", "none"), str(target))):
        refused = run("generate", *model, *images)
        assert refused.exit_code == exit_codes.USAGE
        assert f"fox.png is an image, and {called} has no projector" in refused.stderr
        assert "--mmproj" in refused.stderr


@pytest.mark.process
def test_a_picture_is_sent_to_the_process_once(pair, engine, monkeypatch):
    """A second question names it; one in a process that was started again sends it again."""
    sent = []

    class Counted:
        @staticmethod
        def dumps(value):
            sent.append(len(pickle.dumps(value)))
            return ForkingPickler.dumps(value)

    monkeypatch.setattr("localspec.isolated.process.ForkingPickler", Counted)
    large, target, mmproj = random_picture(3, 400, 300), *pair
    expected, asked = chat_of(engine), {"images": [large], **KEYWORDS}
    with localspec.IsolatedEngine(target=target, mmproj=mmproj) as apart:
        chat = chat_of(apart)
        texts = [chat.send(QUESTION, **asked).reply().text]
        assert sum(size > 300_000 for size in sent) == 1
        sent.clear()
        second = chat.send("sure", **KEYWORDS).reply()
        assert second.stats.cached_prompt_tokens > 16  # more than the picture's cells
        texts.append(second.text)
        assert max(sent) < 100_000
        os.kill(apart.process_id, signal.SIGKILL)
        sent.clear()
        texts.append(chat.send("and", **KEYWORDS).reply().text)
        assert sum(size > 300_000 for size in sent) == 1
    for question, text in zip([QUESTION, "sure", "and"], texts, strict=True):
        reply = expected.send(question, **(asked if question == QUESTION else KEYWORDS)).reply()
        assert reply.text == text


@pytest.mark.process
def test_all_protocols_take_images(tmp_path):
    template = {"tokenizer.chat_template": BUILT_IN["chatml"]}
    target, mmproj = write_vision_pair(tmp_path, "gemma3", extra=template)
    mmproj.rename(tmp_path / "mmproj-F16.gguf")  # of the only model in the folder
    (tmp_path / "gemma3.tokenizer.gguf").unlink()
    data = base64.b64encode(FOX.png()).decode()
    url = f"data:image/png;base64,{data}"
    said = {"type": "text", "text": QUESTION}
    forms = {
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": url}}, said]}],
        },
        "/v1/messages": {
            "max_tokens": 4,
            "messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                             "data": data}}, said]}],
        },
        "/v1/responses": {
            "input": [{"role": "user", "content": [
                {"type": "input_image", "image_url": url},
                {"type": "input_text", "text": QUESTION}]}],
        },
        "/api/chat": {
            "stream": False,
            "messages": [{"role": "user", "content": QUESTION, "images": [data]}],
        },
        "/api/generate": {"stream": False, "prompt": QUESTION, "images": [data]},
    }  # fmt: skip
    with running_server(presets=[str(target)]) as server:
        counts = set()
        for path, body in forms.items():
            response = server.ask(path, **body)
            assert response.status_code == 200, (path, response.text)
            told = response.json()
            usage = told.get("usage", told)
            read = usage.get("cache_read_input_tokens", 0)
            names = ("prompt_tokens", "input_tokens", "prompt_eval_count")
            counts.add(next(usage[name] for name in names if name in usage) + read)
        assert len(counts) == 1
        shown = server.ask("/apply-template", **forms["/v1/chat/completions"]).json()
        assert QUESTION in shown["prompt"]
        assert server.client.get("/props").json()["modalities"]["vision"] is True


# --- projectors, by their headers ---


@pytest.fixture(scope="module")
def target(demo_target):
    return check_model_file(demo_target)


@pytest.fixture(scope="module")
def width(target):
    return target.number(f"{target.architecture}.embedding_length")


def test_another_file_is_refused_before_it_is_loaded(tmp_path, demo_target):
    deaf, ultravox = tmp_path / "deaf.gguf", tmp_path / "ultravox.gguf"
    write_projector(deaf, "gemma3", sees=False)
    writer = ModelWriter(ultravox, "clip")
    add_keys(writer, {"clip.audio.projector_type": "ultravox"})
    writer.add_tensor("mm.weight", np.ones((32, 8), dtype=np.float32))
    writer.finish()
    voxtral = tmp_path / "voxtral.gguf"  # its kind is written where that of pictures may be
    writer = ModelWriter(voxtral, "clip")
    add_keys(writer, {"clip.projector_type": "voxtral", "clip.has_audio_encoder": True})
    writer.add_tensor("mm.a.weight", np.ones((32, 8), dtype=np.float32))
    writer.finish()
    for path, said in (
        (demo_target, r"is not a projector \(its architecture is 'llama'"),
        (deaf, "is a projector for audio only"),
        (ultravox, "is a projector for audio only"),
        (voxtral, "is a projector for audio only"),
    ):
        with pytest.raises(ModelFileError, match=said) as caught:
            checked_projector(path)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["mmproj-F16.gguf"], "mmproj-F16.gguf"),
        (["mmproj-BF16.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
        (["mmproj-BF16.gguf", "mmproj-F32.gguf"], "mmproj-BF16.gguf"),
        (["mmproj-model-f16.gguf"], "mmproj-model-f16.gguf"),
        (["mmproj-Eagle-4B-it-f16.gguf"], "mmproj-Eagle-4B-it-f16.gguf"),
        (["eagle-4b-it.mmproj-Q8_0.gguf"], "eagle-4b-it.mmproj-Q8_0.gguf"),
        (["mmproj-model-f16-4B.gguf"], "mmproj-model-f16-4B.gguf"),
        (["mmproj-model-f16-4B.gguf", "other.gguf"], None),
        (["mmproj-other-4B-f16.gguf"], None),
        (["other.gguf"], None),
        ([], None),
    ],
)
def test_the_one_beside_a_model_is_found_by_its_name(tmp_path, target, width, names, found):
    for name in names:
        write_projector(tmp_path / name, "gemma3", width=width)
    beside = dataclasses.replace(target, path=tmp_path / "Eagle-4B-it-Q4_K_M.gguf")
    assert projector_beside(beside) == (None if found is None else tmp_path / found)


def test_a_projector_is_found_though_both_names_have_words_that_name_no_model():
    for model, projector in (
        ("Chat-Model-7B-Q4_K_M.gguf", "mmproj-Chat-Model-7B-f16.gguf"),
        ("Foo-BF16-merged-Q8_0.gguf", "mmproj-Foo-merged-F16.gguf"),
    ):
        assert named_projectors(model, [projector], is_alone=False) == [projector]


def test_a_size_is_a_whole_number_and_a_longer_name_comes_first():
    own, size, other = "mmproj-Foo-14B-bf16.gguf", "mmproj-14B-f16.gguf", "mmproj-4B-f16.gguf"
    found = named_projectors("Foo-14B-Q4_K_M.gguf", [other, size, own], is_alone=True)
    assert found == [own, size]


@pytest.mark.parametrize(
    ("kind", "cells"), [("gemma3", 16), ("gemma4v", 1120), ("internvl", 0)]
)
def test_how_many_cells_are_read_at_once(tmp_path, kind, cells):
    header = checked_projector(write_projector(tmp_path / "mmproj.gguf", kind))
    assert projector_facts(header).kind == kind
    assert cells_at_once(header) == cells
    require_free_of_position(header)
    with pytest.raises(PairError, match="made for models of width 64, not"):
        require_projector_of(header, header)


def test_pictures_that_depend_on_what_comes_before_are_refused(tmp_path):
    path = write_projector(tmp_path / "mmproj.gguf", "hunyuanvl")
    with pytest.raises(ModelFileError, match="'hunyuanvl', whose pictures depend on"):
        require_free_of_position(checked_projector(path))


def test_one_that_fits_is_counted_by_explain(tmp_path, demo_target, target, width):
    path = write_projector(tmp_path / "mmproj.gguf", "gemma3", width=width)
    require_projector_of(target, checked_projector(path))
    without = localspec.explain(target=demo_target)
    found = localspec.explain(target=demo_target, mmproj=path)
    assert without.projector is None
    assert found.projector is not None
    assert (found.projector.kind, found.projector.misfit) == ("gemma3", "")
    assert found.memory.roles == ("target", "mmproj")
    more_bytes = found.memory.needed_bytes - without.memory.needed_bytes
    assert more_bytes > found.memory.models[1].picture_bytes > 100_000_000
    assert found.is_pair
    told = run("explain", "--target", demo_target, "--mmproj", path)
    assert told.exit_code == 0, told.output
    assert "mmproj.gguf, gemma3" in told.output
    assert "of that, up to 217.1 MB for the images that were shown last" in told.output
