"""Prompts of llama.cpp's templates, compared with those that Hugging Face's own code makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from localspec.chat.call_forms import tools_of
from localspec.chat.messages import checked_messages
from localspec.chat.prompt import PromptMaker
from localspec.tools.tool import tool_use

PUBLISHED = sorted(Path(os.environ.get("LOCALSPEC_LLAMA_TEMPLATES", "-")).glob("*.jinja"))
if not PUBLISHED:
    pytest.skip("LOCALSPEC_LLAMA_TEMPLATES names no folder", allow_module_level=True)
hugging_face = pytest.importorskip("transformers.utils.chat_template_utils")

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "t"},
        "count": {"type": "integer", "description": "c"},
    },
    "required": ["text"],
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"It does {name}.", "parameters": SCHEMA},
    }
    for name in ("look", "write")
]


def call(number, name, arguments):
    function = {"name": name, "arguments": arguments}
    return {"id": f"callid00{number}", "type": "function", "function": function}


def result(number, name, text):
    return {"role": "tool", "tool_call_id": f"callid00{number}", "name": name, "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "The question?"}
ANSWER = {"role": "assistant", "content": "An answer."}
MORE = {"role": "user", "content": "Another one?"}
LOOK = call(1, "look", {"text": 'a "b" <c>', "count": 2})
CALL = {"role": "assistant", "content": "", "tool_calls": [LOOK]}
SUNNY = result(1, "look", "sunny")
TWO_CALLS = {**CALL, "tool_calls": [LOOK, call(2, "write", {"text": "x"})]}
THOUGHTS = {"reasoning_content": "I think."}
CONVERSATIONS = {
    "a question": [QUESTION],
    "a system": [SYSTEM, QUESTION],
    "turns": [SYSTEM, QUESTION, ANSWER, MORE],
    "thoughts": [QUESTION, {**ANSWER, **THOUGHTS}, MORE],
    "tools": [QUESTION],
    "tools and a system": [SYSTEM, QUESTION],
    "a call": [QUESTION, CALL, SUNNY],
    "a call after words": [SYSTEM, QUESTION, {**CALL, "content": "I look."}, SUNNY],
    "a call after thoughts": [QUESTION, {**CALL, **THOUGHTS}, SUNNY],
    "two calls": [QUESTION, TWO_CALLS, SUNNY, result(2, "write", "done")],
    "a call and an answer": [SYSTEM, QUESTION, CALL, SUNNY, ANSWER, MORE],
}
WITH_TOOLS = tuple(name for name in CONVERSATIONS if "tools" in name or "call" in name)
WITH_CALLS = tuple(name for name in CONVERSATIONS if "call" in name)
# Where our prompt is another one on purpose: 20 of the 655 that Hugging Face's code makes, too.
DIFFERENT = {
    # These templates leave out the calls of earlier answers, which we write into their text.
    "LFM2-8B-A1B": WITH_CALLS,
    "LFM2.5-Instruct": WITH_CALLS,
    "ibm-granite-granite-3.3-2B-Instruct": WITH_CALLS,
    # These show only the first call of an answer, so we make two answers of it.
    "GigaChat3-10B-A1.8B": ("two calls",),
    "GigaChat3.1-10B-A1.8B": ("two calls",),
    "openai-gpt-oss-120b": ("two calls",),
    # Each call is a message, and we give each its result at once.
    "muse-glimmer": ("two calls",),
    # It calls thoughts "reasoning", and we pass them by that name, too.
    "upstage-Solar-Open-100B": ("a call after thoughts",),
}


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_prompt_is_that_of_hugging_face(path, demo_vocabulary):
    """Where its code makes one, and the template shows tools if there are any."""
    source = path.read_text("utf-8")
    bos = demo_vocabulary.text(demo_vocabulary.bos)
    eos = demo_vocabulary.text(demo_vocabulary.eos)
    different = []
    for name, messages in CONVERSATIONS.items():
        tools = TOOLS if name in WITH_TOOLS else []
        if tools and not tools_of(source).are_shown:
            continue
        try:
            prompts, _ = hugging_face.render_jinja_template(
                [messages],
                tools=tools or None,
                chat_template=source,
                add_generation_prompt=True,
                bos_token=bos,
                eos_token=eos,
            )
        except Exception:  # whatever a template raises there
            continue
        maker = PromptMaker(demo_vocabulary, source, think=True)
        use = tool_use(tools, None, is_parallel=None)
        ours = maker.text(checked_messages(messages), use)
        if demo_vocabulary.add_bos:
            prompts = [prompts[0].removeprefix(bos)]
        if ours != prompts[0]:
            different.append(name)
    assert tuple(different) == DIFFERENT.get(path.stem, ())
