"""libmtmd's part of a model that sees: a projector, which turns pictures into rows.

A model gets such rows in place of the embeddings of tokens. Each picture is shown to libmtmd by
itself, so that what stands for it in a prompt depends on nothing else.
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
from localspec.pictures.cells import cell_numbers, cell_rows
from localspec.pictures.picture import KEPT_PICTURE_BYTES, KEPT_ROW_BYTES, Picture

_MARKER = b"<localspec-picture>"
_CELL_BYTES = 128  # of what is kept for each cell, about, without the pixels
_MOST_TIMES = 200  # a longer side ÷ the shorter: libmtmd may make a picture of no height
_NODES_AT_ONCE = 32  # of a picture's graph, between two looks at whether to go on


@dataclass(frozen=True, eq=False)
class PicturePart:
    """Cells in a row that a picture takes, and what libllama is to be told of them."""

    picture: Picture
    number: int
    """The part's number among all pieces of its picture, text included."""

    cells: Sequence[int]
    """Their numbers."""

    num_positions: int
    """Positions from the first part's to that of what follows."""

    offsets: NDArray[np.int32]
    """(4, n) int32, the positions of all cells where the first is at 0: in time, and down,
    across and in a third direction where a position has parts."""

    shifts: NDArray[np.int32]
    """(4, n) what each of them grows by with the first one's."""

    def positions(self, first: int) -> NDArray[np.int32]:
        """(4, n) int32, where the first cell is at that position."""
        found: NDArray[np.int32] = self.offsets + self.shifts * np.int32(first)
        return found

    @property
    def last(self) -> int:
        """The largest position in time minus the first."""
        return int(self.offsets[0].max())


class _TokenizedPicture(NamedTuple):
    """A picture's tokens and parts."""

    tokens: list[int]
    parts: list[PicturePart]
    num_bytes: int
    """About the memory that these take."""


class Projector:
    """A projector in a file, open for a model. Implements `picture.Vision`.

    `cells` and `show` from any thread; `rows` in one at a time. content: what the file holds,
    in words, to be set before the first picture. is_causal: whether no cell attends to those
    behind it.

    Raises ModelFileError if libmtmd refuses the file, OptionError without libmtmd.
    """

    def __init__(self, path: Path, handle: Handle, *, num_threads: int, use_gpu: bool) -> None:
        self.name = path.name
        self.content = ""
        self._handle = handle  # kept: libmtmd has the model's pointer
        self._is_cancelled: Callable[[], bool] = lambda: False
        self._num_nodes = 0  # nodes of the graph that libmtmd has asked about
        self._mtmd = mtmd()
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu = use_gpu
        params.print_timings = False
        params.n_threads = num_threads
        params.media_marker = _MARKER
        # Kept, since C has its pointer. With a weak reference, so that this can still be freed.
        looks = functools.partial(_on_node, weakref.ref(self))
        self._looks = llama_cpp.ggml_backend_sched_eval_callback(looks)
        params.cb_eval = self._looks
        complaints.clear()
        self._context: int | None = self._mtmd.mtmd_init_from_file(
            os.fsencode(path), handle.model, params
        )
        if not self._context:
            raise complaints.as_error(
                f"libmtmd cannot load {path}",
                "Choose the projector (mmproj) that was made for this very model.",
            )
        self._finalizer = weakref.finalize(self, _free, self._mtmd, self._context, self._looks)
        self._in_use = threading.Lock()
        if not self._mtmd.mtmd_support_vision(self._context):
            self.close()
            raise ModelFileError(
                f"{path} is not a projector for images", "Choose one for images."
            )
        self.width = int(llama_cpp.llama_model_n_embd_inp(handle.model))
        self._most_at_once = int(llama_cpp.llama_n_ubatch(handle.context))
        self.is_causal = not self._mtmd.mtmd_decode_use_non_causal(self._context, None)
        self._latest: OrderedDict[bytes, _TokenizedPicture] = OrderedDict()  # by picture
        # By first cell: parts of the latest pictures, and parts that somebody else keeps.
        self._parts: weakref.WeakValueDictionary[int, PicturePart] = (
            weakref.WeakValueDictionary()
        )
        self._rows: OrderedDict[int, Rows] = OrderedDict()  # by first cell

    def cells(self, picture: Picture) -> list[int]:
        """The cells of a picture (`Vision.cells`). Raises OptionError if it cannot be read."""
        with self._lock():
            tokens = list(self._tokenized(picture).tokens)
            self._forget_some(1)
            return tokens

    def show(self, pictures: Sequence[Picture]) -> list[PicturePart]:
        """Find the parts of pictures whose cells are about to be read. Raises as `cells`.

        Their parts are at hand as long as the caller keeps what is returned.
        """
        with self._lock():
            parts = [part for picture in pictures for part in self._tokenized(picture).parts]
            self._forget_some(len(pictures))
            return parts

    def readable(self, tokens: Sequence[int]) -> tuple[int, list[PicturePart]]:
        """How many tokens of a text come before the first picture that is not at hand.

        And the parts among them, which are at hand as long as the caller keeps them.
        """
        parts: list[PicturePart] = []
        for row in cell_rows(tokens) if min(tokens, default=0) < 0 else ():
            part = self._parts.get(tokens[row.start])
            if part is None:
                return row.start, parts
            parts.append(part)
        return len(tokens), parts

    def part(self, cells: Sequence[int]) -> PicturePart:
        """The part with these cells. Raises DecodeError if it is unknown or has others."""
        part = self._parts.get(cells[0])
        if part is None:
            raise DecodeError("the picture of a text is not at hand")
        if len(part.cells) != len(cells):
            raise DecodeError(f"{len(cells)} of a picture's {len(part.cells)} cells")
        return part

    def rows(self, part: PicturePart, is_cancelled: Callable[[], bool]) -> Rows:
        """(cells, width) float32: what the model reads for a part of a picture.

        Raises Interrupted once it is true, DecodeError.

        Args:
            is_cancelled: Called again and again.
        """
        first = part.cells[0]
        if first in self._rows:
            self._rows.move_to_end(first)
            return self._rows[first]
        with self._chunks(part.picture, part.picture.rgb) as chunks:
            chunk = self._mtmd.mtmd_input_chunks_get(chunks, part.number)
            rows = self._encoded(chunk, len(part.cells), is_cancelled)
        self._rows[first] = rows
        num_bytes = sum(kept.nbytes for kept in self._rows.values())
        while num_bytes > KEPT_ROW_BYTES and len(self._rows) > 1:
            num_bytes -= self._rows.popitem(last=False)[1].nbytes
        return rows

    def _encoded(self, chunk: Any, count: int, is_cancelled: Callable[[], bool]) -> Rows:
        if chunk is None or self._mtmd.mtmd_input_chunk_get_n_tokens(chunk) != count:
            raise DecodeError(f"{self.name} makes another number of cells of a picture now")
        self._is_cancelled = is_cancelled
        self._num_nodes = 0
        complaints.clear()
        try:
            status = self._mtmd.mtmd_encode_chunk(self._context, chunk)
        finally:  # it may refer to this projector
            self._is_cancelled = lambda: False
        if is_cancelled():
            raise Interrupted("reading a picture was cancelled")
        if status != 0:
            raise DecodeError(
                f"{self.name} could not read a picture (status {status}){complaints.because()}"
            )
        given = self._mtmd.mtmd_get_output_embd(self._context)
        return np.ctypeslib.as_array(given, (count, self.width)).copy()

    def _tokenized(self, picture: Picture) -> _TokenizedPicture:
        """The tokens and parts of a picture, found once."""
        if picture.digest in self._latest:
            self._latest.move_to_end(picture.digest)
            return self._latest[picture.digest]
        tokens: list[int] = []
        parts: list[PicturePart] = []
        width = picture.width
        height = picture.height
        if max(width, height) > _MOST_TIMES * min(width, height):
            raise OptionError(
                f"a picture of {width} by {height} pixels is too narrow",
                f"Crop it: its longer side may be at most {_MOST_TIMES} times the shorter.",
            )
        # Without its pixels: its tokens and parts follow from its size.
        with self._chunks(picture, None) as chunks:
            for number in range(self._mtmd.mtmd_input_chunks_size(chunks)):
                chunk = self._mtmd.mtmd_input_chunks_get(chunks, number)
                tokens += self._tokens_of(picture, number, chunk, parts)
        num_bytes = len(picture.rgb) + _CELL_BYTES * len(tokens)
        known = self._latest[picture.digest] = _TokenizedPicture(tokens, parts, num_bytes)
        return known

    def _tokens_of(
        self, picture: Picture, number: int, chunk: Any, parts: list[PicturePart]
    ) -> Sequence[int]:
        """Tokens of a libmtmd chunk: ids, or the cells of a part, which is added to `parts`."""
        count = self._mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        if self._mtmd.mtmd_input_chunk_get_type(chunk) == self._mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            size = ctypes.c_size_t()
            given = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
            ids = [int(given[index]) for index in range(size.value)]
            if min(ids) < 0:
                raise OptionError(
                    f"the model lacks a token that {self.name} puts around pictures",
                    "Choose the projector (mmproj) that was made for this very model.",
                )
            return ids
        if not self.is_causal and count > self._most_at_once:
            raise OptionError(
                f"a picture of {picture.width} by {picture.height} pixels takes {count} cells "
                f"at once; the model was opened for {self._most_at_once}",
                "Load it with a longer context (context_length=…).",
            )
        offsets = self._offsets(chunk, count, 0)
        moved = self._offsets(chunk, count, 1)
        cells = cell_numbers(picture.digest + f"{number} of {self.content}".encode(), count)
        num_positions = int(self._mtmd.mtmd_input_chunk_get_n_pos(chunk))
        part = PicturePart(picture, number, cells, num_positions, offsets, moved - offsets)
        parts.append(self._parts.setdefault(cells[0], part))  # an answer may keep the first
        return cells

    def _offsets(self, chunk: Any, count: int, first: int) -> NDArray[np.int32]:
        """The positions of a chunk's cells: (4, count)."""
        cells = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        ask = self._mtmd.mtmd_image_tokens_get_decoder_pos
        found = [ask(cells, first, index) for index in range(count)]
        return np.array([[p.t, p.y, p.x, p.z] for p in found], dtype=np.int32).T

    @contextmanager
    def _chunks(self, picture: Picture, rgb: bytes | None) -> Iterator[Any]:
        """libmtmd's pieces of a picture: texts around it, and its parts.

        Raises OptionError.

        Args:
            rgb: Its pixels; without them only what stands for it is found.
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
                self._context, chunks, ctypes.byref(text), bitmaps, 1
            )
            if status != 0:
                raise OptionError(
                    f"{self.name} cannot read a picture of {picture.width} by "
                    f"{picture.height} pixels{complaints.because()}",
                    "Choose another size.",
                )
            yield chunks
        finally:
            library.mtmd_input_chunks_free(chunks)
            library.mtmd_bitmap_free(bitmap)

    def _forget_some(self, num_shown: int) -> None:
        """Let pictures go that were asked for longest ago, but for the last num_shown."""
        num_bytes = sum(known.num_bytes for known in self._latest.values())
        while num_bytes > KEPT_PICTURE_BYTES and len(self._latest) > num_shown:
            num_bytes -= self._latest.popitem(last=False)[1].num_bytes

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """In the block nobody else looks at pictures, and the projector stays open."""
        self._require_open()  # in a fork the lock may be taken, by nobody
        with self._in_use:
            self._require_open()
            yield

    def _require_open(self) -> None:
        if self._context is None:
            raise ClosedError(f"{self.name} is closed", "Load it again.")
        self._handle.require_open()

    def close(self) -> None:
        """Free everything. Idempotent."""
        if own_process.is_this():  # a fork has a copy, which ends with it
            with self._in_use:
                self._context = None
                self._finalizer()


def _on_node(
    projector: weakref.ref[Projector], _node: object, is_before: int, _data: object
) -> bool:
    """ggml's callback. Before a node: whether to call after it; after: whether to continue."""
    alive = projector()
    if alive is None:
        return not is_before
    if not is_before:
        return not alive._is_cancelled()
    alive._num_nodes += 1
    return alive._num_nodes % _NODES_AT_ONCE == 0


def _free(library: Any, context: int, _looks: object) -> None:
    if own_process.is_this():
        library.mtmd_free(context)
