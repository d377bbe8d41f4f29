"""Wrong uses of the interface; a type checker has to find the mistake of every line marked."""

from __future__ import annotations

import localspec

engine = localspec.load(draft_tokens="many")  # wrong
engine.generate("Hello", temperature="hot")  # wrong
engine.stream("Hello", max_tokens="all")  # wrong
engine.chat().send("Hello", rule="lossy")  # wrong
engine.generate("Hello").text = "changed"  # wrong
engine.generate("Hello").stats.draft_off.value  # wrong
localspec.IsolatedEngine(context_length=None, target=3)  # wrong
localspec.nothing  # wrong
localspec.free_disk("demo", "all")  # wrong
