"""Kinds of inputs in GGUF files: their headers, and models as libllama opens and runs them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from fault_classes.gguf_mutations import changed_gguf
from fault_classes.kinds import Kind, Read, own_home

_LOADED = {"context_length": 64, "num_threads": 1, "memory": False, "kept_bytes": 0}
_SEEING = ("idefics3", "gemma3", "qwen2vl_merger", "qwen3vl_merger")


def _gguf(data: bytes, random: Random, _samples: Sequence[bytes]) -> bytes:
    return changed_gguf(data, random)


def _tokenizer(folder: Path) -> Path:
    from gguf_maker import write_spm_tokenizer

    marks = ("<|im_start|>", "<|im_end|>")
    path, _ = write_spm_tokenizer(folder / "tokenizer.gguf", (), control=marks, user_defined=())
    return path


def _demo() -> Path:
    """The target that ships with the package."""
    from localspec.presets.located import locate
    from localspec.presets.presets import find_preset

    return locate(find_preset("demo"))["target"]


def _make_targets(folder: Path) -> None:
    from head_maker import write_head_model
    from hybrid_maker import write_hybrid

    from gguf_maker import write_random_model

    tokenizer = _tokenizer(folder)
    for number, more in enumerate(
        (
            {},
            {"num_experts": 4},
            {"architecture": "gemma3", "extra": {"gemma3.attention.sliding_window": 16}},
            {"architecture": "mamba"},
            {"architecture": "qwen3", "quantization": "Q8_0"},
        )
    ):
        write_random_model(folder / f"sample{number}.gguf", tokenizer, **more)  # type: ignore[arg-type]
    write_random_model(folder / "sample5.gguf", _demo())  # with a tokenizer of another kind
    write_head_model(folder / "sample6.gguf", tokenizer, "qwen35")
    write_hybrid(folder / "sample7.gguf", tokenizer, "lfm2")


def _make_drafts(folder: Path) -> None:
    from gguf_maker import write_random_model

    tokenizer = _tokenizer(folder)
    write_random_model(folder / "target.gguf", tokenizer, num_layers=2)
    write_random_model(folder / "sample0.gguf", tokenizer, seed=1)


def _make_heads(folder: Path) -> None:
    import numpy as np
    from block_head_maker import BlockHead, write_block_head
    from head_maker import write_head_model
    from hybrid_maker import WIDTH

    target = write_head_model(folder / "target.gguf", _tokenizer(folder), "qwen3", part="trunk")
    write_head_model(folder / "sample0.gguf", target, "qwen3", part="head")
    write_block_head(folder / "sample1.gguf", target, BlockHead(num_known=200, mask=250))
    from medusa_file import HeadWeights, write_medusa

    width, random = WIDTH, np.random.default_rng(0)
    square = random.standard_normal((width, width)).astype(np.float32) / 8
    output = random.standard_normal((200, width)).astype(np.float32)
    head = HeadWeights([(square, square[0])], output)
    write_medusa(folder / "sample2.gguf", target, [head], tokens=np.arange(200, dtype=np.int64))


def _make_projectors(folder: Path) -> None:
    from vision_maker import write_vision_pair

    for kind in _SEEING:
        (folder / kind).mkdir(exist_ok=True)
        model, projector = write_vision_pair(folder / kind, kind)
        model.rename(folder / f"{kind}.gguf")
        projector.rename(folder / f"sample-{kind}.gguf")


def _make_embedders(folder: Path) -> None:
    from gguf_maker import write_random_model

    tokenizer, more = _tokenizer(folder), {"context_length": 64}
    extra: dict[str, Any] = {"llama.pooling_type": 1}
    write_random_model(folder / "sample0.gguf", tokenizer, extra=extra, **more)  # type: ignore[arg-type]
    extra = {
        "qwen3.pooling_type": 4,
        "qwen3.classifier.output_labels": ["yes", "no"],
        "tokenizer.chat_template.rerank": "{query}|{document}",
    }
    write_random_model(
        folder / "sample1.gguf",
        tokenizer,
        architecture="qwen3",
        extra=extra,
        **more,  # type: ignore[arg-type]
    )


def _make_headers(folder: Path) -> None:
    for make in (_make_targets, _make_drafts, _make_heads, _make_projectors, _make_embedders):
        own = folder / make.__name__
        own.mkdir(exist_ok=True)
        make(own)
        for path in own.glob("sample*"):
            path.rename(folder / f"sample{make.__name__}{path.name}")
        if (own / "target.gguf").exists():
            (own / "target.gguf").rename(folder / f"target{make.__name__}.gguf")


def _open_headers(folder: Path) -> Read:
    own_home(folder)
    from localspec.errors import LocalspecError
    from localspec.gguf_file.check import check_model_file

    path = folder / "read.gguf"
    others = [check_model_file(each) for each in sorted(folder.glob("target*.gguf"))]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for check in _checks(path, data, others):
            try:
                check()
            except LocalspecError:
                continue

    return read


def _checks(path: Path, data: bytes, others: Sequence[Any]) -> Iterator[Callable[[], object]]:
    """What is asked of a file before it is opened; all that `explain` does of one in 32.

    others: headers of targets.
    """
    import localspec
    from localspec.gguf_file.check import check_embedder_file, check_model_file
    from localspec.gguf_file.content import FileContent
    from localspec.gguf_file.head import check_target, head_facts, head_misfit
    from localspec.gguf_file.header import read_header, read_source_header
    from localspec.gguf_file.projector import cells_at_once, require_free_of_place
    from localspec.gguf_file.projector_check import checked_projector, require_projector_of
    from localspec.presets.folder_import import search_folder
    from localspec.presets.pairing import compare_vocabularies

    yield lambda: read_source_header(_Bytes(data))
    yield lambda: FileContent(read_header(path)).digest()
    yield lambda: check_embedder_file(path)
    yield lambda: check_target(check_model_file(path))
    yield lambda: repr(head_facts(check_model_file(path)))
    yield lambda: require_free_of_place(checked_projector(path))
    yield lambda: cells_at_once(checked_projector(path))
    for other in others:
        yield lambda other=other: head_misfit(other, check_model_file(path))
        yield lambda other=other: compare_vocabularies(other, check_model_file(path))
        yield lambda other=other: require_projector_of(other, checked_projector(path))
    if zlib.crc32(data) % 32 == 0:
        yield partial(localspec.explain, target=path)
        yield partial(localspec.explain, embeddings=path)
        for other in others:
            for role in ("draft", "head", "mmproj"):
                yield partial(localspec.explain, target=other.path, **{role: path})
        yield partial(search_folder, path.parent)


class _Bytes:
    """A file on another machine."""

    name = "far.gguf"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


def _open_models(role: str) -> Callable[[Path], Read]:
    """Loaded as a target, a draft or a head, and asked for a few tokens."""

    def opened(folder: Path) -> Read:
        own_home(folder)
        import localspec

        path = folder / "read.gguf"
        others = {} if role == "target" else {"target": folder / "target.gguf"}
        if role == "draft":
            others["draft_tokens"] = 3  # type: ignore[assignment]

        def read(data: bytes) -> None:
            path.write_bytes(data)
            given: dict[str, Any] = {role: path, **others, **_LOADED}
            with localspec.load(**given) as engine:
                engine.generate_raw("ab", max_tokens=4, seed=1).reply()

        return read

    return opened


def _open_projectors(folder: Path) -> Read:
    own_home(folder)
    from localspec.engine.vision import open_projector
    from localspec.gguf_file.header import read_header
    from localspec.gguf_file.projector import require_free_of_place
    from localspec.gguf_file.projector_check import checked_projector, require_projector_of
    from localspec.llama.model import LlamaModel
    from localspec.llama.options import LlamaOptions
    from localspec.pictures.cells import cell_rows
    from localspec.pictures.picture import Picture

    options = LlamaOptions(context_length=512, num_threads=1)
    models = {k: LlamaModel.open(folder / f"{k}.gguf", options) for k in _SEEING}
    headers = {kind: read_header(folder / f"{kind}.gguf") for kind in _SEEING}
    picture, path = Picture(40, 60, bytes(7200)), folder / "read.gguf"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        kind = next((each for each in _SEEING if each.encode() in data), _SEEING[0])
        header = checked_projector(path)
        require_free_of_place(header)
        require_projector_of(headers[kind], header)
        projector = open_projector(header, options, models[kind], None)
        try:
            projector.content = "any"
            cells = projector.cells(picture)
            for row in cell_rows(cells):
                part = projector.part([cells[place] for place in row])
                projector.rows(part, lambda: False)
        finally:
            models[kind].vision = None
            projector.close()

    return read


def _open_embedders(folder: Path) -> Read:
    own_home(folder)
    import localspec

    path = folder / "read.gguf"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with localspec.load_embedder(path, num_threads=1) as embedder:
            ask = partial(embedder.rank, "a", ["b c"]) if embedder.ranks else partial(
                embedder.embed, ["a", "b c"]
            )  # fmt: skip
            ask()

    return read


KINDS: dict[str, Kind] = {
    "headers": Kind("headers of GGUF files", _make_headers, _gguf, _open_headers, 2.0),
    "targets": Kind(
        "targets", _make_targets, _gguf, _open_models("target"), 3.0, is_native=True
    ),
    "drafts": Kind("drafts", _make_drafts, _gguf, _open_models("draft"), 2.0, is_native=True),
    "heads": Kind("heads", _make_heads, _gguf, _open_models("head"), 2.0, is_native=True),
    "projectors": Kind(
        "projectors", _make_projectors, _gguf, _open_projectors, 2.0, is_native=True
    ),
    "embedders": Kind("embedders", _make_embedders, _gguf, _open_embedders, is_native=True),
}
