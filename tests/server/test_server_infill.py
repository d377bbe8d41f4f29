"""Filling in between two texts, in the protocols in which editors ask for it."""

from __future__ import annotations

import pytest

from gguf_maker import write_random_model
from localspec.gguf_file.header import read_header
from localspec.gguf_file.header_vocabulary import fim_tokens
from server_runner import running_server

MARKS = {"prefix": 4090, "suffix": 4091, "middle": 4092, "repo": 4093, "file": 4094}
NAMES = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
STEADY = {"temperature": 0, "draft_tokens": 3, "n_predict": 12, "ignore_eos": True}
BEFORE = "def greet(name):\n    # says <|im_end|> and <|fim_middle|>\n    return "
AFTER = "\n\nprint(greet('fox'))\n"


@pytest.fixture(scope="module")
def coder(tmp_path_factory, demo_target):
    """A model whose file names the five tokens by their texts."""
    path = tmp_path_factory.mktemp("coder") / "coder.gguf"
    names = dict(zip(MARKS.values(), NAMES, strict=True))
    return write_random_model(path, demo_target, replace_tokens=names)


@pytest.fixture(scope="module")
def coding(coder):
    with running_server(presets=[str(coder)], context_length=512) as running:
        yield running


def tokens(coding, text):
    """Of a text in which nothing is special."""
    return coding.ask("/tokenize", content=text, parse_special=False).json()["tokens"]


def fill_in(coding, before=BEFORE, after=AFTER, path="/infill", **fields):
    names = {"input_prefix": before, "input_suffix": after}
    if path != "/infill":
        names = {"prompt": before, "suffix": after}
    response = coding.ask(path, **{**names, **STEADY, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def go_on(coding, prompt):
    return coding.ask("/completion", prompt=prompt, **STEADY).json()


def prompt_of(coding, *files):
    """The tokens of a prompt with BEFORE and AFTER, behind other files."""
    front = [MARKS["repo"], *tokens(coding, "project\n")] if files else []
    for text in files:
        front += [MARKS["file"], *tokens(coding, text)]
    begin, end = tokens(coding, BEFORE), tokens(coding, AFTER)
    return [*front, MARKS["prefix"], *begin, MARKS["suffix"], *end, MARKS["middle"]]


def test_the_tokens_of_a_file(tmp_path, demo_target, coder):
    """By their keys, old and new ones, or by their texts; a model without them has none."""
    assert fim_tokens(read_header(demo_target)) is None
    assert fim_tokens(read_header(coder))._asdict() == MARKS
    keys = {"fim_pre": 7, "fim_suf": 8, "middle": 9, "fim_sep": 99_999}
    stated = {f"tokenizer.ggml.{key}_token_id": token for key, token in keys.items()}
    other = write_random_model(tmp_path / "keys.gguf", demo_target, extra=stated)
    assert fim_tokens(read_header(other)) == (7, 8, 9, None, None)


@pytest.mark.process
def test_the_text_between_two_others_is_filled_in(coding):
    """And what looks like a control token in them is text."""
    found, prompt = fill_in(coding), prompt_of(coding)
    assert found["tokens_evaluated"] == len(prompt)
    assert not {MARKS["middle"], MARKS["file"]} & set(prompt[1:-1])
    assert found["content"] == go_on(coding, prompt)["content"] != ""
    assert (found["stop"], found["stop_type"], found["tokens_predicted"]) == (True, "limit", 12)
    begun = fill_in(coding, before=BEFORE[:-7], prompt=BEFORE[-7:])
    assert begun["content"] == found["content"]


@pytest.mark.process
def test_other_files_come_first(coding):
    extra = [{"filename": "a.py", "text": "A = 1\n"}, {"text": "B = 2\n"}]
    found = fill_in(coding, input_extra=extra)
    prompt = prompt_of(coding, "a.py\nA = 1\n", "file\nB = 2\n", "file\n")
    assert found["tokens_evaluated"] == len(prompt)
    assert found["content"] == go_on(coding, prompt)["content"]


@pytest.mark.process
def test_openai_and_ollama_ask_by_a_suffix(coding):
    content = fill_in(coding)["content"]
    (choice,) = fill_in(coding, path="/v1/completions")["choices"]
    assert choice["text"] == content
    options = {**STEADY, "num_predict": 12}
    found = fill_in(coding, path="/api/generate", stream=False, options=options)
    assert found["response"] == content
    assert "insert" in coding.ask("/api/show").json()["capabilities"]
    plain = fill_in(coding, path="/v1/completions", after="")["choices"][0]["text"]
    assert plain == go_on(coding, BEFORE)["content"]


@pytest.mark.process
def test_what_is_shared_stays_cached_while_a_person_types(coding):
    coding.forget()
    first = fill_in(coding, input_extra=[{"text": "A = 1\n" * 20}], n_predict=0)
    assert first["content"] == ""
    assert first["tokens_predicted"] == 0
    files = len(tokens(coding, "A = 1\n" * 20))
    typed, num_cached = BEFORE, []
    for more in ("", "'Hello", ", '", " + name"):
        typed += more
        body = {"input_prefix": typed, "input_suffix": AFTER, **STEADY, "stream": True}
        body |= {"input_extra": [{"text": "A = 1\n" * 20}], "n_predict": 300}
        with coding.client.stream("POST", "/infill", json=body) as response:
            lines = response.iter_lines()
            next(line for line in lines if line.startswith("data:"))
            del lines  # the next key is pressed
        server_is_free = fill_in(coding, typed, input_extra=body["input_extra"], n_predict=1)
        num_cached.append(server_is_free["tokens_cached"])
        assert server_is_free["tokens_cached"] >= server_is_free["tokens_evaluated"] - 1
    assert num_cached[0] > files + len(tokens(coding, BEFORE))


@pytest.mark.process
def test_what_does_not_fit_is_cut_where_it_stays_cached(coding):
    coding.forget()
    before = "".join(f"line_{number} = {number}\n" for number in range(200))
    # Behind a place at which the cut moves, as it does once a part has been typed.
    found = [fill_in(coding, before + "x = 1\n" * n, n_predict=5) for n in range(1, 12)]
    for each in found:
        assert 250 < each["tokens_evaluated"] <= 512 - 5
    assert all(each["tokens_cached"] > 200 for each in found[1:])
    extra = [{"text": "far\n" * 400}, {"text": "near\n"}]
    assert fill_in(coding, input_extra=extra)["tokens_evaluated"] < 100, "the first is left out"


@pytest.mark.process
@pytest.mark.parametrize("path", ["/infill", "/v1/completions", "/api/generate"])
def test_a_model_without_the_tokens_says_so(server, path):
    names = {"input_prefix": "x", "input_suffix": "y", "prompt": "x", "suffix": "y"}
    response = server.ask(path, **names)
    assert response.status_code == 400
    error = response.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert "the model demo has no tokens for filling in text" in message
