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
# Whose queries are as wide as the model: their matrix is made so, whatever the heads' width.
_SQUARE = """
arctic baichuan bert bitnet chameleon codeshell cohere2 command-r deepseek deepseek2-ocr
dream eurobert grok internlm2 jamba jina-bert-v2 jina-bert-v3 lfm2 lfm2moe llada-moe
nemotron nomic-bert nomic-bert-moe olmo olmo2 olmoe orion phi2 phi3 phimoe plamo pockettts
qwen2 qwen2moe qwen2vl stablelm starcoder2 xverse
"""
_OF_SQUARES = frozenset(_SQUARE.split())
# Whose layers with a state have one row of it for each head.
_DELTA_NETS = ("qwen35", "qwen35moe", "qwen3next", "qwen4exp")
_TURN_WHOLE = frozenset(_WHOLE.split())
_OF_ONE_WIDTH = _TURN_WHOLE.union(_PART.split())


def faulty_widths(header: Header, heads: int) -> Iterator[str]:
    """What is wrong with them. heads: the number of attention heads of the first layer."""
    if heads < 1:
        return
    name = header.architecture
    width = header.number(f"{name}.embedding_length")
    share = width // heads
    keys, values, turned = share, share, -1
    for ending in ("", "_swa"):
        keys = _stated(header, f"attention.key_length{ending}", keys)
        values = _stated(header, f"attention.value_length{ending}", values)
        turned = _stated(
            header, f"rope.dimension_count{ending}", keys if turned < 0 else turned
        )
        if keys != values and name in _OF_ONE_WIDTH:
            yield f"its keys{ending} have a width of {keys}, its values of {values}"
        if turned != keys and name in _TURN_WHOLE:
            yield f"its rope.dimension_count{ending} is {turned}, not {keys}"
        if turned > keys or turned % 2:
            yield f"its rope.dimension_count{ending} is {turned}, of keys with {keys} numbers"
        if not ending and heads * keys != width and name in _OF_SQUARES:
            yield f"its {heads} attention heads of {keys} numbers are not its width of {width}"


def faulty_states(header: Header) -> Iterator[str]:
    """What is wrong with the widths of layers that keep a state."""
    if header.architecture not in _DELTA_NETS:
        return
    inner, state, heads, groups = (
        _stated(header, f"ssm.{key}", 0)
        for key in ("inner_size", "state_size", "time_step_rank", "group_count")
    )
    if inner != state * heads:
        yield f"its {heads} heads with a state of {state} numbers are not {inner} together"
    if groups < 1 or heads % groups:
        yield f"its {heads} heads with a state are in {groups} groups"


def _stated(header: Header, key: str, default: int) -> int:
    value = header.metadata.get(f"{header.architecture}.{key}")
    return value if isinstance(value, int) else default
