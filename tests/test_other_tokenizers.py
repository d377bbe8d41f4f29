"""Pairs of real files whose tokenizers differ: the promise holds, and drafts are accepted."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from exact_files import exact_copy

import inside
import localspec
from gguf_maker import write_random_model, write_renumbered, write_spm_model
from localspec.cli import main
from localspec.gguf_file.check import check_model_file
from localspec.presets.folder_import import search_folder
from localspec.presets.pairing import compare_vocabularies, have_one_tokenizer
from localspec.speculative.shared_vocabulary import CommonTokens

STORY = "Once upon a time there was a fox who"
GREEDY = localspec.SamplingParams(temperature=0)
QUESTIONS = [
    "Tell me a story about a fox and a lantern.",
    "What is 7 times 8?",
    "Wie heißt du? 日本 😀 Ça va e\u0301té\n\n\ttabs  and   spaces ",
    "Write a poem about rain.",
]


@pytest.fixture(scope="module")
def exact_target(tmp_path_factory, demo_target) -> Path:
    return exact_copy(demo_target, tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def drafts(tmp_path_factory, demo_draft) -> dict[str, Path]:
    """The demo pair's draft with other ids, of another kind, and without some words."""
    folder = tmp_path_factory.mktemp("drafts")
    return {
        "ids": write_renumbered(folder / "ids.gguf", demo_draft),
        "spm": write_renumbered(folder / "spm.gguf", demo_draft, sentencepiece=True),
        "lost": write_renumbered(folder / "lost.gguf", demo_draft, num_lost=900),
        "random": write_spm_model(folder / "random.gguf"),
    }


def answers(target, draft, *, draft_tokens=3, **options):
    """Token ids of the answers to all questions, and how many of them were drafted."""
    with localspec.load(
        target=target, draft=draft, draft_tokens=draft_tokens, exact=True, num_threads=1
    ) as engine:
        replies = [
            engine.generate(question, max_tokens=48, **options).reply()
            for question in QUESTIONS
        ]
    return [r.token_ids for r in replies], sum(r.stats.num_accepted for r in replies)


@pytest.fixture(scope="module")
def plain(exact_target):
    return {
        "greedy": answers(exact_target, None, draft_tokens=0, temperature=0)[0],
        "seeded": answers(exact_target, None, draft_tokens=0, temperature=0.8, seed=5)[0],
    }


@pytest.fixture(scope="module")
def accepted(exact_target, demo_draft):
    """How many tokens of the greedy answers the draft drafts where its tokenizer is shared."""
    return answers(exact_target, demo_draft, temperature=0)[1]


@pytest.mark.parametrize("name", ["ids", "spm", "lost", "random"])
@pytest.mark.parametrize("way", ["greedy", "seeded"])
def test_texts_are_the_targets_own(exact_target, drafts, plain, accepted, name, way):
    """To the bit; and a draft of the same network is right as often as the network is."""
    options = {"temperature": 0} if way == "greedy" else {"temperature": 0.8, "seed": 5}
    texts, num_accepted = answers(exact_target, drafts[name], **options)
    assert texts == plain[way]
    if way == "greedy":
        least = {"ids": 0.9, "spm": 0.7, "lost": 0.4, "random": 0}[name]
        assert num_accepted >= least * accepted


@pytest.mark.parametrize("target", ["spm", "random"])
def test_a_target_of_sentencepiece_has_a_draft_of_another_kind(drafts, demo_draft, target):
    texts = []
    for draft_tokens in (0, 3, None):
        with localspec.load(
            target=drafts[target], draft=demo_draft, draft_tokens=draft_tokens
        ) as engine:
            reply = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=60).reply()
            texts.append(reply.token_ids)
            if draft_tokens == 3:
                assert isinstance(engine.shared_vocabulary, CommonTokens)
                assert reply.stats.num_draft_tokens > 0
    assert texts[0] == texts[1] == texts[2]


def test_what_headers_say_is_what_the_models_have_and_a_load_warns_of(
    demo_target, drafts, caplog
):
    target = check_model_file(demo_target)
    for name, draft in drafts.items():
        found = compare_vocabularies(target, check_model_file(draft))
        assert not have_one_tokenizer(target, check_model_file(draft))
        with localspec.load(target=demo_target, draft=draft) as engine:
            assert engine.shared_vocabulary == found, name
        assert f"{draft.name} and its target have {found}" in caplog.text


def test_chats_are_cancelled_go_on_and_wait_for_each_other(exact_target, drafts):
    """What the draft has read is cut, left and taken up again; the text is the target's own."""

    def talk(draft, **keywords):
        said = []
        with localspec.load(
            target=exact_target, draft=draft, exact=True, num_threads=1, **keywords
        ) as engine:
            chats = [engine.chat() for _ in range(3)]
            for turn in range(2):
                for chat, question in zip(chats, QUESTIONS, strict=False):
                    with chat.send(question + "?" * turn, temperature=0, max_tokens=24) as ask:
                        for number, _ in enumerate(ask):
                            if number == 5 + turn:
                                ask.cancel()
                    reply = chat.retry(temperature=0, max_tokens=20).reply()
                    said.append(reply.token_ids)
                    if chat.can_continue:
                        options = {"temperature": 0, "max_tokens": 12}
                        said.append(chat.continue_answer(**options).reply().token_ids)
            if draft is not None and "draft_tokens" in keywords:
                assert inside.models(engine).draft.num_decodes > 20
        return said

    plain = talk(None, draft_tokens=0)
    assert talk(drafts["spm"], draft_tokens=3) == plain
    assert talk(drafts["lost"]) == plain


def test_a_constraint_holds(exact_target, drafts):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    texts = []
    for draft, draft_tokens in ((drafts["spm"], 4), (None, 0)):
        with localspec.load(
            target=exact_target,
            draft=draft,
            draft_tokens=draft_tokens,
            exact=True,
            num_threads=1,
        ) as engine:
            reply = engine.generate(
                "Who?", json_schema=schema, temperature=1.0, seed=3, max_tokens=80
            ).reply()
            texts.append(reply.text)
            greeting = engine.generate("Hi", regex="Hello [a-z]{3,6}!", temperature=0).reply()
            texts.append(greeting.text)
            assert re.fullmatch("Hello [a-z]{3,6}!", greeting.text)
    assert texts[:2] == texts[2:]
    json.loads(texts[0])


def test_a_chat_that_waited_or_was_saved_finds_what_its_draft_had_read(
    exact_target, drafts, tmp_path
):
    """Neither model reads the conversation again, and the draft is right as often."""

    def counted(engine, ask):
        draft = inside.models(engine).draft
        read, real = [], draft.decode
        draft.decode = lambda tokens, rows: (read.append(len(tokens)), real(tokens, rows))[1]
        reply = ask(temperature=0, max_tokens=16).reply()
        draft.decode = real
        return reply.token_ids, reply.stats.num_accepted, sum(read)

    keywords = {"draft": drafts["spm"], "draft_tokens": 3, "exact": True, "num_threads": 1}
    file = tmp_path / "caches"
    question = "And what did they find in the old house behind the hill?"
    with localspec.load(target=exact_target, **keywords) as engine:
        chats = [engine.chat() for _ in range(2)]
        for chat in chats:
            chat.send(QUESTIONS[0], temperature=0, max_tokens=90).reply()
        assert engine.save_caches(chats[0], file)
        messages = chats[0].messages
        waited = counted(engine, lambda **asked: chats[0].send(question, **asked))
        inside.cache_pool(engine).clear()
        fresh = counted(engine, lambda **a: engine.generate([*messages, user(question)], **a))
    with localspec.load(target=exact_target, **keywords) as engine:
        chat = engine.chat()
        chat.replace(messages, num_asked=1, num_forgotten=0)
        assert engine.load_caches(chat, file)
        saved = counted(engine, lambda **asked: chat.send(question, **asked))
    assert waited[0] == saved[0] == fresh[0]
    assert waited[:2] == saved[:2]
    assert waited[2] == saved[2] < 90


def user(text):
    return {"role": "user", "content": text}


def test_explain_says_what_two_tokenizers_have_in_common(demo_target, drafts):
    options = ["explain", "--target", str(demo_target), "--draft", str(drafts["lost"])]
    told = CliRunner().invoke(main, options)
    assert told.exit_code == 0
    assert "Tokens     other tokenizers, 3196 tokens in common: 78% of the" in told.stdout
    assert "NO PAIR" not in told.stdout
    found = json.loads(CliRunner().invoke(main, [*options, "--json"]).stdout)
    assert found["vocabulary"] == {"number": 3196, "target_size": 4096, "draft_size": 4096}


@pytest.mark.usefixtures("own_config")
def test_import_takes_another_tokenizer_only_where_no_model_has_the_same(
    tmp_path, demo_target, drafts
):
    shutil.copy(drafts["random"], tmp_path / "other.gguf")
    write_random_model(tmp_path / "large.gguf", demo_target, width=256)
    named = {one.name: one for one in search_folder(tmp_path).proposals}
    assert named["large"].draft == tmp_path / "other.gguf"
    assert named["other"].draft is None
    shown = CliRunner().invoke(main, ["models", "import", str(tmp_path)]).stderr
    assert "other.gguf (other tokenizers, " in shown
    write_random_model(tmp_path / "same.gguf", demo_target, width=64)
    named = {one.name: one for one in search_folder(tmp_path).proposals}
    assert (named["large"].draft, named["large"].common) == (tmp_path / "same.gguf", None)
    assert CliRunner().invoke(main, ["models", "import", str(tmp_path), "--yes"]).exit_code == 0
