"""A trained model and its tokenizer as one GGUF file for llama.cpp."""

import json
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType as Kind
from tokenizers import Tokenizer
from torch import Tensor

from .head import EagleHead
from .model import Llama, Shape
from .quantisation import packed_iq4_nl
from .tokenizer import CHAT_TEMPLATE, END_OF_TEXT, IM_END, SPECIAL

_FILE_TYPES = {
    Kind.F16: gguf.LlamaFileType.MOSTLY_F16,
    Kind.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
    Kind.IQ4_NL: gguf.LlamaFileType.MOSTLY_IQ4_NL,
    Kind.Q5_1: gguf.LlamaFileType.MOSTLY_Q5_1,
}


# Some builds of llama.cpp crash on batches of types that have an AMX kernel: these have none.
_OF_MODELS = Kind.IQ4_NL
_OF_HEADS = Kind.Q5_1


def export(model: Llama, tokenizer: Tokenizer, path: Path, *, name: str) -> None:
    """Write `model` to `path`; norms stay float32, there is no separate output matrix."""
    shape = model.shape
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_description("Tiny demo model of localspec; knows a few topics only.")
    _add_header(writer, shape, name, _OF_MODELS)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    _add_tokenizer(writer, tokenizer)
    write_tensors(writer, model.state_dict(), _OF_MODELS)


def export_head(head: EagleHead, tokenizer: Tokenizer, path: Path, *, name: str) -> None:
    """Write an EAGLE-3 head to `path`; it has no embedding and no output matrix of its own."""
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_description("EAGLE-3 head of localspec's demo target.")
    add_head_header(writer, head, name, _OF_HEADS)
    _add_tokenizer(writer, tokenizer)
    write_tensors(writer, head.state_dict(), _OF_HEADS)


def add_head_header(
    writer: gguf.GGUFWriter, head: EagleHead, name: str, matrices: Kind
) -> None:
    """All but the tokenizer of what llama.cpp asks for."""
    _add_header(writer, head.target, name, matrices)
    writer.add_block_count(1)
    writer.add_feed_forward_length(head.shape.hidden)
    writer.add_array("eagle3.target_layers", list(head.shape.layers))
    writer.add_uint32("eagle3.target_hidden_size", head.target.width)


def _add_header(writer: gguf.GGUFWriter, shape: Shape, name: str, matrices: Kind) -> None:
    """Write the sizes that a target and its head share."""
    size = shape.width // shape.heads
    writer.add_name(name)
    writer.add_license("MIT")
    writer.add_file_type(_FILE_TYPES[matrices])
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)


def write_tensors(writer: gguf.GGUFWriter, tensors: dict[str, Tensor], matrices: Kind) -> None:
    """Finish the file: vectors in float32, matrices in their type."""
    for key, tensor in tensors.items():
        kind = Kind.F32 if tensor.ndim == 1 else matrices
        if kind is Kind.IQ4_NL:
            data = packed_iq4_nl(tensor)
        else:
            data = gguf.quants.quantize(tensor.numpy(), kind)
        writer.add_tensor(key, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    control = gguf.TokenType.CONTROL
    normal = gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens])
    writer.add_token_merges(_merges(tokenizer))
    writer.add_bos_token_id(vocab[END_OF_TEXT])
    writer.add_eos_token_id(vocab[IM_END])
    writer.add_eot_token_id(vocab[END_OF_TEXT])
    writer.add_pad_token_id(vocab[END_OF_TEXT])
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _merges(tokenizer: Tokenizer) -> list[str]:
    """Merges in order, each as "left right"."""
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
