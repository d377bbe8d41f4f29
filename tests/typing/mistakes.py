"""Wrong uses of the interface; a type checker has to find the mistake of every line marked."""

from __future__ import annotations

import localspec

engine = localspec.load(draft_tokens="many")  # wrong
engine.generate_raw("Hello", temperature="hot").reply()  # wrong
engine.generate_raw("Hello", max_tokens="all")  # wrong
engine.chat().send("Hello", rule="lossy").reply()  # wrong
engine.generate_raw("Hello").reply().text = "changed"  # wrong
engine.generate_raw("Hello").reply().stats.draft_off.value  # wrong
localspec.IsolatedEngine(context_length=None, target=3)  # wrong
localspec.nothing  # wrong
localspec.run_tools(engine, "Hello", tools=[print])  # wrong
localspec.run_tools(engine.chat(), "Hello", tools=["print"])  # wrong
localspec.run_tools(engine.chat(), "Hello", ask=True)  # wrong
localspec.free_disk("demo", "all")  # wrong
engine.chat(messages=["Hello"])  # wrong
engine.chat("Hello")  # wrong
engine.generate("Hello").text  # wrong
engine.generate("Hello", stream=True)  # wrong
engine.generate(messages=[])  # wrong
engine.complete("Hello")  # wrong
engine.chat().ask("Hello")  # wrong
localspec.Engine("demo")  # wrong
localspec.SamplingParams(temp=0.5)  # wrong
"".join(engine.generate("Hello"))  # wrong
