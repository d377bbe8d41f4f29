"""libmtmd's part of a model that sees: a projector, which turns pictures into rows.

A model gets such rows in place of the embeddings of tokens. Each picture is given to libmtmd
alone, so that its tokens in a prompt depend on nothing else.
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
_CELL_BYTES = 128  # memory that is kept for each cell, about, without the pixels
# The most that a picture's longer side may be, in times of the shorter: libmtmd may make a
# picture of no height.
_MOST_TIMES = 200
_NODES_AT_ONCE = 32  # nodes of a picture's graph between two checks for cancellation


@dataclass(frozen=True, eq=False)
class PicturePart:
    """A row of a picture's cells, with their positions."""

    picture: Picture

    number: int
    """The part's number among all pieces of its picture, text included."""

    cells: Sequence[int]
    """The numbers of the cells."""

    num_positions: int
    """Positions from the first cell's to that of the next token."""

    offsets: NDArray[np.int32]
    """(4, n) int32, the positions of all cells if the first one is at 0. The rows are time, and
    the directions down, across and a third one if a position has parts."""

    shifts: NDArray[np.int32]
    """(4, n) int32, how much each position grows if the first one grows by 1."""

    def positions(self, first: int) -> NDArray[np.int32]:
        """(4, n) int32, the positions of all cells if the first one is at `first`."""
        positions: NDArray[np.int32] = self.offsets + self.shifts * np.int32(first)
        return positions

    @property
    def last(self) -> int:
        """The largest position in time minus the first one."""
        return int(self.offsets[0].max())


class _TokenizedPicture(NamedTuple):
    """A picture's tokens and parts."""

    tokens: list[int]
    parts: list[PicturePart]
    num_bytes: int
    """Their memory, about."""


class Projector:
    """A projector in a file, open for a model. Implements `picture.Vision`.

    `cells` and `show` may be called from any thread, `rows` in one thread at a time.

    Raises ModelFileError if libmtmd refuses the file, OptionError without libmtmd.

    Args:
        path: The file.
        handle: The model's handle.
        num_threads: Threads on the processor.
        use_gpu: Whether to compute on a GPU if there is one.
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
        self._num_nodes = 0  # nodes of the graph that libmtmd has asked about
        self._mtmd = mtmd()
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu = use_gpu
        params.print_timings = False
        params.n_threads = num_threads
        params.media_marker = _MARKER
        # The callback is kept, since C has its pointer. It has a weak reference, so that the
        # projector can still be freed.
        looks = functools.partial(_on_node, weakref.ref(self))
        self._looks = llama_cpp.ggml_backend_sched_eval_callback(looks)
        params.cb_eval = self._looks
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
        self._finalizer = weakref.finalize(self, _free, self._mtmd, self._context, self._looks)
        self._in_use = threading.Lock()
        if not self._mtmd.mtmd_support_vision(self._context):
            self.close()
            raise ModelFileError(
                f"{path} is not a projector for images",
                "Choose one for images.",
            )
        self.width = int(llama_cpp.llama_model_n_embd_inp(handle.model))
        self._most_at_once = int(llama_cpp.llama_n_ubatch(handle.context))

        self.is_causal = not self._mtmd.mtmd_decode_use_non_causal(self._context, None)
        """Whether cells attend only to earlier ones."""

        self._latest: OrderedDict[bytes, _TokenizedPicture] = OrderedDict()  # by picture
        # By first cell: parts of the latest pictures, and parts that callers keep.
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
        """The parts of pictures whose cells are about to be read. Raises as `cells`.

        They stay loaded as long as the caller keeps them.
        """
        with self._lock():
            parts = []
            for picture in pictures:
                parts += self._tokenized(picture).parts
            self._forget_some(len(pictures))
            return parts

    def readable(self, tokens: Sequence[int]) -> tuple[int, list[PicturePart]]:
        """How many tokens come before the first picture that is not loaded; their parts.

        The parts stay loaded as long as the caller keeps them.
        """
        parts: list[PicturePart] = []
        if min(tokens, default=0) >= 0:
            return len(tokens), parts
        for row in cell_rows(tokens):
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
        """(cells, width) float32: the rows that the model reads for a part of a picture.

        Args:
            part: The part.
            is_cancelled: Called repeatedly.

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
        finally:  # the callback may refer to this projector
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
        """The tokens and parts of a picture, computed once."""
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
        # Without its pixels, since its tokens and parts follow from its size.
        with self._chunks(picture, None) as chunks:
            for number in range(self._mtmd.mtmd_input_chunks_size(chunks)):
                chunk = self._mtmd.mtmd_input_chunks_get(chunks, number)
                tokens += self._tokens_of(picture, number, chunk, parts)
        num_bytes = len(picture.rgb) + _CELL_BYTES * len(tokens)
        known = _TokenizedPicture(tokens, parts, num_bytes)
        self._latest[picture.digest] = known
        return known

    def _tokens_of(
        self,
        picture: Picture,
        number: int,
        chunk: Any,
        parts: list[PicturePart],
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
        """(4, count) int32, the positions of a chunk's cells if the first one is at `first`."""
        cells = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        ask = self._mtmd.mtmd_image_tokens_get_decoder_pos
        positions = np.empty((4, count), dtype=np.int32)
        for index in range(count):
            position = ask(cells, first, index)
            positions[:, index] = (position.t, position.y, position.x, position.z)
        return positions

    @contextmanager
    def _chunks(self, picture: Picture, rgb: bytes | None) -> Iterator[Any]:
        """libmtmd's pieces of a picture: texts around it, and its parts.

        Raises OptionError.

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
                    f"{picture.height} pixels{complaints.because()}",
                    "Choose another size.",
                )
            yield chunks
        finally:
            library.mtmd_input_chunks_free(chunks)
            library.mtmd_bitmap_free(bitmap)

    def _forget_some(self, num_shown: int) -> None:
        """Forget the least recently used pictures, except for the last num_shown."""
        num_bytes = sum(known.num_bytes for known in self._latest.values())
        while num_bytes > KEPT_PICTURE_BYTES and len(self._latest) > num_shown:
            num_bytes -= self._latest.popitem(last=False)[1].num_bytes

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock: the projector stays open in the block. Raises if it is closed."""
        self._require_open()  # in a fork the lock's copy may be locked for ever
        with self._in_use:
            self._require_open()
            yield

    def _require_open(self) -> None:
        if self._context is None:
            raise ClosedError(f"{self.name} is closed", "Load it again.")
        self._handle.require_open()

    def close(self) -> None:
        """Free everything. Idempotent."""
        if own_process.is_this():  # a fork's copy ends with it
            with self._in_use:
                self._context = None
                self._finalizer()


def _on_node(
    projector: weakref.ref[Projector],
    _node: object,
    is_before: int,
    _data: object,
) -> bool:
    """libmtmd's callback at each node of its graph.

    Called before a node, it returns whether to call it after the node. Called after it, it
    returns whether to continue.
    """
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
