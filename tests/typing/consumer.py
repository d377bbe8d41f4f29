"""An application's use of the whole interface, for type checkers; nothing here is run."""

from __future__ import annotations

from pathlib import Path

import localspec


def show(share: float) -> None:
    """A callback for progress."""
    print(f"{share:.0%}")


def stream_and_chat() -> float:
    with localspec.load(target=Path("t.gguf"), draft="d.gguf", progress=show) as engine:
        stream: localspec.Answer = engine.generate_raw([1, 2, 3], max_tokens=5, logprobs=2)
        stream.start()
        for piece in stream:
            text: str = piece.text
            kind: localspec.Provenance = piece.provenance
            print(text, kind.value, piece.token_ids[0], not piece.is_thought)
            if piece.logprobs is not None:
                token, logprob, spelled = piece.logprobs.top_before[0]
                print(token + 1, logprob / 2, piece.logprobs.after, spelled.upper())
        chat: localspec.Chat = engine.chat(system="Be brief.")
        params = localspec.SamplingParams(temperature=0.5, logit_bias={3: -1.0})
        reply = chat.send("Hello", sampling=params, seed=7, rule="coupled", stop="\n").reply()
        reply = chat.retry(queue=True).reply()
        roles = [message["role"] for message in chat.messages]
        print(roles, reply.finish_reason == "stop", engine.vocabulary.size)
        chat = engine.chat(messages=chat.transcript, think=False)
        chat = engine.chat(messages=[{"role": "user", "content": "Hi"}], system="S")
        engine.cancel()
        return (reply.stats.tokens_per_s or 0.0) * reply.stats.acceptance_rate


async def in_a_loop(engine: localspec.Engine | localspec.IsolatedEngine) -> str:
    async with engine.generate_raw("Hello", max_tokens=3) as stream:
        await stream.started()
        async for piece in stream:
            print(piece.text)
    reply: localspec.Reply = await engine.chat().send("Hello")
    return stream.reply().text + reply.text + reply.thoughts


def in_another_process() -> tuple[int | None, localspec.Reply]:
    try:
        with localspec.IsolatedEngine("demo", context_length=512, progress=show) as engine:
            return engine.process_id, engine.generate_raw("Hello").reply()
    except localspec.EngineError as error:
        raise SystemExit(f"{error} {error.hint}") from error


def tools(engine: localspec.Engine) -> str:
    chat = engine.chat()
    now = {"name": "now", "description": "The time.", "parameters": {"type": "object"}}
    reply = chat.send("What time is it?", tools=[now], tool_choice="now").reply()
    calls: tuple[localspec.ToolCall, ...] = reply.tool_calls
    for piece in chat.send_tool_results({call.id: call.arguments for call in calls}):
        if piece.call is not None:
            more: localspec.CallPiece = piece.call
            print(more.name.upper(), more.json, more.number + 1, not more.is_last)
    return chat.send_tool_results({}, tools=[]).reply().text


def get_weather(city: str, days: int = 1) -> dict[str, int]:
    """What the weather will be."""
    return {city: days}


async def get_time(zone: str) -> str:
    return zone


def may_run(call: localspec.ToolCall) -> bool:
    return call.name != "rm"


async def may_run_soon(call: localspec.ToolCall) -> bool:
    return call.name != "rm"


def functions(engine: localspec.Engine | localspec.IsolatedEngine) -> str:
    chat = engine.chat()
    add = localspec.Tool("add", "Adds.", {"type": "object"}, function=get_weather)
    text = chat.send("Hello", tools=[get_weather, {"name": "now"}, add]).reply().text
    reply = localspec.run_tools(
        chat, "Hello", tools=[get_weather], ask=may_run, most_calls=3, temperature=0.5
    )
    for step in localspec.tool_steps(chat, "Hello", tools=[get_weather, get_time]):
        if isinstance(step, localspec.Answer):
            text += "".join(piece.text for piece in step)
        else:
            called: localspec.RequestedCall = step
            text += called.run() + called.call.name + (called.result or "") + str(called.error)
    return text + reply.text


async def functions_soon(engine: localspec.Engine) -> str:
    chat = engine.chat()
    reply: localspec.Reply = await localspec.run_tools_async(
        chat, "Hello", tools=[get_time, get_weather], ask=may_run_soon
    )
    for step in localspec.tool_steps(chat, "Hello", tools=[get_time]):
        print(await step)
    try:
        return str(reply.parsed["name"])
    except localspec.ParseError as error:
        return error.hint


def presets(file: Path) -> int:
    for state in localspec.list_models():
        print(state.name, state.is_installed, state.disk_bytes / 2, state.paths[0].name)
    own = localspec.Preset(
        name="own",
        target=localspec.LocalModel(path=file),
        draft=localspec.HubModel(files=(localspec.HubFile(repo="o/m", file="x.gguf"),)),
        context_length=512,
    )
    print(localspec.preset_state("demo").state, localspec.find_preset("demo").description)
    print(localspec.explain(own).fits, localspec.download(own)[0].name)
    localspec.load(own).close()
    kept: localspec.DiskUsage = localspec.disk_usage(own)
    return kept.num_bytes - localspec.free_disk(own, "files", "costs")


def downloads(progress: localspec.Progress) -> None:
    print(progress)
