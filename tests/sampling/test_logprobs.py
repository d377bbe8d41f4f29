"""The best tokens of a row, before and after the chain."""

from __future__ import annotations

import math

import numpy as np
import pytest

import inside
import localspec
from engines import all_at_once
from gguf_maker import write_random_model
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.sampling.distribution import Distribution
from localspec.sampling.logprobs import token_logprobs, top_of_distribution, top_of_row
from localspec.sampling.params import SamplingParams
from localspec.server.completions import logprob_object
from waiting import wait_until


@pytest.mark.parametrize("size", [5, 3000, 152_064])
def test_top_of_a_row_is_its_log_softmax(size):
    """The n best of the full log-softmax, best first."""
    row = np.random.default_rng(size).normal(3.0, 4.0, size).astype(np.float32)
    exact = row.astype(np.float64)
    exact -= exact.max()
    exact -= math.log(np.exp(exact).sum())
    order = np.argsort(-exact)
    for n in (1, 4, 20):
        ids, logprobs = zip(*top_of_row(row, n), strict=True)
        assert list(ids) == order[:n].tolist()
        np.testing.assert_allclose(logprobs, exact[order[:n]], atol=1e-5)


def test_equal_tokens_come_in_the_order_of_their_ids():
    row = np.zeros(5000, dtype=np.float32)
    row[[70, 4000]] = 1.0
    assert [token for token, _ in top_of_row(row, 4)] == [70, 4000, 0, 1]


def test_top_of_a_distribution_is_what_the_transforms_left():
    """Renormalised over the survivors; what has no probability is not listed."""
    distribution = Distribution(np.array([2, 5, 6, 9]), np.array([0.25, 0.5, 0.0, 0.25]))
    found = top_of_distribution(distribution, 3)
    assert found == [(5, math.log(0.5)), (2, math.log(0.25)), (9, math.log(0.25))]
    assert top_of_distribution(distribution, 2) == found[:2]


def test_an_emitted_tokens_logprobs_are_those_of_its_row_and_distribution():
    """Its own probability in both, whether or not it is among the best."""
    row = np.log(np.array([0.1, 0.6, 0.3])).astype(np.float32)
    distribution = Distribution(np.array([1, 2]), np.array([0.75, 0.25]))
    found = token_logprobs(2, row, distribution, 1, b"%d".__mod__)
    assert (found.token_id, found.text) == (2, "2")
    assert (found.token_id, [top.token_id for top in found.top_before]) == (2, [1])
    assert math.exp(found.before) == pytest.approx(0.3)
    assert math.exp(found.after) == pytest.approx(0.25)
    assert found.top_after == ((1, pytest.approx(math.log(0.75)), "1"),)
    alone = token_logprobs(2, row, distribution, 0, b"%d".__mod__)
    assert (alone.top_before, alone.top_after) == ((), ())
    assert alone.after == found.after


def test_parts_of_a_character_have_their_bytes():
    row = np.log(np.array([0.5, 0.5])).astype(np.float32)
    distribution = Distribution(np.array([0, 1]), np.array([0.5, 0.5]))
    found = token_logprobs(0, row, distribution, 2, [b"\xc3", "é".encode()].__getitem__)
    assert found.text == "\N{REPLACEMENT CHARACTER}"
    assert found.raw == {0: b"\xc3"}
    assert [each.text for each in found.top_before] == [found.text, "é"]
    assert logprob_object(found)["bytes"] == [0xC3]
    assert [each["bytes"] for each in logprob_object(found)["top_logprobs"]] == [
        [0xC3],
        [0xC3, 0xA9],
    ]


def test_impossible_tokens_are_not_listed():
    """So that no infinity gets into JSON."""
    row = np.array([0.0, -np.inf, 1.0], dtype=np.float32)
    distribution = Distribution(np.array([2]), np.array([1.0]))
    found = token_logprobs(2, row, distribution, 3, b"%d".__mod__)
    assert [top.token_id for top in found.top_before] == [2, 0]


@pytest.fixture(scope="module")
def long_pair(tmp_path_factory, demo_target):
    """Two models with 10 096 tokens, which agree now and then; and the target's own rows."""
    folder = tmp_path_factory.mktemp("long")
    target, draft = (
        write_random_model(
            folder / f"{layers}.gguf", demo_target, num_layers=layers, num_padding=6000
        )
        for layers in (1, 2)
    )
    model = LlamaModel.open(target, LlamaOptions(context_length=256, max_outputs=64))
    yield target, draft, model
    model.close()


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_tokens_of_a_long_vocabulary_without_filters_have_the_models_logprobs(
    long_pair, monkeypatch, rule
):
    """Two answers at once, with drafts; a seed repeats, and says what it says without reuse."""
    target, draft, model = long_pair
    # Whether two sizes are joined must not depend on the times of a busy machine.
    monkeypatch.setattr("localspec.llama.joint_costs.RowTimes.pays", lambda *_: True)
    prompts = [[5, 6, 7, 8], [9, 10, 11]]
    off = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0)
    options = {"sampling": off, "seed": 4, "rule": rule, "max_tokens": 40, "logprobs": 0}

    def said():
        with localspec.load(
            target=target, draft=draft, context_length=256, draft_tokens=3, parallel=2
        ) as engine:
            return all_at_once(engine, prompts, **options)

    replies = said()
    for prompt, reply in zip(prompts, replies, strict=True):
        stats = reply.stats
        assert 0 < stats.num_accepted < stats.num_draft_tokens
        model.truncate(0)
        tokens = [*prompt, *reply.token_ids]
        model.decode(tokens[: len(prompt) - 1], 0)
        count = len(reply.token_ids)
        rows = model.decode(tokens[len(prompt) - 1 : -1], count).astype(np.float64)
        own = rows[range(count), reply.token_ids] - np.log(np.exp(rows).sum(axis=1))
        found = np.array([(each.before, each.after) for each in reply.logprobs])
        np.testing.assert_allclose(found[:, 0], own, atol=0.02)  # decodes of other sizes
        np.testing.assert_allclose(found[:, 1], found[:, 0], atol=2e-6)
    assert [reply.token_ids for reply in said()] == [reply.token_ids for reply in replies]
    monkeypatch.setattr(
        "localspec.sampling.chain._Buffers.take",
        lambda _buffers, size: np.empty(size, np.float32),
    )
    assert [reply.token_ids for reply in said()] == [reply.token_ids for reply in replies]


def test_another_answer_does_not_change_the_logprobs_of_one_whose_reader_takes_its_time():
    """It waits amid a step, and the other's decodes overwrite what libllama gave for that."""
    options = {"temperature": 0, "ignore_eos": True, "max_tokens": 60, "logprobs": 3}
    with localspec.load(context_length=256, draft_tokens=3, parallel=2) as engine:
        alone = engine.generate_raw("Once upon a time there was", **options).reply()
        for num_read in range(1, 5):  # one of these ends amid a step
            stream = engine.generate_raw("Once upon a time there was", **options)
            for _ in range(num_read):
                next(stream)
            exchange = inside.record_of(stream)
            wait_until(lambda exchange=exchange: exchange.is_ahead)
            engine.generate_raw("The owl and the hen", **options).reply()
            reply = stream.reply()
            assert reply.token_ids == alone.token_ids
            for found, right in zip(reply.logprobs, alone.logprobs, strict=True):
                assert found.token_id == right.token_id
                assert found.before == pytest.approx(right.before, abs=0.1)
                assert found.after == pytest.approx(right.after, abs=0.1)
                best = [top.logprob for top in right.top_before]
                assert [top.logprob for top in found.top_before] == pytest.approx(best, abs=0.1)
