"""libllama with Python types: models, contexts, KV caches, heads, projectors, devices.

`binding` finds libllama and fits llama_cpp to it; `loaded` is its only importer. Workarounds
for faults of other libraries are in `quirks`.
"""
