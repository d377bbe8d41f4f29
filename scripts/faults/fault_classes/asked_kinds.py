"""Kinds of inputs that an engine reads, with a model of some hundred tokens that answers."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from fault_classes.kinds import Kind, Read, own_home
from fault_classes.mutations import changed_bytes, changed_json, changed_text, changed_value

_ROOT = Path(__file__).parents[3]
_MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
_FEW = 6  # tokens of an answer
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "enum": ["a", "b"]},
                "n": {"type": "integer", "minimum": 0},
                "deep": {"type": "array", "items": {"$ref": "#/$defs/x"}},
            },
            "required": ["place"],
            "$defs": {"x": {"anyOf": [{"type": "null"}, {"type": "number"}]}},
        },
    },
}
_MESSAGES = [
    {"role": "system", "content": "be terse"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "o"}],
    },
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "look", "arguments": '{"place": "a"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "rain"},
    {"role": "user", "content": "and then"},
]
_SCHEMAS: tuple[Any, ...] = (
    _TOOL["function"]["parameters"],  # type: ignore[index]
    {"type": "string", "pattern": "^[a-z]{1,8}(-x)?$", "minLength": 2, "maxLength": 5},
    {"oneOf": [{"const": 1}, {"type": "number", "multipleOf": 0.5, "exclusiveMaximum": 9}]},
    {"type": "array", "prefixItems": [{"type": "boolean"}], "minItems": 1, "maxItems": 3},
    {"type": "object", "patternProperties": {"^a": {"type": "null"}}, "minProperties": 1},
    {"type": "string", "format": "date-time", "x-guidance": {"whitespace_flexible": True}},
)
_REGEXES = (
    "(a|b)+c?[x-z]{2,5}", r"\d{4}-\d\d-\d\d", r"(?i)he(l{2})o\b", r"[^\x00-\x7f]*",
    "a(b(c)?)*?$",
)  # fmt: skip
_LARKS = (
    'start: "a" (B | c)+\nB: /[0-9]+/\nc: "x" | "y" c?\n%ignore " "\n',
    'start: obj\nobj: %json {"type": "integer"}\n',
    "start: A~2..4\nA[max_tokens=3]: /[a-z]+/\n",
)
_GBNFS = (
    'root ::= item ("," item)*\nitem ::= [a-z]+ | "(" root ")"\n',
    'root ::= "yes" | "no" ws?\nws ::= [ \\t\\n]{0,4} # blanks\n',
)


def _make_model(folder: Path) -> None:
    from gguf_maker import with_template, write_spm_model  # of the tests

    chatml = (_ROOT / "tests/templates/Qwen-Qwen3-0.6B.jinja").read_text("utf-8")
    bare = write_spm_model(folder / "bare.gguf", control=_MARKS)
    with_template(bare, folder / "model.gguf", chatml)


def _engine(folder: Path, **more: Any) -> Any:
    own_home(folder)
    import localspec

    given = {"context_length": 2048, "num_threads": 1, "memory": False, **more}
    return localspec.load(target=folder / "model.gguf", **given)


def _made_of(texts: Sequence[str]) -> Callable[[Path], None]:
    """What makes these samples, and the model."""

    def make(folder: Path) -> None:
        _make_model(folder)
        for number, text in enumerate(texts):
            (folder / f"sample{number:02}").write_text(text, "utf-8")

    return make


def _json(data: bytes, random: Random, _samples: Sequence[bytes]) -> bytes:
    return changed_json(data, random)


def _text_of(data: bytes) -> str:
    return data.decode("utf-8", errors="surrogateescape")


def _open_constraint(name: str) -> Callable[[Path], Read]:
    def opened(folder: Path) -> Read:
        engine = _engine(folder)

        def read(data: bytes) -> None:
            strict = {"strict": len(data) % 2 == 0} if name == "json_schema" else {}
            more: dict[str, Any] = {name: _text_of(data), **strict}
            engine.generate_raw("a", max_tokens=_FEW, seed=len(data), **more).reply()

        return read

    return opened


def _open_templates(folder: Path) -> Read:
    engine = _engine(folder)
    questions: list[dict[str, Any]] = [
        {"question": "hi"},
        {"question": _MESSAGES, "tools": [_TOOL]},
    ]

    def read(data: bytes) -> None:
        from localspec.errors import LocalspecError

        for question in questions:
            try:
                engine.generate(**question, template=_text_of(data), max_tokens=1).reply()
            except LocalspecError:
                continue

    return read


def _make_templates(folder: Path) -> None:
    _make_model(folder)
    for path in sorted((_ROOT / "tests/templates").glob("*.jinja")):
        (folder / f"sample-{path.name}").write_bytes(path.read_bytes())
    from localspec.chat.template import BUILT_IN

    for name, text in BUILT_IN.items():
        (folder / f"sample-{name}").write_text(text, "utf-8")


def _text(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    return changed_text(data, random, samples)


def _open_tools(folder: Path) -> Read:
    engine = _engine(folder)
    ways: Sequence[dict[str, Any]] = (
        {}, {"tool_choice": "required"}, {"tool_choice": "look"},
        {"tool_choice": "required", "template": "chatml"},
    )  # fmt: skip

    def read(data: bytes) -> None:
        asked = json.loads(data)
        way = ways[len(data) % len(ways)]
        engine.generate("hi", tools=asked, max_tokens=_FEW, seed=1, **way).reply()

    return _of_json(read)


def _open_messages(folder: Path) -> Read:
    engine = _engine(folder)

    def read(data: bytes) -> None:
        engine.generate(json.loads(data), max_tokens=1, seed=1).reply()

    return _of_json(read)


def _of_json(read: Read) -> Read:
    """Passes over what is no JSON, which applications read themselves."""

    def checked(data: bytes) -> None:
        try:
            json.loads(data)
        except (ValueError, RecursionError):
            return
        read(data)

    return checked


# sessions, and the caches that are kept beside them


def _make_sessions(folder: Path) -> None:
    _make_model(folder)
    content = {
        "format": "localspec-session",
        "version": 1,
        "messages": [*_MESSAGES[:1], {"role": "user", "content": "hi"}, *_MESSAGES[2:]],
        "num_asked": 2,
        "num_forgotten": 0,
        "pending": "what",
        "pending_pictures": ["0" * 64],
    }
    content["messages"][2] = {**_MESSAGES[2], "content": ""}  # type: ignore[index]
    (folder / "sample0").write_text(json.dumps(content, indent=1))
    short = {**content, "messages": [{"role": "user", "content": "hi"},
             {"role": "assistant", "content": "o",}]}  # fmt: skip
    short["messages"][0]["pictures"] = [{"at": 1, "sha256": "a" * 64}]  # type: ignore[index]
    (folder / "sample1").write_text(json.dumps(short))


def _open_sessions(folder: Path) -> Read:
    engine = _engine(folder)
    from localspec.chat import session as sessions
    from localspec.errors import LocalspecError

    file = sessions.session_file("mine")
    file.parent.mkdir(parents=True, exist_ok=True)

    def read(data: bytes) -> None:
        file.write_bytes(data)
        session = sessions.read_session("mine")
        assert session is not None
        sessions.session_bytes("mine")
        with contextlib.suppress(LocalspecError):
            session.shown()
        chat = engine.chat()
        session.resume(chat)
        assert session.num_turns >= 0
        sessions.save_session("mine", chat, pending=session.pending)
        again = sessions.read_session("mine")
        assert again is not None
        assert again.num_turns == session.num_turns
        chat.send("go on", max_tokens=1, seed=1).reply()

    return read


def _make_caches(folder: Path) -> None:
    _make_model(folder)
    with _engine(folder) as engine:
        chat = engine.chat()
        chat.send("hi", max_tokens=3, seed=1).reply()
        engine.save_caches(chat, folder / "sample.caches")


def _change_caches(data: bytes, random: Random, _samples: Sequence[bytes]) -> bytes:
    """The checksums are often made right again, so that what they guard is read."""
    line, _, states = data.partition(b"\n")
    head = json.loads(line)
    states = changed_bytes(states, random) if random.random() < 0.3 else states
    if random.random() < 0.8:
        head = changed_value(head, random)
    if isinstance(head, dict) and random.random() < 0.8:
        head.pop("check", None)
        if isinstance(head.get("sizes"), list) and random.random() < 0.5:
            head["sizes"] = [len(states), *[0] * (len(head["sizes"]) - 1)]
        try:
            head["check"] = hashlib.sha256(json.dumps(head).encode("ascii")).hexdigest()
        except (TypeError, ValueError):
            head["check"] = ""
    line = json.dumps(head).encode()
    return line + b"\n" + states


def _open_caches(folder: Path) -> Read:
    engine = _engine(folder)
    from localspec.engine.cache_file import identities_in

    path = folder / "read.caches"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        identities_in(path)
        chat = engine.chat()
        engine.load_caches(chat, path)
        chat.send("hi", max_tokens=2, seed=1).reply()

    return read


# cost profiles


def _make_profiles(folder: Path) -> None:
    _make_model(folder)
    with _engine(folder, draft=folder / "model.gguf") as engine:
        for seed in range(4):
            engine.generate_raw("a", max_tokens=60, seed=seed).reply()
    from localspec.policy.profile import profiles_folder

    for number, path in enumerate(sorted(profiles_folder().glob("*.json"))):
        (folder / f"sample{number}").write_bytes(path.read_bytes())
        (folder / "name").write_text(path.name)
    assert (folder / "name").exists()


def _open_profiles(folder: Path) -> Read:
    _engine(folder).close()  # and libllama with it
    import localspec
    from localspec.engine.disk_usage import disk_usage
    from localspec.policy.profile import profiles_folder

    profiles_folder().mkdir(parents=True, exist_ok=True)
    path = profiles_folder() / (folder / "name").read_text()
    model = folder / "model.gguf"
    presets = folder / "home/localspec/models.toml"
    presets.parent.mkdir(parents=True, exist_ok=True)
    presets.write_text(
        '[mine]\ndescription = ""\ncontext_length = 64\n[mine.target]\n'
        f"path = {json.dumps(str(model))}\n"
    )

    def read(data: bytes) -> None:
        path.write_bytes(data)
        localspec.explain(target=model, draft=model)
        disk_usage("mine")
        with _engine(folder, draft=model) as engine:
            engine.generate_raw("a", max_tokens=12, seed=1).reply()

    return read


def _constraint(what: str, name: str, texts: Sequence[str]) -> Kind:
    change = _json if name == "json_schema" else _text
    return Kind(what, _made_of(texts), change, _open_constraint(name), is_native=True)


KINDS: dict[str, Kind] = {
    "schemas": _constraint("JSON schemas", "json_schema", [json.dumps(s) for s in _SCHEMAS]),
    "regexes": _constraint("regexes", "regex", _REGEXES),
    "grammars": _constraint("grammars (Lark, GBNF)", "grammar", [*_LARKS, *_GBNFS]),
    "templates": Kind(
        "chat templates", _make_templates, _text, _open_templates, is_native=True
    ),
    "tools": Kind(
        "declarations of tools",
        _made_of([json.dumps([_TOOL])]),
        _json,
        _open_tools,
        0.5,
        is_native=True,
    ),
    "messages": Kind(
        "messages",
        _made_of([json.dumps(_MESSAGES)]),
        _json,
        _open_messages,
        0.5,
        is_native=True,
    ),
    "sessions": Kind("sessions", _make_sessions, _json, _open_sessions, is_native=True),
    "caches": Kind("kept caches", _make_caches, _change_caches, _open_caches, is_native=True),
    "profiles": Kind("cost profiles", _make_profiles, _json, _open_profiles, is_native=True),
}
