"""What the server tells of itself: /metrics, /props, and the lines of its log."""

from __future__ import annotations

import json
import logging
import re

import pytest

from localspec.cli.commands.serve import JSONFormatter
from localspec.errors import CrashedError
from localspec.server.refusal import refusal_of
from server_runner import running_server
from waiting import wait_until

pytestmark = pytest.mark.process

SERIES = re.compile(r'([a-zA-Z_:][\w:]*)(\{\w+="[^"]*"(?:,\w+="[^"]*")*\})? (\S+)')


def metrics(server):
    """Every series, and its number, of a text that keeps to Prometheus's format."""
    response = server.client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4"
    assert response.text.endswith("\n")
    found = {}
    for line in response.text.splitlines():
        name, labels, value = SERIES.fullmatch(line).groups()
        found[name + (labels or "")] = float(value)
    return found


def test_what_answers_took_is_counted():
    with running_server() as server:
        assert metrics(server)['localspec_model_loaded{model="demo"}'] == 0
        first, second = server.chat(max_tokens=20), server.chat(max_tokens=20)
        assert server.ask("/v1/chat/completions", messages=[]).status_code == 400
        assert server.client.post("/nonsense/deep").status_code == 404
        found = metrics(server)
    timings = [first["timings"], second["timings"]]
    for name, field in (
        ("prompt_tokens_total", "prompt_n"),
        ("prompt_tokens_cached_total", "cache_n"),
        ("tokens_predicted_total", "predicted_n"),
        ("spec_decode_num_draft_tokens_total", "draft_n"),
        ("spec_decode_num_accepted_tokens_total", "draft_n_accepted"),
    ):
        assert found[f"llamacpp:{name}"] == sum(each[field] for each in timings) > 0
    accepted = found["llamacpp:spec_decode_num_accepted_tokens_total"]
    of_kinds = [value for name, value in found.items() if "localspec_tokens_total{" in name]
    assert sum(of_kinds) == 40
    for name in (
        "localspec_accepted_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_per",
    ):
        assert sum(value for key, value in found.items() if key.startswith(name)) == accepted
    assert found['localspec_tokens_total{provenance="accepted"}'] == accepted
    assert found["localspec_wait_seconds_count"] == 2
    assert found["localspec_first_text_seconds_count"] == 2
    assert found["localspec_first_text_seconds_sum"] > found["localspec_wait_seconds_sum"]
    chats = 'localspec_requests_total{path="/v1/chat/completions",status='
    assert found[f'{chats}"200"}}'] == 2
    assert found[f'{chats}"400"}}'] == 1
    assert found['localspec_requests_total{path="other",status="404"}'] == 1
    assert found['localspec_model_loaded{model="demo"}'] == 1
    assert found['localspec_model_bytes{model="demo",place="main"}'] > 10**6


def test_props_are_those_of_llama_server(server):
    props = server.client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert props["total_slots"] == 1
    assert props["eos_token"] == "<|im_end|>"
    assert "/" not in props["model_path"]
    assert server.client.get("/props?model=demo").json() == props


def logged(caplog):
    """The lines of two requests, which may come a moment after their answers."""

    def lines():
        return [each.message for each in caplog.records if each.name.endswith("server.app")]

    wait_until(lambda: len(lines()) >= 2)
    return lines()


def test_the_log_has_a_line_for_each_request(server, caplog):
    caplog.set_level(logging.INFO)
    server.chat(max_tokens=20)
    server.client.get("/v1/models")
    server.ask("/v1/chat/completions", messages=[])
    answered, refused = logged(caplog)
    assert re.fullmatch(
        r"POST /v1/chat/completions 200, total_s [\d.]+, model demo, wait_s [\d.]+, first_s "
        r"[\d.]+, prompt_tokens \d+, cached_tokens \d+, tokens 20, drafted \d+, "
        r"accepted \d+, is_complete True",
        answered,
    )
    assert re.fullmatch(r"POST /v1/chat/completions 400, total_s [\d.]+", refused)
    assert "fox" not in caplog.text


def test_the_log_can_be_read_by_programs(caplog):
    caplog.set_level(logging.INFO)
    with running_server() as server:
        server.chat(max_tokens=20)
        body = {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
    told = [each for each in caplog.records if hasattr(each, "facts")]
    whole, cut = (json.loads(JSONFormatter("%(message)s").format(each)) for each in told)
    assert (whole["status"], whole["tokens"], whole["is_complete"]) == (200, 20, True)
    assert whole["drafted"] >= whole["accepted"] > 0
    assert (cut["path"], cut["is_complete"]) == ("/v1/completions", False)
    assert cut["tokens"] < 1500


def test_a_crash_is_one_line_of_the_log(caplog):
    """How the process ended, without the calls that led to the error."""
    refusal_of(CrashedError("the process of the engine ended: SIGSEGV", "Ask again."))
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.getMessage().endswith("SIGSEGV")
