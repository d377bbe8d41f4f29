"""The tasks of `bench` and `verify`: three of each kind, for every model what it can do."""

from __future__ import annotations

from call_families import FAMILIES

import localspec
from localspec.checks.prompts import Task, built_in_tasks


def test_a_model_is_asked_by_its_template_or_goes_on_with_the_text(demo_target):
    with localspec.load(target=demo_target) as engine:
        for task in built_in_tasks():
            if not task.suits(engine):
                assert task.kind == "tool"
                continue
            reply = task.ask(engine, max_tokens=2, temperature=0).reply()
            asked = engine.generate(task.messages, max_tokens=2, temperature=0, **task.keywords)
            assert reply.token_ids == asked.reply().token_ids
            assert reply.stats.prompt_tokens == asked.reply().stats.prompt_tokens
        tool = next(task for task in built_in_tasks() if task.kind == "tool")
        assert tool.suits(engine, FAMILIES["Qwen"].template)
        engine.chat_template = None
        raw = Task("own", ({"role": "user", "content": "A fox"},)).ask(engine, max_tokens=2)
        assert raw.reply().stats.prompt_tokens == len(engine.tokenize("A fox"))
