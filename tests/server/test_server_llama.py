"""llama-server's own /completion, and its fields that other protocols have, too."""

from __future__ import annotations

import itertools
import math

import pytest

pytestmark = pytest.mark.process

PROMPT = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"
STEADY = {"temperature": 0, "draft_tokens": 3}


def complete(server, prompt=PROMPT, path="/completion", **fields):
    fields = {"prompt": prompt, "n_predict": 12, **STEADY, **fields}
    response = server.ask(path, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(server, prompt=PROMPT, path="/completion", **fields):
    return server.stream(path, **{"prompt": prompt, "n_predict": 12, **STEADY, **fields})


def joined(events, name):
    return [each for event in events for each in event.get(name, ())]


def ids_of(server, text):
    return server.ask("/tokenize", content=text).json()["tokens"]


def test_the_best_tokens_are_told_with_each_token(server):
    told = complete(server, n_probs=3)
    listed = told["completion_probabilities"]
    assert len(listed) == told["tokens_predicted"] == 12
    assert "".join(each["token"] for each in listed) == told["content"]
    for each in listed:
        assert each.keys() == {"id", "token", "bytes", "logprob", "top_logprobs"}
        first, *rest = each["top_logprobs"]
        assert first == {name: each[name] for name in ("id", "token", "bytes", "logprob")}
        assert len(rest) == 2
        assert bytes(each["bytes"]).decode() == each["token"]
    assert joined(streamed(server, n_probs=3), "completion_probabilities") == listed
    assert "completion_probabilities" not in complete(server, n_probs=0)
    assert server.ask("/completion", prompt="x", n_probs=-1).status_code == 400


def test_probabilities_after_sampling_are_told_where_they_are_asked_for(server):
    fields = {"temperature": 1.0, "top_k": 5, "top_p": 1, "min_p": 0, "seed": 3}
    told = complete(server, n_probs=5, post_sampling_probs=True, **fields)
    for each in told["completion_probabilities"]:
        assert each.keys() == {"id", "token", "bytes", "prob", "top_probs"}
        probs = {one["id"]: one["prob"] for one in each["top_probs"]}
        assert math.isclose(sum(probs.values()), 1, rel_tol=1e-5)  # of the five that are left
        assert probs[each["id"]] == each["prob"]


def test_the_ids_of_tokens_are_told_where_they_are_asked_for(server):
    told = complete(server, return_tokens=True)
    assert len(told["tokens"]) == 12
    assert server.ask("/detokenize", tokens=told["tokens"]).json()["content"] == told["content"]
    assert complete(server)["tokens"] == []
    events = streamed(server)
    assert joined(events, "tokens") == told["tokens"]
    assert [event["tokens_predicted"] for event in events][-1] == 12
    # Those of tokens that a stop string holds back come with what follows.
    stop = [told["content"][-4:] + "never"]
    assert joined(streamed(server, stop=stop), "tokens") == told["tokens"]


def test_an_answer_that_the_context_ends_is_truncated(server):
    (model,) = server.models.all
    text = ids_of(server, "fox " * model.context_length)[: model.context_length - 8]
    for n_predict, is_truncated in ((-1, True), (3, False)):
        fields = {"n_predict": n_predict, "ignore_eos": True}
        told = complete(server, text, **fields)
        assert (told["stop_type"], told["truncated"]) == ("limit", is_truncated)
        assert streamed(server, text, **fields)[-1]["truncated"] is is_truncated
    assert told["tokens_evaluated"] == model.context_length - 8


def test_a_bias_may_name_a_text(server):
    word = complete(server)["content"].split()[0]
    first = complete(server, return_tokens=True)["tokens"][0]
    (token,) = ids_of(server, word)  # as the answer begins with it
    assert token == first
    banned = complete(server, logit_bias={str(token): False})["content"]
    assert not banned.startswith(word)
    for bias in ({word: False}, [[word, False]], {word: -1e6}, [[token, False]]):
        assert complete(server, logit_bias=bias)["content"] == banned
    rare = ids_of(server, " zebra")
    forced = complete(server, logit_bias=[[" zebra", 1e6]], return_tokens=True)["tokens"]
    assert set(forced) <= set(rare)
    plain = server.chat(max_tokens=12)["choices"]
    assert server.chat(max_tokens=12, logit_bias={word: False})["choices"] != plain
    many = {f"text {number}": 1 for number in range(257)}
    for wrong, what in (
        ({"": 1}, "not empty"),
        ({word: "much"}, "Give a number"),
        (many, "up to 256 texts"),
    ):
        response = server.ask("/completion", prompt="x", logit_bias=wrong)
        assert response.status_code == 400
        assert what in response.json()["error"]["message"]


def test_a_prompt_may_be_of_texts_and_ids(server):
    begin, end = "<|im_start|>user\nTell me", " a story.<|im_end|>\n<|im_start|>assistant\n"
    whole = complete(server, begin + end, return_tokens=True)
    for mixed in (
        [begin, *ids_of(server, end)],
        [*ids_of(server, begin), end],
        [*ids_of(server, begin), " a story.", *ids_of(server, end[9:])],
    ):
        found = complete(server, mixed, return_tokens=True)
        assert found["tokens_evaluated"] == whole["tokens_evaluated"]
        assert found["tokens"] == whole["tokens"]
        choices = complete(server, [mixed, mixed], path="/v1/completions")["choices"]
        assert {each["text"] for each in choices} == {whole["content"]}
    for wrong in (
        [1, *["a"] * 257],
        [1, "a", 2.5],
        [1, "a", True],
        [[1, "a"], 3],
        [99_999_999, "a"],
    ):
        assert server.ask("/completion", prompt=wrong).status_code == 400
    assert server.ask("/v1/embeddings", input=[1, "a"]).status_code == 400


def test_several_prompts_have_an_answer_each(server):
    texts = [PROMPT, "Hello", [1, "Hello"]]
    answers = complete(server, texts)
    assert [each["index"] for each in answers] == [0, 1, 2]
    assert answers[0]["content"] == complete(server)["content"]
    events = streamed(server, texts)
    for number, answer in enumerate(answers):
        mine = [event for event in events if event["index"] == number]
        assert "".join(event["content"] for event in mine) == answer["content"]
        assert mine[-1]["stop"] is True


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
@pytest.mark.parametrize("repeats", [1, 200])
def test_how_far_a_prompt_is_read_is_told_where_it_is_asked_for(server, path, repeats):
    """Of one batch and of several; llama-server's other fields stand beside it."""
    text = "Tell me of a hill and a hen. " * repeats
    fields = {"messages": [{"role": "user", "content": text}], "max_tokens": 12}
    for is_again in (False, True):
        events = streamed(server, text, path, **fields, return_progress=True)
        told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
        assert {"total", "cache", "processed", "time_ms"} <= told[0].keys()
        assert (told[0]["cache"] > 0) is is_again
        assert told[-1]["processed"] == told[-1]["total"] > 5 * repeats
        for before, after in itertools.pairwise(told):
            assert before["processed"] < after["processed"]
            assert before["time_ms"] <= after["time_ms"]
    # What comes first says how much was there; nothing comes behind text.
    at = [number for number, event in enumerate(events) if "prompt_progress" in event]
    assert at == list(range(len(at)))
    silent = streamed(server, "Hello", path, **fields)
    assert not any("prompt_progress" in event for event in silent)


@pytest.mark.parametrize("streams", [False, True])
def test_a_prompt_that_does_not_fit_is_measured(server, streams):
    (model,) = server.models.all
    text = "fox " * 2 * model.context_length
    num_tokens = len(ids_of(server, text))
    error = server.ask("/completion", prompt=text, stream=streams).json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["code"] == 400
    assert num_tokens <= error["n_prompt_tokens"] <= num_tokens + 1
    assert error["n_ctx"] == model.context_length
    messages = [{"role": "user", "content": text}]
    response = server.ask("/v1/chat/completions", messages=messages, stream=streams)
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["n_prompt_tokens"] > num_tokens
    assert error["n_ctx"] == model.context_length
