"""A model for coding agents: it reads a long prompt in seconds, and its answer is known."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from call_families import FAMILIES
from gguf_maker import copy_tokenizer, finish_follower
from model_writer import ModelWriter, Stated

CONTEXT_LENGTH = 131_072
# Entries of the demo's vocabulary.
_ANSWER = (
    "The", "Ġanswer", "Ġis", "Ġhere", ":",
    "Ġa", "Ġlittle", "Ġfox", "Ġsays", "Ġhello", "Ġto", "Ġyou", ".",
)  # fmt: skip
ANSWER = "".join(_ANSWER).replace("Ġ", " ")
_OPENING = ("<", "to", "ol", "_", "c", "all", ">")
_LAST = "Ċ"  # of a prompt
_LAST_BEHIND_RESULTS = "#"
_WIDTH = 32
_HEAD_WIDTH = 8  # so that a token takes 32 bytes in the cache
_CERTAIN = 10  # in the output layer: no other token is ever drawn
_CALL = 20  # wherever it may be said


def write_agent_preset(config: Path, demo_target: Path, calls: Mapping[str, str]) -> None:
    """Presets in that configuration directory, of models that draft for themselves.

    "agent" answers at once. calls: names of others, and what they say of a call, from the
    tool's name on; when they were told what came of it they answer.
    """
    folder = config / "localspec"
    folder.mkdir(parents=True)
    presets = []
    for name, call in {"agent": "", **calls}.items():
        target = write_agent_model(folder / f"{name}.gguf", demo_target, call)
        draft = shutil.copyfile(target, folder / f"{name}-draft.gguf")
        presets.append(
            f'[{name}]\ndescription = "for agents"\ncontext_length = {CONTEXT_LENGTH}\n'
            f'target.path = "{target}"\ndraft.path = "{draft}"\n'
        )
    (folder / "models.toml").write_text("".join(presets))


def write_agent_model(path: Path, demo_target: Path, call: str) -> Path:
    """A model with the demo's vocabulary that answers ANSWER, and ends.

    The embedding of each token of it has a number of its own, those of all others share one,
    and the output looks for the token that follows. call: an entry in place of the last of the
    vocabulary; what stands before and behind it in a call is what the grammar forces.
    """
    fields = gguf.GGUFReader(demo_target).fields
    entries = fields["tokenizer.ggml.tokens"].contents()
    end = fields["tokenizer.ggml.eos_token_id"].contents()
    chains = [[_LAST, *_ANSWER]]
    if call:
        chains = [[_LAST, *_OPENING], [_LAST_BEHIND_RESULTS, *_ANSWER]]
    said = [[*map(entries.index, chain), end] for chain in chains]
    known = [token for chain in said for token in chain[:-1]]
    assert len(set(known)) == len(known) < _WIDTH
    embedding = np.zeros((len(entries), _WIDTH), dtype=np.float32)
    embedding[:, -1] = 1
    output = np.zeros((len(entries), _WIDTH), dtype=np.float32)
    output[end, -1] = _CERTAIN
    if call:
        output[len(entries) - 1, -1] = _CALL
    pairs = itertools.chain.from_iterable(map(itertools.pairwise, said))
    for place, (token, following) in enumerate(pairs):
        embedding[token] = np.eye(_WIDTH)[place]
        output[following, place] = _CERTAIN
    writer = ModelWriter(path, "llama")
    if call:
        own = {len(entries) - 1: call.replace(" ", "Ġ")}
        template = (
            FAMILIES["Qwen"].template
            + "{% if messages | selectattr('role', 'equalto', 'tool') | list %}"
            + _LAST_BEHIND_RESULTS
            + "{% endif %}"
        )
        drop = ("tokenizer.chat_template",)
        copy_tokenizer(writer, demo_target, replace_tokens=own, drop=drop)
        writer.add_chat_template(template)
    else:
        copy_tokenizer(writer, demo_target)
    stated = Stated(
        context_length=CONTEXT_LENGTH,
        width=_WIDTH,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        hidden=_WIDTH,
        head_width=_HEAD_WIDTH,
        num_turned=_HEAD_WIDTH,
        epsilon=1e-5,
    )
    finish_follower(writer, stated, embedding, output)
    return path
