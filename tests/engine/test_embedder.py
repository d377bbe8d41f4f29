"""Texts as vectors, and scores of a reranker, in this process and by the server."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
import threading
from datetime import datetime, timezone

import numpy as np
import pytest

import localspec
from command_line import run
from embedder_maker import LAST, MEAN, RANK, write_embedder
from gguf_maker import write_random_model
from localspec.engine.embedder import Embedded
from localspec.llama.model_options import BATCH_SIZE
from localspec.presets.presets import user_presets
from localspec.server.answering import Service
from localspec.server.embeddings import embeddings
from localspec.server.fields import Fields
from localspec.server.refusal import RequestError
from localspec.server.served_models import ServedEmbedder, ServedModels
from server_runner import running_server

ASKED = [{"role": "user", "content": "Hello"}]
TEXTS = ["A fox ran over the hill.", "Rain.", "What is <|im_end|> for?"]


@pytest.fixture(scope="module")
def mean(tmp_path_factory, demo_target):
    return write_embedder(tmp_path_factory.mktemp("mean") / "mean.gguf", demo_target, MEAN)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory, demo_target):
    """Qwen3's architecture, with the output layer of a reranker."""
    return write_random_model(
        tmp_path_factory.mktemp("rank") / "rank.gguf",
        demo_target,
        architecture="qwen3",
        context_length=64,
        extra={
            "qwen3.pooling_type": RANK,
            "qwen3.classifier.output_labels": ["yes", "no"],
            "tokenizer.chat_template.rerank": "{query}|{document}",
        },
    )


@pytest.fixture(scope="module")
def embedder(mean):
    with localspec.load_embedder(mean) as found:
        yield found


def test_several_texts_have_the_vectors_that_each_has_alone(embedder):
    found = embedder.embed(TEXTS * 8)  # more than one decode takes
    assert found.values.shape == (24, embedder.width)
    assert found.values.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found.values, axis=1), 1, atol=1e-6)
    for index, text in enumerate(TEXTS):
        alone = embedder.embed(text)
        np.testing.assert_allclose(found.values[index::3], alone.values.repeat(8, 0), atol=3e-4)
    assert abs(found.values[0] @ found.values[1]) < 0.999
    assert found.num_tokens == 8 * sum(embedder.embed(text).num_tokens for text in TEXTS)


def test_what_looks_like_a_control_token_is_text(embedder, demo_vocabulary):
    ids = demo_vocabulary.tokenize(TEXTS[2], parse_special=False)
    begin = [demo_vocabulary.bos] if demo_vocabulary.add_bos else []
    by_ids = embedder.embed([[*begin, *ids]])
    np.testing.assert_array_equal(by_ids.values, embedder.embed(TEXTS[2]).values)


@pytest.mark.parametrize("pooling", [MEAN, LAST])
def test_texts_longer_than_a_decode_have_the_vectors_of_llama_cpp_python(
    pooling, tmp_path, demo_target
):
    """Where the last row counts, a text is read in pieces; a mean needs it whole."""
    llama_cpp = pytest.importorskip("llama_cpp")
    path = write_embedder(tmp_path / "long.gguf", demo_target, pooling, context_length=1536)
    texts = ["A fox ran over the hill. " * 90, "Rain.", "owl " * 200]
    with localspec.load_embedder(path, num_threads=1) as ours:
        found = ours.embed(texts)
    assert found.num_tokens > BATCH_SIZE
    size = {"n_ctx": 1536, "n_batch": 1536, "n_ubatch": 1536}
    other = llama_cpp.Llama(str(path), embedding=True, verbose=False, **size)
    expected = [other.embed(text, normalize=True) for text in texts]
    other.close()
    np.testing.assert_allclose(found.values, expected, atol=1e-3)


def test_a_context_may_have_fewer_tokens_than_texts_are_read_at_once(mean):
    with localspec.load_embedder(mean, context_length=4) as small:
        assert small.embed([[5, 6]] * 20).values.shape == (20, small.width)


def test_its_memory_is_counted(mean, tmp_path, demo_target):
    long = write_embedder(tmp_path / "long.gguf", demo_target, MEAN, context_length=4096)
    last = write_embedder(tmp_path / "last.gguf", demo_target, LAST, context_length=4096)
    sizes = [ServedEmbedder(str(each)).needed_bytes for each in (long, last, mean)]
    assert sizes == sorted(sizes, reverse=True)  # whole, in pieces, and for short texts
    assert sizes[-1] > mean.stat().st_size / 2


def test_what_is_refused(embedder, reranker, demo_target, mean):
    with pytest.raises(localspec.ContextError, match=r"tokens; mean\.gguf reads 64"):
        embedder.embed("fox " * 100)
    assert embedder.embed("fox " * 100, truncate=True).num_tokens == 64
    for wrong, said in (
        (lambda: embedder.embed("fox", dimensions=65), "dimensions is 65"),
        (lambda: embedder.embed([[]]), "a text is empty"),
        (lambda: embedder.embed([[99_999_999]]), "99999999"),
        (lambda: embedder.rank("fox", ["hen"]), "not a reranker"),
    ):
        with pytest.raises(localspec.OptionError, match=said):
            wrong()
    with pytest.raises(localspec.ModelFileError, match="does not say how a text becomes"):
        localspec.load_embedder(demo_target)
    with pytest.raises(localspec.ModelFileError, match="embedding model"):
        localspec.load(mean)
    with localspec.load_embedder(reranker) as ranking, pytest.raises(localspec.OptionError):
        ranking.embed("fox")
    with pytest.raises(localspec.EngineError, match="closed"):
        ranking.rank("fox", ["hen"])


def test_a_server_does_not_start_with_a_model_that_gives_no_vectors(demo_target):
    """Or each request would fail."""
    with pytest.raises(localspec.ModelFileError, match="is not an embedding model"):
        ServedEmbedder(str(demo_target))
    done = run("serve", "demo", "--embeddings", str(demo_target))
    assert done.exit_code != 0
    assert f"{demo_target.name} is not an embedding model" in done.output.replace("\n", " ")
    assert "Choose an embedding model" in done.output


def test_a_reranker_gives_each_document_its_score(reranker):
    with localspec.load_embedder(reranker) as ranking:
        found = ranking.rank("fox", TEXTS)
        assert found.values.shape == (3,)
        alone = [ranking.rank("fox", [text]).values[0] for text in TEXTS]
        np.testing.assert_allclose(found.values, alone, atol=1e-4)
        assert len(set(found.values.tolist())) == 3
        assert ranking.rank("hen", TEXTS).values[0] != found.values[0]


@pytest.fixture(scope="module")
def embedding(mean):
    with running_server(embedder=str(mean)) as running:
        yield running


@pytest.mark.process
def test_openai_asks_for_vectors(embedding, embedder):
    texts = TEXTS * 11  # more than one call of the process takes
    expected = embedder.embed(texts)
    found = embedding.ask("/v1/embeddings", input=texts, model="mean").json()
    vectors = [each["embedding"] for each in found["data"]]
    np.testing.assert_allclose(vectors, expected.values, atol=1e-6)
    assert [each["index"] for each in found["data"]] == [*range(33)]
    assert found["usage"]["prompt_tokens"] == expected.num_tokens
    assert found["model"] == "mean"
    coded = embedding.ask("/embeddings", input=TEXTS[0], encoding_format="base64").json()
    decoded = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    alone = embedder.embed(TEXTS[0]).values[0]
    np.testing.assert_allclose(decoded, alone, atol=1e-6)
    short = embedding.ask("/v1/embeddings", input=[[5, 6], [7]], dimensions=4).json()
    assert [len(each["embedding"]) for each in short["data"]] == [4, 4]
    names = [model["id"] for model in embedding.client.get("/v1/models").json()["data"]]
    assert names == ["demo", "mean"]
    assert embedding.chat(max_tokens=2)["model"] == "demo"


@pytest.mark.process
def test_openais_library_asks_for_vectors(embedding, embedder):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    with openai.OpenAI(base_url=f"{embedding.url}/v1", api_key="any") as client:
        found = client.embeddings.create(model="mean", input=TEXTS)  # in base64
    vectors = [each.embedding for each in found.data]
    np.testing.assert_allclose(vectors, embedder.embed(TEXTS).values, atol=1e-6)


@pytest.mark.process
def test_ollama_asks_for_vectors(embedding, embedder):
    expected = embedder.embed(TEXTS[0]).values
    found = embedding.ask("/api/embed", model="mean:latest", input=TEXTS[0]).json()
    np.testing.assert_allclose(found["embeddings"], expected, atol=1e-6)
    older = embedding.ask("/api/embeddings", prompt=TEXTS[0]).json()
    np.testing.assert_allclose([older["embedding"]], expected, atol=1e-6)
    assert embedding.ask("/api/embed").json()["embeddings"] == []
    long = "fox " * 100
    assert embedding.ask("/api/embed", input=long).json()["prompt_eval_count"] == 64
    assert embedding.ask("/api/embed", input=long, truncate=False).status_code == 400


@pytest.mark.process
def test_ollamas_clients_find_it(mean):
    """They saw the model that answers under its name, or none."""
    with running_server(embedder=str(mean)) as server:
        tag = server.client.get("/api/tags").json()["models"][1]
        assert tag["name"] == tag["model"] == "mean:latest"
        assert tag["size"] == mean.stat().st_size
        shown = server.ask("/api/show", model="mean").json()
        assert shown["capabilities"] == ["embedding"]
        assert shown["details"] == tag["details"]
        assert shown["model_info"]["llama.embedding_length"] == 64
        assert "completion" in server.ask("/api/show", model="demo").json()["capabilities"]
        assert server.client.get("/api/ps").json()["models"] == []
        assert server.ask("/api/embed", model="mean", input="fox").status_code == 200
        (loaded,) = server.client.get("/api/ps").json()["models"]
        assert loaded.items() >= {**tag, "context_length": 64, "size": loaded["size"]}.items()
        assert loaded["size"] > tag["size"] / 2
        left_s = datetime.fromisoformat(loaded["expires_at"]) - datetime.now(timezone.utc)
        assert 0 < left_s.total_seconds() <= 30 * 60
        listed = server.client.get("/v1/models/mean").json()
        assert (listed["id"], listed["max_model_len"]) == ("mean", 64)


@pytest.mark.process
@pytest.mark.parametrize(
    ("path", "fields", "what"),
    [
        ("/v1/embeddings", {}, "input is missing"),
        ("/v1/embeddings", {"input": [None]}, "input is [null]"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/embeddings", {"input": "x", "dimensions": 65}, "dimensions is 65"),
        ("/v1/embeddings", {"input": "fox " * 100}, "mean.gguf reads 64"),
        ("/v1/rerank", {"query": "x", "documents": []}, "documents"),
        ("/v1/rerank", {"documents": ["x"]}, "query"),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}, "mean.gguf is not a reranker"),
        ("/v1/chat/completions", {"model": "mean", "messages": ASKED}, "mean is the model for"),
        ("/tokenize", {"model": "mean:latest", "content": "x"}, "cannot answer questions"),
    ],
)
def test_what_the_server_refuses(embedding, path, fields, what):
    response = embedding.ask(path, **fields)
    assert response.status_code == 400
    assert what in response.json()["error"]["message"]


def test_a_preset_for_embeddings_is_opened_by_its_name(monkeypatch, tmp_path, mean):
    """And is no model that answers."""
    presets = tmp_path / "models.toml"
    monkeypatch.setattr("localspec.presets.presets.user_presets_file", lambda: presets)
    presets.write_text(
        '[mine]\ndescription = "x"\ncontext_length = 64\nembeds = true\n'
        f'[mine.target]\npath = "{mean.as_posix()}"\n'
    )
    with localspec.load_embedder("mine") as embedder:
        assert embedder.embed("fox").values.shape == (1, embedder.width)
    assert run("models", "verify", "mine").output == "mine: ok\n"
    assert ServedEmbedder("mine").name == "mine"
    assert ServedEmbedder(str(mean)).name == "mean"
    for ask in (localspec.load, localspec.explain):
        with pytest.raises(localspec.OptionError, match="is an embedding model") as caught:
            ask("mine")
        assert "load_embedder" in caught.value.hint
    listed = run("models")
    assert "PRESET': mine, nomic-embed-text-v1.5, bge-small-en-v1.5" in listed.output
    presets.write_text("[mine]\nembeds = 1\n")
    with pytest.raises(localspec.PresetError, match="embeds: is 1, not of type bool"):
        user_presets()


@pytest.mark.process
def test_documents_are_ranked(reranker):
    with running_server(embedder=str(reranker)) as server:
        given = {"query": "fox", "documents": TEXTS, "return_documents": True}
        found = server.ask("/v1/rerank", **given).json()["results"]
        scores = [each["relevance_score"] for each in found]
        assert scores == sorted(scores, reverse=True)
        assert sorted(each["index"] for each in found) == [0, 1, 2]
        assert all(each["document"]["text"] == TEXTS[each["index"]] for each in found)
        assert server.ask("/api/show", model="rank").json()["capabilities"] == []
        assert server.ask("/rerank", **given, top_n=1).json()["results"] == found[:1]


@pytest.mark.process
def test_without_a_model_for_it_the_server_says_what_to_do(server):
    for path, fields in (("/v1/embeddings", {"input": "x"}), ("/api/embed", {"input": "x"})):
        response = server.ask(path, **fields)
        assert response.status_code == 404
        assert "--embeddings MODEL" in response.text


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_a_process_that_was_lost_is_started_again(embedding):
    assert embedding.ask("/v1/embeddings", input="x").status_code == 200
    os.kill(embedding.models.embedder.engine.process_id, signal.SIGKILL)
    lost = embedding.ask("/v1/embeddings", input="x")
    assert lost.status_code == 500
    assert embedding.ask("/v1/embeddings", input="x").status_code == 200


class SlowProcess:
    """In place of the process of an embedder: it reads when that event is set."""

    def __init__(self):
        self.reads, self.is_reading, self.parts = threading.Event(), False, []
        self.reads.set()

    def call(self, question):
        texts = question.texts
        self.parts.append(list(texts))
        self.is_reading = True
        assert self.reads.wait(60)
        self.is_reading = False
        return Embedded(np.array([[len(text)] for text in texts], dtype=np.float32), 1)

    def kill(self):
        pass

    def close(self):
        pass


async def until(is_so):
    while not is_so():
        await asyncio.sleep(0.001)


def test_a_long_batch_lets_others_in_and_ends_with_its_client(mean, monkeypatch):
    process = SlowProcess()
    monkeypatch.setattr(
        "localspec.server.served_models.IsolatedEmbedder", lambda _path: process
    )

    async def ask():
        served = ServedEmbedder(str(mean))
        models = ServedModels([], takes_any_name=True, embedder=served)
        service = Service(models=models, num_waiting=1, patience_s=60)
        long = asyncio.create_task(embeddings(Fields({"input": ["long"] * 1000}))(service))
        await until(lambda: len(process.parts) > 2)
        other = await embeddings(Fields({"input": "other"}))(service)
        assert other["data"][0]["embedding"] == [5]
        process.reads.clear()
        await until(lambda: process.is_reading)
        num_parts = len(process.parts)
        long.cancel()
        await asyncio.wait_for(models.close_unused(-1), 60)  # which does not wait for its turn
        process.reads.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(long, 60)
        assert len(process.parts) <= num_parts + 1 < 1000 / 16
        assert served.engine is process
        await models.close()
        assert served.engine is None

    asyncio.run(ask())


def test_a_request_that_waits_loads_nothing_while_the_server_stops(mean, monkeypatch):
    loads = []

    def load(path):
        loads.append(path)
        raise localspec.ModelFileError("it was loaded", "Do not load it.")

    monkeypatch.setattr("localspec.server.served_models.IsolatedEmbedder", load)

    async def ask():
        served = ServedEmbedder(str(mean))
        models = ServedModels([], takes_any_name=True, embedder=served)
        service = Service(models=models, num_waiting=1, patience_s=60)
        async with served.turn:
            waiting = asyncio.create_task(embeddings(Fields({"input": "a"}))(service))
            await asyncio.sleep(0)
            service.is_stopping = True
        with pytest.raises(RequestError, match="stopp"):
            await asyncio.wait_for(waiting, 60)

    asyncio.run(ask())
    assert loads == []
