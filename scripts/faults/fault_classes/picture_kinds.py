"""Pictures, changed chunk by chunk."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from random import Random

from fault_classes.kinds import Kind, Read
from fault_classes.mutations import changed_bytes


def _make_pictures(folder: Path) -> None:
    from PIL import Image

    random = Random(0)
    rgb = Image.frombytes("RGB", (24, 16), random.randbytes(24 * 16 * 3))
    turned = Image.Exif()
    turned[0x0112] = 6
    ways: dict[str, tuple[Image.Image, dict[str, object]]] = {
        "a.png": (rgb, {}),
        "b.png": (rgb.convert("P"), {"transparency": 3}),
        "c.png": (rgb.convert("LA"), {}),
        "d.jpg": (rgb, {"exif": turned.tobytes()}),
        "e.jpg": (rgb.convert("CMYK"), {"progressive": True}),
        "f.webp": (rgb.convert("RGBA"), {"lossless": True}),
        "g.webp": (rgb, {}),
        "h.gif": (rgb.convert("P"), {"save_all": True, "append_images": [rgb.convert("P")]}),
    }
    for name, (image, options) in ways.items():
        buffer = io.BytesIO()
        form = {"jpg": "JPEG"}.get(name[2:], name[2:].upper())
        image.save(buffer, form, **options)
        (folder / f"sample-{name}").write_bytes(buffer.getvalue())


def _change_picture(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    """Bytes changed; of a PNG also whole chunks, most often with checksums that are right."""
    if not data.startswith(b"\x89PNG") or random.random() < 0.2:
        return changed_bytes(data, random)
    chunks = _chunks(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(chunks))
        kind, content = chunks[at]
        match random.randrange(5):
            case 0:
                del chunks[at]
                chunks = chunks or [(kind, content)]
            case 1:
                chunks.insert(random.randrange(len(chunks)), (kind, content))
            case 2 if kind == b"IDAT":
                with contextlib.suppress(zlib.error):  # of one that was changed before
                    raw = changed_bytes(zlib.decompress(content), random)
                    content = zlib.compress(raw * random.choice((1, 1, 500)))
                chunks[at] = kind, content
            case 3:
                others = [
                    b"tRNS",
                    b"eXIf",
                    b"zTXt",
                    b"iCCP",
                    b"acTL",
                    b"fcTL",
                    b"gAMA",
                    b"PLTE",
                ]
                chunks.insert(at, (random.choice(others), changed_bytes(content[:40], random)))
            case _:
                chunks[at] = kind, changed_bytes(content, random)
    parts = [data[:8]]
    for kind, content in chunks:
        check = zlib.crc32(kind + content) if random.random() < 0.97 else 0
        parts.append(
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
        )
    return b"".join(parts)


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    at, found = 8, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    return found


def _open_pictures(_folder: Path) -> Read:
    import warnings

    from localspec.pictures.picture import Picture

    warnings.simplefilter("ignore")

    def read(data: bytes) -> None:
        picture = Picture.read(data)
        assert len(picture.rgb) == picture.width * picture.height * 3

    return read


KINDS = {
    "pictures": Kind(
        "pictures", _make_pictures, _change_picture, _open_pictures, is_native=True
    ),
}
