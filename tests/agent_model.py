"""A model for coding agents: it reads a long prompt in seconds, and its answer is known."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import gguf
import numpy as np

from gguf_maker import copy_tokenizer

CONTEXT_LENGTH = 131_072
# Entries of the demo's vocabulary: the last of its template's, and what is said after it.
_SAID = (
    "Ċ", "The", "Ġanswer", "Ġis", "Ġhere", ":",
    "Ġa", "Ġlittle", "Ġfox", "Ġsays", "Ġhello", "Ġto", "Ġyou", ".",
)  # fmt: skip
ANSWER = "".join(_SAID[1:]).replace("Ġ", " ")
_WIDTH = 32
_HEAD_WIDTH = 8  # so that a token takes 32 bytes in the cache
_CERTAIN = 10  # in the output layer: no other token is ever drawn


def write_agent_preset(config: Path, demo_target: Path) -> None:
    """A preset "agent" in that configuration directory: the model, which drafts for itself."""
    folder = config / "localspec"
    folder.mkdir(parents=True)
    target = write_agent_model(folder / "agent.gguf", demo_target)
    shutil.copyfile(target, folder / "draft.gguf")
    (folder / "models.toml").write_text(
        f'[agent]\ndescription = "for agents"\ncontext_length = {CONTEXT_LENGTH}\n'
        f'target.path = "{target}"\ndraft.path = "{folder / "draft.gguf"}"\n'
    )


def write_agent_model(path: Path, demo_target: Path) -> Path:
    """A model with the demo's vocabulary and template that answers ANSWER, and ends.

    The embedding of each token of it has a number of its own, those of all others share one,
    and the output looks for the token that follows.
    """
    fields = gguf.GGUFReader(demo_target).fields
    entries = fields["tokenizer.ggml.tokens"].contents()
    end = fields["tokenizer.ggml.eos_token_id"].contents()
    said = [entries.index(entry) for entry in _SAID]
    assert len(set(said)) == len(said) < _WIDTH
    embedding = np.zeros((len(entries), _WIDTH), dtype=np.float32)
    embedding[:, -1] = 1
    output = np.zeros((len(entries), _WIDTH), dtype=np.float32)
    output[end, -1] = _CERTAIN
    for place, (token, following) in enumerate(itertools.pairwise([*said, end])):
        embedding[token] = np.eye(_WIDTH)[place]
        output[following, place] = _CERTAIN
    writer = gguf.GGUFWriter(path, "llama")
    copy_tokenizer(writer, demo_target)
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(_HEAD_WIDTH)
    writer.add_value_length(_HEAD_WIDTH)
    writer.add_rope_dimension_count(_HEAD_WIDTH)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(_WIDTH, dtype=np.float32))
    for name, *shape in (
        *((f"attn_{kind}", _HEAD_WIDTH, _WIDTH) for kind in ("q", "k", "v")),
        ("attn_output", _WIDTH, _HEAD_WIDTH),
        *((f"ffn_{kind}", _WIDTH, _WIDTH) for kind in ("gate", "up", "down")),
    ):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
