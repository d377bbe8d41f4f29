"""What llama.cpp's own helper makes of a text and pictures, in a context of ours."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

import inside
from localspec.llama.library import mtmd
from localspec.llama.model import LlamaModel
from localspec.pictures.picture import Picture

MARKER = b"<localspec-picture>"


def logits_by_hand(
    model: LlamaModel, text: bytes, pictures: Sequence[Picture]
) -> tuple[NDArray[np.float32], list[int], int]:
    """The row behind a text with markers, the ids of its tokens, and positions it takes.

    The cache is emptied before, and after.
    """
    mtmd_cpp = mtmd()
    model.truncate(0)
    context = inside.projector_context(model)
    bitmaps = [
        mtmd_cpp.mtmd_bitmap_init(
            each.width, each.height, ctypes.cast(each.rgb, ctypes.POINTER(ctypes.c_uint8))
        )
        for each in pictures
    ]
    chunks = mtmd_cpp.mtmd_input_chunks_init()
    given = mtmd_cpp.mtmd_input_text(text, len(text), add_special=True, parse_special=True)
    array = (mtmd_cpp.mtmd_bitmap_p_ctypes * len(bitmaps))(*bitmaps)
    status = mtmd_cpp.mtmd_tokenize(context, chunks, ctypes.byref(given), array, len(bitmaps))
    assert status == 0
    behind = llama_cpp.llama_pos(0)
    status = mtmd_cpp.mtmd_helper_eval_chunks(
        context,
        model.handle.context,
        chunks,
        0,
        0,
        llama_cpp.llama_n_batch(model.handle.context),
        True,
        ctypes.byref(behind),
    )
    assert status == 0
    found = llama_cpp.llama_get_logits_ith(model.handle.context, -1)
    row = np.ctypeslib.as_array(found, (model.vocab_size,)).copy()
    ids = _ids(mtmd_cpp, chunks)
    mtmd_cpp.mtmd_input_chunks_free(chunks)
    for each in bitmaps:
        mtmd_cpp.mtmd_bitmap_free(each)
    llama_cpp.llama_memory_clear(model.handle.memory, False)
    return row, ids, behind.value


def _ids(mtmd_cpp: Any, chunks: Any) -> list[int]:
    """Ids of tokens, and -1 for each cell."""
    found: list[int] = []
    for number in range(mtmd_cpp.mtmd_input_chunks_size(chunks)):
        chunk = mtmd_cpp.mtmd_input_chunks_get(chunks, number)
        size = ctypes.c_size_t()
        ids = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
        found += [int(ids[place]) for place in range(size.value)]
        if mtmd_cpp.mtmd_input_chunk_get_type(chunk) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_IMAGE:
            found += [-1] * mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk)
    return found
