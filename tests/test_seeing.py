"""Images from messages to answers: here, in a process of its own, and served."""

from __future__ import annotations

import base64
import os
import pickle
import shutil
import signal
from multiprocessing.reduction import ForkingPickler

import pytest
from command_line import run
from vision_maker import random_picture, write_vision_pair

import localspec
from localspec import (
    MemoryLimitError,
    ModelFileError,
    OptionError,
)
from localspec.chat.template import BUILT_IN
from server_runner import running_server

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
    blind = run(*command, QUESTION)
    seen = run(*command, "-f", tmp_path / "fox.png", QUESTION)
    assert seen.exit_code == 0, seen.output
    assert '"prompt_tokens"' in seen.stdout
    assert blind.exit_code == 0


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
        texts.append(chat.send("sure", **KEYWORDS).reply().text)
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
