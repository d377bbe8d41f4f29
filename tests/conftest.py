"""Tests run against the installed package, not against the checkout beside them."""

from __future__ import annotations

import gc
import importlib
import inspect
import multiprocessing.process
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from examples import num_examples

if TYPE_CHECKING:
    import anthropic
    import openai

    import localspec
    from engines import SharedEngine
    from localspec.llama.model_vocabulary import LlamaVocabulary
    from server_runner import Running
    from standin_hub import StandinHub

ROOT = Path(__file__).parent.parent
# `python -m pytest` puts the working directory first.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]


# Many tests promise the same text from decodes of several sizes, which GPUs do not keep.
# Children and servers inherit this. Metal has nothing like it.
HIDING_GPUS = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "GGML_VK_VISIBLE_DEVICES": "",
    "LOCALSPEC_MEASURE": "0",  # a Mac's GPU is used by rule, without a process
}


def _is_on_gpu(config: pytest.Config) -> bool:
    markers: str = config.option.markexpr
    return markers == "gpu" and os.environ.get("LOCALSPEC_TEST_DEVICE") != "cpu"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs, unless tests of them were asked for, before libllama is loaded."""
    if not _is_on_gpu(config):
        os.environ.update(HIDING_GPUS)
    # Finds a library for llama_cpp, which tests import by themselves, too.
    importlib.import_module("localspec.llama.loaded")
    importlib.import_module("numpy.testing")  # that of NumPy 1.26 starts lscpu


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One process on a GPU, whose memory tests look at; else as many as usual."""
    return 1 if _is_on_gpu(config) else None


WORKER = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
if WORKER and hasattr(os, "sched_setaffinity"):
    # A core for each worker and its children: libllama then takes one thread, and terminals
    # and timings do not wait for another worker's decodes.
    CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {CORES[int(WORKER) % len(CORES)]})

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts this in the background has Ctrl-C ignored, here and in all children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# No test holds a time.
hypothesis.settings.register_profile("localspec", deadline=None, max_examples=num_examples(100))
hypothesis.settings.load_profile("localspec")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: looking for garbage in it would take 0.15 s each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what was not tested for want of a program."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
    lacking = re.compile(r"Skipped: (\S+) is (?:not installed|missing)")
    found = map(lacking.match, reasons)
    if missing := sorted({each[1] for each in found if each}):
        terminalreporter.write_line(
            f"skipped what needs {', '.join(missing)}: not installed here", yellow=True
        )


# What these start belongs to no test: a process of ours tries whether this machine's kernels
# are right, and the standard library asks others what machine this is.
_MAY_START = {"localspec.llama.quirks.own_process", "platform", "ctypes.util"}


class _Processes:
    """Notes what starts a process in a test that has neither of the marks that allow it."""

    def __init__(self) -> None:
        self.is_allowed = True
        self.started: list[str] = []

    def noted(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """The function that starts one, which is noted."""

        def noted_start(*arguments: Any, **keywords: Any) -> Any:
            frame = None if self.is_allowed else inspect.currentframe()
            names = set()
            while frame is not None:
                names.add(frame.f_globals.get("__name__"))
                frame = frame.f_back
            if names and not names & _MAY_START:
                self.started.append(f"{start.__qualname__}{arguments[1:]}")
            return start(*arguments, **keywords)

        return noted_start


_PROCESSES = _Processes()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Whether the test, and what it sets up, may start processes."""
    marks = {mark.name for mark in item.iter_markers()}
    _PROCESSES.is_allowed = bool(marks & {"process", "slow"})


@pytest.fixture(scope="session", autouse=True)
def _watched_processes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (subprocess.Popen, "__init__"),
            (multiprocessing.process.BaseProcess, "start"),
            (os, "fork"),
            (os, "forkpty"),
        ):
            if start := getattr(owner, name, None):
                patch.setattr(owner, name, _PROCESSES.noted(start))
        yield


@pytest.fixture(autouse=True)
def _process_mark(_watched_processes: None) -> Iterator[None]:
    """What starts a process has the mark: what has none is quick, and runs everywhere."""
    yield
    started, _PROCESSES.started = _PROCESSES.started, []
    assert not started, "a test that starts a process needs @pytest.mark.process"


@pytest.fixture(scope="session", autouse=True)
def _own_profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is measured in tests, on a busy machine, is not for the user's own runs.

    And what the user chose is not for the tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("LOCALSPEC_MODEL", raising=False)
        yield


def _demo_file(role: str) -> Path:
    """The file of the demo's target, draft or EAGLE-3 head, which ship with the package."""
    from localspec.presets.located import locate
    from localspec.presets.presets import find_preset

    return locate(find_preset("demo@head" if role == "head" else "demo"))[role]


@pytest.fixture(scope="session")
def demo_target() -> Path:
    return _demo_file("target")


@pytest.fixture(scope="session")
def demo_draft() -> Path:
    return _demo_file("draft")


@pytest.fixture(scope="session")
def demo_head() -> Path:
    return _demo_file("head")


@pytest.fixture(scope="session")
def exact_target(demo_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo target for tests that compare texts, whose decodes have different sizes."""
    from exact_files import exact_copy

    return exact_copy(demo_target, tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="session")
def _shared_engine() -> Iterator[SharedEngine]:
    from engines import SharedEngine

    shared = SharedEngine()
    yield shared
    shared.close()


@pytest.fixture
def engine(_shared_engine: SharedEngine) -> localspec.Engine:
    """The demo pair with three draft tokens, as it was loaded."""
    return _shared_engine.as_loaded()


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[Running]:
    from server_runner import running_server

    with running_server() as running:
        yield running


@pytest.fixture
def server(_shared_server: Running) -> Running:
    """A server of the demo pair that nobody has asked anything yet."""
    _shared_server.forget()
    return _shared_server


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of whom neither the environment nor the system names a home folder."""
    pwd = pytest.importorskip("pwd", reason="users of Unix")

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, of Playwright."""
    from page_driver import headless_browser

    with headless_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Any]:
    """The server's page, of a visitor who was never here."""
    from page_driver import visitor

    with visitor(browser, server.url) as page:
        yield page


@pytest.fixture
def openai_client(server: Running) -> Iterator[openai.OpenAI]:
    openai = pytest.importorskip("openai", reason="openai is not installed")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(server: Running) -> Iterator[anthropic.Anthropic]:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, in which the user has chosen nothing."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("XDG_CONFIG_HOME", "HOME", "USERPROFILE", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(home))
    return home


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once."""
    from localspec.hub import api

    monkeypatch.setattr(api, "RETRY_DELAYS_S", (0.01,) * 5)


@pytest.fixture(scope="session")
def unrelated_draft(tmp_path_factory: pytest.TempPathFactory, demo_target: Path) -> Path:
    """A model with the demo pair's tokenizer and random weights."""
    from gguf_maker import write_random_model

    return write_random_model(tmp_path_factory.mktemp("models") / "random.gguf", demo_target)


@pytest.fixture(scope="session")
def blurred_draft(tmp_path_factory: pytest.TempPathFactory, demo_draft: Path) -> Path:
    """A draft for the demo's draft, with which it often agrees: a pair that decodes quickly."""
    from gguf_maker import write_blurred

    path = tmp_path_factory.mktemp("models") / "blurred.gguf"
    return write_blurred(path, demo_draft, noise=0.2)


@pytest.fixture(scope="session")
def demo_vocab(demo_target: Path) -> Iterator[int]:
    """libllama's pointer to the demo pair's vocabulary."""
    from llama_chain import vocabulary_of

    with vocabulary_of(demo_target) as pointer:
        yield pointer


@pytest.fixture(scope="session")
def demo_vocabulary(demo_vocab: int) -> LlamaVocabulary:
    """The demo pair's tokens, without its weights."""
    import threading

    from localspec.llama.model_vocabulary import LlamaVocabulary

    return LlamaVocabulary(demo_vocab, lambda: None, threading.Lock())


@pytest.fixture(scope="session")
def pair_files(
    tmp_path_factory: pytest.TempPathFactory, demo_target: Path
) -> tuple[bytes, bytes]:
    """Two real GGUF files with random weights, to be served under a preset's names."""
    from gguf_maker import write_random_model

    folder = tmp_path_factory.mktemp("served")
    return tuple(
        write_random_model(
            folder / f"{width}.gguf", demo_target, width=width, context_length=512, seed=width
        ).read_bytes()
        for width in (192, 64)
    )


@pytest.fixture
def hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair_files: tuple[bytes, bytes]
) -> Iterator[StandinHub]:
    """A hub on loopback with the flagship's names, and an empty home and cache.

    The user's presets pin qwen2-7b to the files that it serves. For this process and, by
    `environment`, for others.
    """
    from huggingface_hub import constants, file_download

    from standin_hub import COMMIT, DRAFT, REPO, SMALL, TARGET, standin_hub

    with standin_hub() as hub:
        presets = ['[qwen2-7b]\nextends = "qwen2-7b"\ncontext_length = 512\n']
        for role, repo, file, content in (
            ("target", REPO, TARGET, pair_files[0]),
            ("draft", SMALL, DRAFT, pair_files[1]),
        ):
            served = hub.add(repo, file, content)
            presets.append(
                f'[qwen2-7b.{role}]\nrepo = "{repo}"\nfile = "{file}"\nrevision = "{COMMIT}"\n'
                f'size_bytes = {len(content)}\nsha256 = "{served.sha256}"\n'
            )
        config = tmp_path / "config" / "localspec"
        config.mkdir(parents=True)
        (config / "models.toml").write_text("\n".join(presets))
        hub.environment = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HOME": str(tmp_path / "hf"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "XDG_CACHE_HOME": str(tmp_path / "xdg-cache"),
            "HOME": str(tmp_path),
        }
        for name, value in hub.environment.items():
            monkeypatch.setenv(name, value)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "LLAMA_CACHE", "OLLAMA_MODELS"):
            monkeypatch.delenv(name, raising=False)
        # huggingface_hub has read its environment already; some versions copy these names.
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (constants, file_download):
            monkeypatch.setattr(module, "ENDPOINT", hub.endpoint, raising=False)
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
        yield hub


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for caches, costs and conversations of this test alone."""
    home = tmp_path / "home"
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(home))
    return home
