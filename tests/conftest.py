"""Tests run against the installed package, not against the checkout beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from localspec.vocabulary import Vocabulary

ROOT = Path(__file__).parent.parent
# `python -m pytest` puts the working directory first.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]


@pytest.fixture(scope="session")
def demo_target() -> Path:
    """The target of the pair that ships with the package."""
    from localspec.hub import locate
    from localspec.presets import find_preset

    return locate(find_preset("demo"))[0]


@pytest.fixture(scope="session")
def demo_draft() -> Path:
    """The draft of the pair that ships with the package."""
    from localspec.hub import locate
    from localspec.presets import find_preset

    draft = locate(find_preset("demo"))[1]
    assert draft is not None
    return draft


@pytest.fixture(scope="session")
def unrelated_draft(tmp_path_factory: pytest.TempPathFactory, demo_target: Path) -> Path:
    """A model with the demo pair's tokenizer and random weights."""
    from gguf_maker import write_random_model

    return write_random_model(tmp_path_factory.mktemp("models") / "random.gguf", demo_target)


@pytest.fixture(scope="session")
def demo_vocab(demo_target: Path) -> Iterator[int]:
    """libllama's pointer to the demo pair's vocabulary."""
    from llama_chain import vocabulary_of

    with vocabulary_of(demo_target) as pointer:
        yield pointer


@pytest.fixture(scope="session")
def demo_vocabulary(demo_vocab: int) -> Vocabulary:
    """The demo pair's tokens, without its weights."""
    import llama_cpp

    from localspec.vocabulary import Vocabulary

    return Vocabulary(llama_cpp, demo_vocab, lambda: None)
