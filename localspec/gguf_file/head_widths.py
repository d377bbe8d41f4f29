"""Widths of attention heads that libllama's graphs take for granted.

They assert them while a file's graph is built, and its loader does not look. Of llama.cpp's
src/models/*.cpp: what stands there as `n_embd_head == hparams.n_embd_head_k()` and
`n_embd_head == n_rot`.
"""

from __future__ import annotations

from collections.abc import Iterator

from localspec.gguf_file.header import Header

# Architectures whose values are as wide as their keys, and turn whole heads, or a part.
_WHOLE = """
apertus arcee arctic baichuan chameleon codeshell cogvlm cohere2moe dbrx deci deepseek
dots1 dream ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon granite granite_swa
graniteswitch grok grovemoe hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2 llada llada-moe
llama llama4 maincoder mellum mistral3 olmo olmo2 olmoe orion paddleocr pangu-embedded
plamo pockettts qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe rnd1 seed_oss
smallthinker smollm3 starcoder2 talkie xverse
"""
_PART = """
afmoe bailingmoe2 bert bitnet bloom chatglm cohere2 command-r dflash eagle3 eurobert glm4
glm4moe gpt2 gptneox granitehybrid jais laguna maple minimax-01 minimax-m2 minimax-m3
modern-bert mpt muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe neo-bert openelm
phi2 phi3 qwen qwen35 qwen35moe qwen3next qwen4exp refact spark2_5 stablelm starcoder t5
"""
_TURN_WHOLE = frozenset(_WHOLE.split())
_OF_ONE_WIDTH = _TURN_WHOLE.union(_PART.split())


def faulty_widths(header: Header, heads: int) -> Iterator[str]:
    """What is wrong with them. heads: the number of attention heads of the first layer."""
    if header.architecture not in _OF_ONE_WIDTH or heads < 1:
        return
    share = header.number(f"{header.architecture}.embedding_length") // heads
    sizes = dict.fromkeys(("key_length", "value_length"), share)
    turned: int | None = None
    for ending in ("", "_swa"):
        for name, default in sizes.items():
            stated = header.metadata.get(f"{header.architecture}.attention.{name}{ending}")
            sizes[name] = stated if isinstance(stated, int) else default
        keys, values = sizes["key_length"], sizes["value_length"]
        if keys != values:
            yield f"its keys{ending} have a width of {keys}, its values of {values}"
        stated = header.metadata.get(f"{header.architecture}.rope.dimension_count{ending}")
        turned = stated if isinstance(stated, int) else keys if turned is None else turned
        if turned != keys and header.architecture in _TURN_WHOLE:
            yield f"its rope.dimension_count{ending} is {turned}, not {keys}"
