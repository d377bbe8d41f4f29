"""Pictures in a text: read as llama.cpp reads them, kept, cut and gone on behind."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray

import inside
import localspec
from engines import Owner
from localspec.chat.prompt_source import ReadySource
from localspec.errors import DecodeError, Interrupted
from localspec.llama.cache_state import PictureSpan, PictureSpans
from localspec.llama.library import mtmd
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.pictures.cells import cell_numbers, cell_ranges
from localspec.pictures.picture import Picture
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.answer_text import Prompt
from localspec.streaming.record import AnswerRecord
from picture_prompts import GREEDY, asked, prompt_of
from vision_maker import KINDS, random_picture, write_vision_pair

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


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """A model and its projector."""
    return write_vision_pair(tmp_path_factory.mktemp("seeing"), request.param)


@pytest.fixture(scope="module")
def engine(pair):
    target, mmproj = pair
    with localspec.load(target=target, mmproj=mmproj, draft_tokens=0, memory=False) as opened:
        yield opened


@pytest.fixture(autouse=True)
def emptied(request):
    """Every test begins with an empty engine."""
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        with inside.lent(engine):
            pass
        engine.free_kept()


@pytest.mark.parametrize("size", [(64, 64), (40, 96), (131, 57)])
def test_logits_behind_pictures_are_llama_cpps_own(engine, size):
    first, second = random_picture(1, *size), random_picture(2, *size)
    target = inside.target(engine)
    text = b"look: " + MARKER + b"and " + MARKER + b"what is it"
    with inside.lent(engine):
        expected, ids, positions = logits_by_hand(target, text, [first, second])
        tokens, cells = [], [c for each in (first, second) for c in engine.vision.cells(each)]
        waiting = iter([cell for cell in cells if cell < 0])
        tokens = [next(waiting) if token < 0 else token for token in ids]
        assert next(waiting, None) is None
        target.vision.load_parts([first, second])
        row = target.decode(tokens, 1)[0].copy()
        assert target.num_cached == len(tokens)
        assert inside.position(target) == positions
        np.testing.assert_array_equal(row, expected)


def test_the_second_question_about_a_picture_decodes_what_is_new(engine):
    owner = Owner()
    prompt = prompt_of(engine, "see ", random_picture(1), "what is it")
    reply, num_decoded = asked(engine, prompt, owner)
    assert num_decoded == len(prompt.tokens)
    more = engine.tokenize("and why")
    longer = Prompt([*prompt.tokens, *reply.token_ids, *more], pictures=prompt.pictures)
    second, num_decoded = asked(engine, longer, owner)
    assert num_decoded <= 1 + len(more)
    with inside.lent(engine):
        pass
    assert asked(engine, longer)[0].token_ids == second.token_ids


def test_a_cut_within_a_picture_comes_in_front_of_it(engine):
    prompt = prompt_of(engine, "see ", random_picture(1), "what is it")
    target = inside.target(engine)
    asked(engine, prompt)
    row = list(cell_ranges(prompt.tokens))[-1]
    with inside.lent(engine):
        target.vision.load_parts(prompt.pictures)
        target.decode(prompt.tokens, 1)
        target.truncate(row.stop - 1)
        assert target.num_cached == row.start
        again = target.decode(prompt.tokens[row.start :], 1)[0].copy()
        target.truncate(row.stop)
        assert target.num_cached == row.stop
        np.testing.assert_array_equal(target.decode(prompt.tokens[row.stop :], 1)[0], again)


def test_caches_with_pictures_are_kept_on_disk(engine, tmp_path):
    owner, path = Owner(), tmp_path / "kept.caches"
    prompt = prompt_of(engine, "see ", random_picture(1), "what is it")
    said = asked(engine, prompt, owner)[0].token_ids
    assert inside.save_caches_of(engine, owner, path)
    tokens = [*prompt.tokens, *said, *engine.tokenize("more")]
    longer = Prompt(tokens, pictures=prompt.pictures)
    expected = asked(engine, longer, owner)[0].token_ids
    with inside.lent(engine):
        pass
    other = Owner()
    assert inside.load_caches_of(engine, other, path)
    reply, num_decoded = asked(engine, longer, other)
    assert num_decoded <= 1 + len(engine.tokenize("more"))
    assert reply.token_ids == expected


def test_a_picture_that_does_not_come_with_its_prompt_is_refused(engine):
    other = random_picture(99)
    tokens = [engine.vocabulary.bos, *cell_numbers(other.digest, 4), 5]
    with pytest.raises(localspec.OptionError, match="cells of a picture that was not given"):
        asked(engine, Prompt(tokens))
    prompt = prompt_of(engine, "see ", other)
    ending = Prompt(prompt.tokens[: 1 + _last_cell(prompt)], pictures=(other,))
    with pytest.raises(localspec.OptionError, match="ends with a picture"):
        asked(engine, ending)


def _last_cell(prompt):
    return max(place for place, token in enumerate(prompt.tokens) if token < 0)


@pytest.mark.parametrize("attention", ["off", "on"])
def test_a_picture_is_one_decode_where_its_cells_attend_to_all_others(tmp_path, attention):
    """Also where a text is read in smaller pieces; those are as without a projector."""
    target, mmproj = write_vision_pair(tmp_path, "gemma3", side=192)
    options = LlamaOptions(flash_attention=attention)
    files = {"target": target, "target_options": options, "draft_tokens": 0}
    with localspec.load(**files, mmproj="none") as blind:
        usual = min(128 if attention == "off" else 512, inside.target(blind).batch_size)
    with localspec.load(**files, mmproj=mmproj) as engine:
        picture, model = random_picture(1), inside.target(engine)
        cells = [token for token in engine.vision.cells(picture) if token < 0]
        assert len(cells) == 144
        assert model.batch_size == usual
        with inside.lent(engine):
            row, ids, _ = logits_by_hand(model, b"see " + MARKER + b"what is it", [picture])
            waiting = iter(cells)
            tokens = [next(waiting) if token < 0 else token for token in ids]
            model.vision.load_parts([picture])
            np.testing.assert_array_equal(model.decode(tokens, 1)[0], row)


def test_a_window_that_slides_over_pictures(tmp_path):
    """Whatever was cut, the text is that of an engine which has decoded nothing else."""
    target, mmproj = write_vision_pair(
        tmp_path, "gemma3", num_layers=6, extra={"gemma3.attention.sliding_window": 24}
    )
    with localspec.load(target=target, mmproj=mmproj, draft_tokens=0, num_threads=1) as engine:
        long = prompt_of(engine, "see ", random_picture(1), "what is it " * 12)
        other = prompt_of(engine, "see ", random_picture(1), "and now " * 12)
        alone = []
        for prompt in (long, other):
            with inside.lent(engine):
                pass
            alone.append(asked(engine, prompt)[0].token_ids)
        owners = Owner(), Owner()
        for _ in range(2):
            for prompt, owner, expected in zip((long, other), owners, alone, strict=True):
                assert asked(engine, prompt, owner)[0].token_ids == expected
        assert asked(engine, long)[0].token_ids == alone[0]
        assert asked(engine, other)[0].token_ids == alone[1]


def test_reading_a_picture_can_be_cancelled(engine):
    prompt = prompt_of(engine, "see ", random_picture(7), "what is it")
    target = inside.target(engine)
    with inside.lent(engine):
        target.vision.load_parts(prompt.pictures)
        row = next(cell_ranges(prompt.tokens))
        part = target.vision.part(prompt.tokens[row.start : row.stop])
        with pytest.raises(Interrupted):
            target.vision.rows(part, lambda: True)
        target.decode(prompt.tokens[: row.start], 0)
        target.on_batch = lambda _done: target.interrupt()
        with pytest.raises(Interrupted):
            target.decode(prompt.tokens[row.start :], 1)
        target.on_batch = None
        target.make_ready()
        assert target.num_cached in (row.start, row.stop)
        again = target.decode(prompt.tokens[target.num_cached :], 1)[0].copy()
        target.truncate(0)
        np.testing.assert_array_equal(target.decode(prompt.tokens, 1)[0], again)


def test_a_decode_that_fails_within_a_picture_leaves_nothing_of_it(engine, monkeypatch):
    prompt = prompt_of(engine, "see ", random_picture(8), "what is it")
    target = inside.target(engine)
    row = next(cell_ranges(prompt.tokens))
    with inside.lent(engine):
        target.vision.load_parts(prompt.pictures)
        expected = target.decode(prompt.tokens, 1)[0].copy()
        target.truncate(0)
        with monkeypatch.context() as patch:
            patch.setattr(target.vision, "rows", broken_rows)
            with pytest.raises(RuntimeError, match="broken"):
                target.decode(prompt.tokens, 1)
        assert target.num_cached == row.start
        found = target.decode(prompt.tokens[row.start :], 1)[0]
        np.testing.assert_array_equal(found, expected)


def broken_rows(*_arguments):
    raise RuntimeError("broken")


def test_a_picture_that_is_all_length_is_refused(engine):
    with pytest.raises(localspec.OptionError, match="too narrow"):
        engine.vision.cells(random_picture(1, 1, 201))


def test_an_answer_keeps_its_pictures_at_hand(engine, monkeypatch):
    """Whatever others show and ask for before it reads them; no longer than it needs them."""
    monkeypatch.setattr("localspec.llama.projector.KEPT_PICTURE_BYTES", 1)
    vision = inside.target(engine).vision
    prompt = prompt_of(engine, "see ", random_picture(1), "and ", random_picture(2), "what")
    expected = asked(engine, prompt)[0].token_ids
    with inside.lent(engine):
        pass
    exchange = AnswerRecord(
        AnswerOptions.of(sampling=GREEDY, max_tokens=8), ReadySource(prompt)
    )

    def on_begin(_made):
        vision.load_parts([random_picture(3)])
        engine.vision.cells(random_picture(1))  # known anew, and forgotten
        engine.vision.cells(random_picture(4))

    exchange.on_begin = on_begin
    assert inside.answer(engine, exchange).reply().token_ids == expected
    row = next(cell_ranges(prompt.tokens))
    with pytest.raises(DecodeError, match="not at hand"):
        vision.part(prompt.tokens[row.start : row.stop])


@pytest.mark.parametrize("place", [10, 11, 60, 110, 115])
def test_a_picture_that_is_passed_over_takes_no_position(place):
    """Also where a text is cut within it, as `floor` allows; a draft's cache was cleared."""
    spans = PictureSpans([PictureSpan(10, 100, 0, -1)])
    assert spans.floor(place) == place
    position = 10 + max(place - 110, 0)
    assert (spans.position(place), spans.last_position(place)) == (position, position - 1)
    spans = spans.up_to(place)
    assert (spans.position(place), spans.last_position(place)) == (position, position - 1)


def test_a_picture_that_is_read_takes_its_own_positions():
    spans = PictureSpans([PictureSpan(10, 100, 8, 7), PictureSpan(120, 5, 0, -1)])
    assert [spans.position(place) for place in (10, 110, 120, 122, 125)] == [10, 18, 28, 28, 28]
    assert spans.floor(50) == 10
