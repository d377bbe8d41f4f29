"""Prompts in front of their answers, and how probable their tokens are, as lm-eval asks."""

from __future__ import annotations

import threading
from operator import itemgetter

import pytest

from localspec.engine.prompt_logprobs import prompt_logprobs
from localspec.errors import Interrupted
from localspec.streaming.cancellation import Cancellation, Watch
from localspec.vocabulary import with_bos

pytestmark = pytest.mark.process

PROMPT = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"
STEADY = {"temperature": 0, "draft_tokens": 3}


def complete(server, prompt=PROMPT, **fields):
    fields = {"prompt": prompt, "max_tokens": 8, "echo": True, **STEADY, **fields}
    response = server.ask("/v1/completions", **fields)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture
def said(engine):
    """An answer of 40 tokens, with their log-probabilities as they were drawn."""
    reply = engine.generate_raw(PROMPT, max_tokens=40, logprobs=3, **STEADY).reply()
    prompt = with_bos(engine.tokenize(PROMPT, special=True), engine.vocabulary)
    return prompt, reply


@pytest.mark.parametrize("num_asked", [0, 1])
def test_texts_are_rated_as_lm_eval_does(server, said, num_asked):
    """By the tokens of a context and of what follows, of several texts in a request."""
    prompt, reply = said
    answer = list(reply.token_ids)
    unlikely = [*answer[:-1], answer[0]]
    asked = [[*prompt, *answer], [*prompt, *unlikely]]
    found = complete(server, asked, max_tokens=num_asked, logprobs=1, seed=1234)
    best, other = sorted(found["choices"], key=itemgetter("index"))
    begin, end = len(prompt), len(prompt) + len(answer)
    for choice, tokens in ((best, asked[0]), (other, asked[1])):
        lists = choice["logprobs"]
        assert {len(each) for each in lists.values()} == {len(tokens) + num_asked}
        assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    rated = best["logprobs"]["token_logprobs"][begin:end]
    for value, expected in zip(rated, reply.logprobs, strict=True):
        assert value == pytest.approx(expected.before, abs=2e-3)
    # The answer was greedy, and its last token in the other text is another one.
    tops = [max(each.values()) for each in best["logprobs"]["top_logprobs"][begin:end]]
    assert rated == tops
    last = other["logprobs"]["token_logprobs"][end - 1]
    assert last < max(other["logprobs"]["top_logprobs"][end - 1].values())
    assert found["usage"]["completion_tokens"] == 2 * num_asked


def test_the_text_of_a_prompt_stands_in_front_of_the_answer(server, engine):
    plain = complete(server, echo=False)["choices"][0]["text"]
    ids = with_bos(engine.tokenize(PROMPT, special=True), engine.vocabulary)
    for prompt in (PROMPT, ids):
        for fields in ({}, {"logprobs": 0}, {"n": 2}):
            found = complete(server, prompt, **fields)
            assert {each["text"] for each in found["choices"]} == {PROMPT + plain}
    only = complete(server, max_tokens=0)
    (choice,) = only["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert only["usage"]["completion_tokens"] == 0
    refused = server.ask("/v1/completions", prompt="x", max_tokens=0)
    assert refused.status_code == 400


def test_each_token_says_where_it_begins_in_the_text(server):
    for text in ("Once, é, the fox", PROMPT):
        (choice,) = complete(server, text, logprobs=2)["choices"]
        lists = choice["logprobs"]
        for token, at in zip(lists["tokens"], lists["text_offset"], strict=True):
            if "\ufffd" not in token and token in choice["text"]:
                assert choice["text"][at:].startswith(token)


def test_a_stream_begins_with_the_prompt(server):
    (whole,) = complete(server, logprobs=2)["choices"]
    body = {"prompt": PROMPT, "max_tokens": 8, "echo": True, "logprobs": 2, **STEADY}
    choices = [each["choices"][0] for each in server.stream("/v1/completions", **body)]
    assert choices[0]["text"] == PROMPT
    assert "".join(each["text"] for each in choices) == whole["text"]
    for name, expected in whole["logprobs"].items():
        parts = [each["logprobs"][name] for each in choices if each["logprobs"]]
        assert [value for part in parts for value in part] == expected
    silent = server.stream("/v1/completions", **{**body, "max_tokens": 0})
    assert "".join(each["choices"][0]["text"] for each in silent) == PROMPT


def test_it_waits_for_others_and_costs_no_conversation_its_cache(server):
    asked = {"text": "Tell me of a hill and a hen.", "max_tokens": 8}
    server.chat(**asked)
    before = server.chat(**asked)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert before > 10
    found = []

    def rate():
        found.append(complete(server, "The fox ran. " * 50, logprobs=1))

    body = {"prompt": "Once", "max_tokens": 300, "stream": True, "ignore_eos": True}
    threads = [threading.Thread(target=rate) for _ in range(2)]
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        for each in threads:
            each.start()
        rest = list(lines)
    for each in threads:
        each.join()
    assert rest[-2] == "data: [DONE]"
    assert len(found) == 2
    assert found[0]["choices"] == found[1]["choices"]
    after = server.chat(**asked)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert after == before


def test_a_prompt_that_leaves_no_room_is_refused(server):
    (model,) = server.models.all
    response = server.ask(
        "/v1/completions", prompt="fox " * 3000, echo=True, logprobs=1, max_tokens=0
    )
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["n_ctx"]) == ("context_length_exceeded", model.context_length)
    assert complete(server, "fox", logprobs=1)["choices"][0]["text"].startswith("fox")


def test_a_request_that_is_given_up_ends_within_a_decode(engine):
    tokens = engine.tokenize("The fox ran over the hill. " * 200)
    ended = Cancellation()
    watch = Watch(lambda _stage, _left_s: None, ended)
    before = engine.num_decodes
    assert len(prompt_logprobs(engine, tokens[:40], 0, watch=watch)) == 39
    assert engine.num_decodes > before
    ended.request()
    before = engine.num_decodes
    with pytest.raises(Interrupted):
        prompt_logprobs(engine, tokens, 0, watch=watch)
    assert engine.num_decodes <= before + 1
    assert engine.generate_raw("Once", max_tokens=3, ignore_eos=True).reply().text
