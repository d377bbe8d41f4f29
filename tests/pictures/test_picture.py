"""Pictures: what is read, turned and refused, whatever the bytes are."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import struct
import sys
import zlib
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from examples import num_examples
from localspec import OptionError, Picture
from spawned import peak_bytes_of_picture

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
CORNERS = [RED, GREEN, BLUE, (255, 255, 255)]


def drawn(pixels, size, mode="RGB"):
    image = Image.new(mode, size)
    image.putdata(pixels)
    return image


def encoded(image, form="PNG", **options):
    buffer = BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def pixels_of(picture):
    return [tuple(picture.rgb[at : at + 3]) for at in range(0, len(picture.rgb), 3)]


def test_a_picture_is_read_from_a_path_bytes_and_pillow(tmp_path):
    image = drawn(CORNERS, (2, 2))
    path = tmp_path / "corners.png"
    path.write_bytes(encoded(image))
    read = [Picture.read(each) for each in (path, str(path), path.read_bytes(), image)]
    assert {(each.width, each.height) for each in read} == {(2, 2)}
    assert all(pixels_of(each) == CORNERS for each in read)
    assert len(set(read)) == 1
    assert Picture.read(read[0]) is read[0]
    assert pickle.loads(pickle.dumps(read[0])).digest == read[0].digest


@pytest.mark.parametrize(
    ("form", "options"),
    [("PNG", {}), ("JPEG", {"quality": 95}), ("WEBP", {"lossless": True}), ("GIF", {})],
)
def test_each_format_is_read(form, options):
    image = Image.new("RGB", (16, 8), RED)
    picture = Picture.read(encoded(image, form, **options))
    assert (picture.width, picture.height) == (16, 8)
    assert all(abs(a - b) < 3 for a, b in zip(pixels_of(picture)[0], RED, strict=True))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_upright(orientation):
    upright = drawn([RED, BLUE], (2, 1))
    turns = [None, 0, 3, 1, 5, 2, 6, 4]  # which undo what each orientation asks for
    turn = turns[orientation - 1]
    stored = upright if turn is None else upright.transpose(Image.Transpose(turn))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(stored, "PNG", exif=exif)
    picture = Picture.read(data)
    assert (picture.width, picture.height) == (2, 1)
    assert pixels_of(picture) == [RED, BLUE]


def test_what_is_transparent_is_white():
    half = drawn([(*RED, 255), (0, 0, 0, 0), (0, 0, 0, 128)], (3, 1), "RGBA")
    assert pixels_of(Picture.read(encoded(half)))[:2] == [RED, (255, 255, 255)]
    grey = pixels_of(Picture.read(half))[2]
    assert all(126 <= value <= 128 for value in grey)
    palette = Image.new("P", (1, 1))
    assert pixels_of(Picture.read(encoded(palette, "PNG", transparency=0))) == [(255,) * 3]


def declared_png(width, height):
    """A PNG file that declares a size and has one row of pixels at most."""

    def chunk(kind, data):
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(10_000, 5_001), (40_000, 1), (100_000, 100_000)])
def test_too_many_pixels_are_refused_before_they_are_decoded(size, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)  # not called at all
    with pytest.raises(OptionError, match=r"pixels|bomb") as caught:
        Picture.read(declared_png(*size))
    assert "Make it smaller" in caught.value.hint or "bomb" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"", "not a picture"),
        (b"hello", "not a picture"),
        (b"BM" + bytes(60), "not a picture"),
        (3, "the picture is 3"),
        (None, "the picture is None"),
        ("/nowhere/x.png", "does not exist"),
        ("a\0b", "is not a file"),
        (os.curdir, "is not a file"),
    ],
)
def test_what_is_no_picture_is_refused(source, said):
    with pytest.raises(OptionError, match=said) as caught:
        Picture.read(source)
    assert caught.value.hint


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(OptionError, match="is not a file"):
        Picture.read(tmp_path / "pipe.png")


ON_ITS_SIDE = Image.Exif()
ON_ITS_SIDE[ExifTags.Base.Orientation] = 6


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="the peak is not known there")
@pytest.mark.parametrize(
    ("mode", "form", "options", "most_mb"),
    [
        # Pillow's decoder alone takes 600 MB.
        ("RGBA", "WEBP", {"lossless": True, "quality": 0, "method": 0}, 900),
        ("RGB", "WEBP", {"lossless": True, "quality": 0, "exif": ON_ITS_SIDE}, 1000),
        ("RGBA", "PNG", {}, 500),
        ("RGB", "JPEG", {"exif": ON_ITS_SIDE}, 700),
    ],
    ids=["webp", "webp on its side", "png", "jpeg on its side"],
)
def test_a_file_of_a_few_bytes_takes_no_gigabytes(mode, form, options, most_mb):
    """Of as many pixels as a picture may have. An RGBA WebP of 36 bytes took 1340 MB."""
    data = encoded(Image.new(mode, (7000, 7000)), form, **options)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(peak_bytes_of_picture, (data,)) < most_mb * 1_000_000


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "LA", "RGBA"])
def test_the_pixels_of_all_bands_are_in_their_places(mode):
    """The last band is a lower one than the others."""
    size = (600, 4000)
    noise = [Image.effect_noise(size, 90) for _ in range(4)]
    image = Image.merge("RGBA", noise).convert(mode)
    white = Image.new("RGBA", size, "white")
    white.alpha_composite(image.convert("RGBA"))
    assert Picture.read(encoded(image)).rgb == white.convert("RGB").tobytes()


SEEDS = [
    encoded(drawn(CORNERS * 16, (8, 8)), form, **options)
    for form, options in [
        ("PNG", {}),
        ("JPEG", {"exif": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"}),
        ("JPEG", {"progressive": True}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("GIF", {}),
    ]
]


@pytest.mark.filterwarnings("ignore")  # Pillow warns of what it mends
@settings(max_examples=num_examples(2000))
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4)), max_size=6),
    kept=st.floats(0, 1),
)
def test_mutated_bytes_are_read_or_refused(seed, edits, kept):
    data = bytearray(seed)
    for place, new in edits:
        at = int(place * len(data))
        data[at : at + len(new)] = new
    if kept > 0.5:
        del data[int(len(data) * (2 * kept - 1)) :]
    try:
        picture = Picture.read(bytes(data))
    except OptionError:
        return
    assert len(picture.rgb) == picture.width * picture.height * 3
