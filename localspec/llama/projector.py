"""A projector, which turns pictures into rows that a model reads; computed by libmtmd.

A model gets these rows in place of the embeddings of tokens. Each picture is given to libmtmd
alone, so that its tokens in a prompt depend on nothing else.

libmtmd calls its pieces of a picture *chunks*: texts around it, and parts of the picture. A
part's rows are entries of the model's cache: the *cells* of the picture (`pictures.cells`).
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import ClosedError, DecodeError, Interrupted, ModelFileError, OptionError
from localspec.llama.handle import Handle
from localspec.llama.hidden_rows import Rows
from localspec.llama.library import complaints, llama_cpp, mtmd, own_process
from localspec.pictures.cells import cell_numbers, cell_ranges
from localspec.pictures.picture import KEPT_PICTURE_BYTES, KEPT_ROW_BYTES, Picture

_MARKER = b"<localspec-picture>"
_CELL_BYTES = 128  # memory that is kept for each cell, about, without the pixels
# A picture's longer side may be at most this many times its shorter side: libmtmd scales longer
# ones down to a height of 0.
_MOST_ASPECT = 200
_NODES_AT_ONCE = 32  # nodes of a picture's graph between two checks for cancellation


@dataclass(frozen=True, eq=False)
class PicturePart:
    """A part of a picture: cells that follow each other, and their positions."""

    picture: Picture

    number: int
    """The number of libmtmd's chunk, from 0; texts around the parts count, too."""

    cells: Sequence[int]
    """The numbers that stand for the cells in a list of tokens."""

    num_positions: int
    """The next token's position minus the first cell's."""

    offsets: NDArray[np.int32]
    """(4, cells) int32, the position of each cell if the first one is at 0. A position has four
    parts (M-RoPE): time, down, across, and one more direction."""

    shifts: NDArray[np.int32]
    """(4, cells) int32, how much each position grows if the first cell's grows by 1."""

    def positions(self, first: int) -> NDArray[np.int32]:
        """(4, cells) int32, the position of each cell if the first one is at `first`."""
        positions: NDArray[np.int32] = self.offsets + self.shifts * np.int32(first)
        return positions

    @property
    def last(self) -> int:
        """The largest position in time minus the first cell's."""
        return int(self.offsets[0].max())


class _TokenizedPicture(NamedTuple):
    """A picture's tokens and parts."""

    tokens: list[int]
    """Ids of the texts around its parts, and the cells of the parts."""

    parts: list[PicturePart]
    num_bytes: int
    """The memory of both and of the pixels, about."""


class Projector:
    """A projector, open for a model. Implements `picture.Vision`.

    `cells` and `load_parts` may be called from any thread, `rows` in one thread at a time.

    Args:
        path: The projector's file.
        handle: The model's handle.
        num_threads: Threads on the processor.
        use_gpu: Whether to compute on a GPU if there is one.

    Raises:
        ModelFileError: If libmtmd refuses the file, or it is not for images.
        OptionError: Without libmtmd.
    """

    def __init__(
        self,
        path: Path,
        handle: Handle,
        *,
        num_threads: int,
        use_gpu: bool,
    ) -> None:
        self.name = path.name

        self.content = ""
        """A hash of the file's content; has to be set before the first picture."""

        self._handle = handle  # kept: libmtmd has the model's pointer
        self._is_cancelled: Callable[[], bool] = lambda: False
        self._num_nodes = 0  # graph nodes that libmtmd has computed in the running call
        self._mtmd = mtmd()
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu = use_gpu
        params.print_timings = False
        params.n_threads = num_threads
        params.media_marker = _MARKER
        # The callback is kept, since C has its pointer. It has a weak reference, so that the
        # projector can still be freed.
        on_node = functools.partial(_on_node, weakref.ref(self))
        self._callback = llama_cpp.ggml_backend_sched_eval_callback(on_node)
        params.cb_eval = self._callback
        complaints.clear()
        self._context: int | None = self._mtmd.mtmd_init_from_file(
            os.fsencode(path),
            handle.model,
            params,
        )
        if not self._context:
            raise complaints.as_error(
                f"libmtmd cannot load {path}",
                "Choose the projector (mmproj) that was made for this very model.",
            )
        self._finalizer = weakref.finalize(
            self,
            _free,
            self._mtmd,
            self._context,
            self._callback,
        )
        self._in_use = threading.Lock()
        if not self._mtmd.mtmd_support_vision(self._context):
            self.close()
            raise ModelFileError(
                f"{path} is not a projector for images",
                "Choose one for images.",
            )
        self.width = int(llama_cpp.llama_model_n_embd_inp(handle.model))
        self._most_cells = int(llama_cpp.llama_n_ubatch(handle.context))  # in one decode

        self.is_causal = not self._mtmd.mtmd_decode_use_non_causal(self._context, None)
        """Whether cells attend only to earlier ones. If not, a decode needs all of a part."""

        # By the pictures' digests, the least recently used first.
        self._latest: OrderedDict[bytes, _TokenizedPicture] = OrderedDict()
        # By first cell: parts of the latest pictures, and parts that callers keep.
        self._parts: weakref.WeakValueDictionary[int, PicturePart] = (
            weakref.WeakValueDictionary()
        )
        # Rows of parts, by first cell, the least recently used first.
        self._rows: OrderedDict[int, Rows] = OrderedDict()

    def cells(self, picture: Picture) -> list[int]:
        """The picture's tokens in a prompt, as `Vision.cells`.

        Raises OptionError if the picture cannot be read, ClosedError once this is closed.
        """
        with self._lock():
            tokens = list(self._tokenized(picture).tokens)
            self._forget_pictures(1)
            return tokens

    def load_parts(self, pictures: Sequence[Picture]) -> list[PicturePart]:
        """Make parts of pictures, so that `part` finds them, and return them.

        They stay loaded as long as the caller keeps them. Raises as `cells` does.
        """
        with self._lock():
            parts = []
            for picture in pictures:
                parts += self._tokenized(picture).parts
            self._forget_pictures(len(pictures))
            return parts

    def readable(self, tokens: Sequence[int]) -> tuple[int, list[PicturePart]]:
        """How much of a text can be decoded with the pictures that are loaded.

        Returns:
            The number of tokens before the first picture that is not loaded, and the parts of
            the pictures among them. They stay loaded as long as the caller keeps them.
        """
        parts: list[PicturePart] = []
        if min(tokens, default=0) >= 0:
            return len(tokens), parts
        for cell_range in cell_ranges(tokens):
            part = self._parts.get(tokens[cell_range.start])
            if part is None:
                return cell_range.start, parts
            parts.append(part)
        return len(tokens), parts

    def part(self, cells: Sequence[int]) -> PicturePart:
        """The loaded part with exactly these cells. Raises DecodeError if there is none."""
        part = self._parts.get(cells[0])
        if part is None:
            raise DecodeError("the picture of a text is not at hand")
        if len(part.cells) != len(cells):
            raise DecodeError(f"{len(cells)} of a picture's {len(part.cells)} cells")
        return part

    def rows(self, part: PicturePart, is_cancelled: Callable[[], bool]) -> Rows:
        """(cells, width) float32: the rows that the model reads for a part of a picture.

        They are computed by libmtmd, or kept from an earlier call.

        Args:
            part: The part.
            is_cancelled: Called repeatedly while they are computed.

        Raises:
            Interrupted: Once `is_cancelled` returns True.
            DecodeError: If libmtmd fails.
        """
        first = part.cells[0]
        if first in self._rows:
            self._rows.move_to_end(first)
            return self._rows[first]
        with self._chunks(part.picture, part.picture.rgb) as chunks:
            chunk = self._mtmd.mtmd_input_chunks_get(chunks, part.number)
            rows = self._encode(chunk, len(part.cells), is_cancelled)
        self._rows[first] = rows
        num_bytes = sum(kept.nbytes for kept in self._rows.values())
        while num_bytes > KEPT_ROW_BYTES and len(self._rows) > 1:
            _, oldest = self._rows.popitem(last=False)
            num_bytes -= oldest.nbytes
        return rows

    def _encode(self, chunk: Any, count: int, is_cancelled: Callable[[], bool]) -> Rows:
        """(count, width) float32: the rows of a chunk, computed by libmtmd.

        Args:
            chunk: libmtmd's pointer to a part of a picture, made anew with its pixels; None if
                libmtmd made fewer parts than without them.
            count: The number of the part's cells when it was made without pixels
                (`_tokenized`).
            is_cancelled: See `rows`.
        """
        if chunk is None or self._mtmd.mtmd_input_chunk_get_n_tokens(chunk) != count:
            raise DecodeError(f"{self.name} makes another number of cells of a picture now")
        self._is_cancelled = is_cancelled
        self._num_nodes = 0
        complaints.clear()
        try:
            status = self._mtmd.mtmd_encode_chunk(self._context, chunk)
        finally:
            # The function may refer to this projector, and would keep it alive.
            self._is_cancelled = lambda: False
        if is_cancelled():
            raise Interrupted("reading a picture was cancelled")
        if status != 0:
            reason = complaints.take_reason()
            raise DecodeError(f"{self.name} could not read a picture (status {status}){reason}")
        rows = self._mtmd.mtmd_get_output_embd(self._context)
        return np.ctypeslib.as_array(rows, (count, self.width)).copy()

    def _tokenized(self, picture: Picture) -> _TokenizedPicture:
        """The tokens and parts of a picture, computed if it is none of the latest ones.

        Raises OptionError if the picture cannot be read.
        """
        if picture.digest in self._latest:
            self._latest.move_to_end(picture.digest)
            return self._latest[picture.digest]
        tokens: list[int] = []
        parts: list[PicturePart] = []
        width = picture.width
        height = picture.height
        if max(width, height) > _MOST_ASPECT * min(width, height):
            raise OptionError(
                f"a picture of {width} by {height} pixels is too narrow",
                f"Crop it: its longer side may be at most {_MOST_ASPECT} times the shorter.",
            )
        # Without its pixels, since its tokens and parts follow from its size.
        with self._chunks(picture, None) as chunks:
            for number in range(self._mtmd.mtmd_input_chunks_size(chunks)):
                chunk = self._mtmd.mtmd_input_chunks_get(chunks, number)
                kind = self._mtmd.mtmd_input_chunk_get_type(chunk)
                if kind == self._mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                    tokens += self._text_ids(chunk)
                else:
                    part = self._make_part(picture, number, chunk)
                    parts.append(part)
                    tokens += part.cells
        num_bytes = len(picture.rgb) + _CELL_BYTES * len(tokens)
        tokenized = _TokenizedPicture(tokens, parts, num_bytes)
        self._latest[picture.digest] = tokenized
        return tokenized

    def _text_ids(self, chunk: Any) -> list[int]:
        """The token ids of a chunk of text. Raises OptionError if the model lacks one."""
        size = ctypes.c_size_t()
        array = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
        ids = [int(array[index]) for index in range(size.value)]
        if min(ids) < 0:
            raise OptionError(
                f"the model lacks a token that {self.name} puts around pictures",
                "Choose the projector (mmproj) that was made for this very model.",
            )
        return ids

    def _make_part(self, picture: Picture, number: int, chunk: Any) -> PicturePart:
        """The part of a picture that a chunk is: a known one with the same cells, or a new one.

        Raises OptionError if it has more cells than the model can decode at once.
        """
        count = self._mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        if not self.is_causal and count > self._most_cells:
            raise OptionError(
                f"a picture of {picture.width} by {picture.height} pixels takes {count} cells "
                f"at once; the model was opened for {self._most_cells}",
                "Load it with a longer context (context_length=…).",
            )
        offsets = self._cell_positions(chunk, count, 0)
        moved = self._cell_positions(chunk, count, 1)
        key = picture.digest + f"{number} of {self.content}".encode()
        cells = cell_numbers(key, count)
        num_positions = int(self._mtmd.mtmd_input_chunk_get_n_pos(chunk))
        part = PicturePart(picture, number, cells, num_positions, offsets, moved - offsets)
        return self._parts.setdefault(cells[0], part)  # an answer may keep the known one

    def _cell_positions(self, chunk: Any, count: int, first: int) -> NDArray[np.int32]:
        """(4, count) int32, the positions of a chunk's cells if the first one is at `first`."""
        cells = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        position_of = self._mtmd.mtmd_image_tokens_get_decoder_pos
        positions = np.empty((4, count), dtype=np.int32)
        for index in range(count):
            position = position_of(cells, first, index)
            positions[:, index] = (position.t, position.y, position.x, position.z)
        return positions

    @contextmanager
    def _chunks(self, picture: Picture, rgb: bytes | None) -> Iterator[Any]:
        """A block with libmtmd's pointer to a picture's chunks, which are freed after it.

        Raises OptionError if libmtmd cannot read the picture.

        Args:
            picture: The picture.
            rgb: Its pixels; None if only its tokens are needed.
        """
        self._require_open()
        library = self._mtmd
        pixels = ctypes.cast(ctypes.c_char_p(rgb), ctypes.POINTER(ctypes.c_uint8))
        bitmap = library.mtmd_bitmap_init(picture.width, picture.height, pixels)
        chunks = library.mtmd_input_chunks_init()
        try:
            text = library.mtmd_input_text(_MARKER, len(_MARKER), parse_special=True)
            bitmaps = (library.mtmd_bitmap_p_ctypes * 1)(bitmap)
            complaints.clear()
            status = library.mtmd_tokenize(
                self._context,
                chunks,
                ctypes.byref(text),
                bitmaps,
                1,
            )
            if status != 0:
                raise OptionError(
                    f"{self.name} cannot read a picture of {picture.width} by "
                    f"{picture.height} pixels{complaints.take_reason()}",
                    "Choose another size.",
                )
            yield chunks
        finally:
            library.mtmd_input_chunks_free(chunks)
            library.mtmd_bitmap_free(bitmap)

    def _forget_pictures(self, num_kept: int) -> None:
        """Forget the least recently used pictures until the others fit KEPT_PICTURE_BYTES.

        Args:
            num_kept: The latest pictures that stay in any case.
        """
        num_bytes = sum(picture.num_bytes for picture in self._latest.values())
        while num_bytes > KEPT_PICTURE_BYTES and len(self._latest) > num_kept:
            _, oldest = self._latest.popitem(last=False)
            num_bytes -= oldest.num_bytes

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """A block in which `close` waits. Raises ClosedError if the projector is closed."""
        self._require_open()  # in a fork the lock's copy may be locked for ever
        with self._in_use:
            self._require_open()
            yield

    def _require_open(self) -> None:
        """Raise ClosedError or ForkedError if the projector or its model cannot be used."""
        if self._context is None:
            raise ClosedError(f"{self.name} is closed", "Load it again.")
        self._handle.require_open()

    def close(self) -> None:
        """Free libmtmd's context. Idempotent. Does nothing in a fork, which has no threads."""
        if own_process.is_this():
            with self._in_use:
                self._context = None
                self._finalizer()


def _on_node(
    projector_ref: weakref.ref[Projector],
    _node: object,
    is_before: int,
    _data: object,
) -> bool:
    """libmtmd's callback before and after nodes of its graph, to cancel a running call.

    Args:
        projector_ref: The projector.
        _node: Unused.
        is_before: 1 before a node, 0 after a node.
        _data: Unused.

    Returns:
        Before a node, whether to call this after the node, too: at every 32nd node. After a
        node, whether to continue.
    """
    projector = projector_ref()
    if projector is None:  # it was freed, so nobody can cancel
        return not is_before
    if not is_before:
        return not projector._is_cancelled()
    projector._num_nodes += 1
    return projector._num_nodes % _NODES_AT_ONCE == 0


def _free(library: Any, context: int, _callback: object) -> None:
    """Free libmtmd's context, except in a fork. _callback: only kept alive until now."""
    if own_process.is_this():
        library.mtmd_free(context)
