"""The server's OpenAPI document, and whether answers are as it says."""

from __future__ import annotations

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from examples import num_examples
from localspec.server.app import Limits
from localspec.server.guard import PAGE_PATH
from server_runner import running_server

pytestmark = pytest.mark.process

NUM_EXAMPLES = num_examples(60)  # of each route and kind


@pytest.fixture(scope="module")
def server():
    with running_server(context_length=256) as running:
        yield running


@pytest.fixture(scope="module")
def document(server):
    return server.client.get("/openapi.json").json()


# What needs other models: test_server_infill and test_embedder ask these.
_NO_EMBEDDER = ("/v1/embeddings", "/v1/rerank", "/api/embed", "/api/embeddings")
_ELSEWHERE = {"/infill": 400, **dict.fromkeys(_NO_EMBEDDER, 404)}


def fields_of(document, path):
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return body["schema"]["properties"]


def test_it_has_every_route(server, document):
    assert document["openapi"] == "3.1.0"
    described = {
        (method.upper(), path) for path, each in document["paths"].items() for method in each
    }
    routes = {
        (method, route.path) for route in server.server.routes() for method in route.methods
    }
    assert described <= routes
    versioned = {
        (method, path)
        for method, path in routes
        if method != "HEAD" and (method, f"/v1{path}") not in routes
        if not path.startswith(PAGE_PATH)  # of a page, not of an API
    }
    assert described == versioned


def test_it_has_what_is_read_of_a_request(document):
    chat = fields_of(document, "/v1/chat/completions")
    assert chat["temperature"] == {"type": ["number", "null"]}
    assert chat["max_completion_tokens"] == {"type": ["integer", "null"]}
    assert chat["speculative"] == {"type": ["boolean", "null"]}
    assert chat["stop"]["anyOf"][1]["maxItems"] == 64
    assert chat["stream_options"]["properties"]["include_usage"]["type"] == ["boolean", "null"]
    assert chat["chat_template_kwargs"]["properties"].keys() == {"enable_thinking"}
    assert chat["tools"]["type"] == ["array", "null"]
    assert chat["messages"] == {}  # what these are is more than a schema says
    messages = fields_of(document, "/v1/messages")
    assert messages["messages"]["items"]["properties"].keys() == {"role", "content"}
    responses = fields_of(document, "/v1/responses")
    form = responses["text"]["properties"]["format"]["properties"]
    assert form.keys() == {"type", "json_schema", "schema"}
    assert "with_pieces" in fields_of(document, "/tokenize")
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        answers = document["paths"][path]["post"]["responses"]["200"]["content"]
        assert answers.keys() == {"application/json", "text/event-stream"}
    for path in ("/api/chat", "/api/generate"):
        answers = document["paths"][path]["post"]["responses"]["200"]["content"]
        assert answers.keys() == {"application/json", "application/x-ndjson"}
        options = fields_of(document, path)["options"]["properties"]
        assert options.keys() >= {"num_predict", "num_ctx", "temperature", "repeat_last_n"}
    message = fields_of(document, "/api/chat")["messages"]["items"]["properties"]
    assert message.keys() >= {"role", "content", "thinking", "tool_name", "images"}
    assert "dry_multiplier" in fields_of(document, "/v1/completions")
    assert "stream" not in fields_of(document, "/v1/messages/count_tokens")


def test_its_examples_are_answered(server, document):
    for path, methods in document["paths"].items():
        if "post" in methods:
            body = methods["post"]["requestBody"]["content"]["application/json"]
            jsonschema.validate(body["example"], body["schema"])
            response = server.client.post(path, json=body["example"])
            expected = _ELSEWHERE.get(path, 200)
            assert response.status_code == expected, (path, response.text)
            refused = server.client.post(path, content=b"[]")
            assert refused.status_code == 400
            shape = methods["post"]["responses"]["400"]["content"]["application/json"]
            jsonschema.validate(refused.json(), shape["schema"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["positive", "negative"])
def test_what_schemathesis_thinks_of(kind):
    """It asks what the document allows, and what it does not; no answer is undocumented."""
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi import checks as conformance

    checks = [
        not_a_server_error,
        conformance.status_code_conformance,
        conformance.content_type_conformance,
        conformance.response_schema_conformance,
        conformance.negative_data_rejection,
    ]
    statuses = set()

    def ask_about(operation):
        @settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=GenerationMode(kind)))
        def ask(case):
            response = case.call()
            statuses.add(response.status_code)
            case.validate_response(response, checks=checks)

        ask()

    with running_server(context_length=256, limits=Limits(body_bytes=100_000)) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        operations = [result.ok() for result in schema.get_all_operations()]
        if kind == "negative":  # of a path alone nothing is wrong
            operations = [each for each in operations if each.method == "post"]
        assert len(operations) >= 9
        for operation in operations:
            ask_about(operation)
        assert 400 in statuses
        assert server.chat(max_tokens=2)["choices"]
