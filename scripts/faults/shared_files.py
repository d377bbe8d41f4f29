"""What several processes do at once with the files that localspec shares among them.

Each kind has a function for a process that works until it is told to end, or killed, and one
that looks at what is left. They write lines into a ledger: "kept X" once something was said to
be kept, "did" for what is counted only, "busy" where another process was in the way, which is
not counted, and "lost …".
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

EXPECTED = "expected.json"  # of `caches`: the answers of an engine that is alone
PRESET = "qwen2-7b"
_EXPECTED_WORDS = (  # of errors about a file that another process has just removed
    "not on this machine", "there is no file", "removed in the meantime", "No such file",
)  # fmt: skip
_NUM_KEPT_TURNS = 20
_CACHE_BYTES = 1_500_000  # for four texts
_FOLDERS = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
_TALES = tuple(
    f"Tell me of {who}. " + " ".join(f"It met {who} {n} on hill {n + 7}." for n in range(14))
    for who in ("foxes", "owls", "hens", "a bear")
)


@dataclass
class Work:
    """A process's part. number: its own. seconds: how long it works, once it has begun."""

    folder: Path
    number: int
    chance: random.Random
    seconds: float
    _until_s: float | None = None

    def goes_on(self) -> bool:
        """Whether to do more; True the first time, which may come late."""
        if self._until_s is None:
            self._until_s = time.monotonic() + self.seconds
            return True
        return time.monotonic() < self._until_s

    @property
    def ledger(self) -> Path:
        """Beside the folder, which may be full, or gone."""
        return self.folder.with_suffix(".ledger")

    def note(self, line: str) -> None:
        """Append it to the ledger, as a whole."""
        found = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(found, f"{line}\n".encode())
        os.close(found)

    def lines(self, word: str) -> list[str]:
        """What stands behind that word in the ledger."""
        lines = self.ledger.read_text("utf-8").splitlines()
        return [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")]


class _Warnings(logging.Handler):
    """Nothing that goes wrong on disk is to be expected."""

    def __init__(self, work: Work) -> None:
        super().__init__(logging.WARNING)
        self._work = work

    def emit(self, record: logging.LogRecord) -> None:
        self._work.note(f"lost it was logged: {record.getMessage()[:200]!r}")


# --- sessions


def change_session(work: Work) -> None:
    """Append turns to one session, each under its lock; read it in between."""
    from localspec.chat.session import lock_session, read_session, save_session
    from localspec.errors import SessionError

    while work.goes_on():
        number = _session_number(read_session("s"))
        try:
            lock = lock_session("s")
        except SessionError as error:
            is_busy = "is open in another localspec" in str(error)
            work.note("busy" if is_busy else f"lost the lock: {error!r}")
            continue
        number = _session_number(read_session("s")) + 1
        turns = range(max(1, number - _NUM_KEPT_TURNS), number + 1)
        said = [message for turn in turns for message in _turn(turn)]
        chat: Any = SimpleNamespace(transcript=said, num_asked=number, num_forgotten=0)
        save_session("s", chat)
        work.note(f"kept {number}")
        lock.release()


def _turn(number: int) -> list[dict[str, str]]:
    text = f"{number} " * (50 + number % 400)
    return [{"role": role, "content": text} for role in ("user", "assistant")]


def _session_number(session: Any) -> int:
    """Of its last turn. Raises ValueError if it is a mixture."""
    if session is None:
        return 0
    number: int = session.num_asked
    first = number - len(session.messages) // 2 + 1
    turns = [_turn(each) for each in range(first, number + 1)]
    if session.messages != [message for turn in turns for message in turn]:
        raise ValueError(f"the session is a mixture: {str(session.messages)[:200]}")
    return number


def check_session(work: Work) -> None:
    """The last turn that was said to be kept is there."""
    from localspec.chat.session import lock_session, read_session

    most = max(map(int, work.lines("kept")), default=0)
    lock_session("s").release()
    if (found := _session_number(read_session("s"))) < most:
        work.note(f"lost turn {most} was kept, and {found} is the last")


# --- costs


def change_costs(work: Work) -> None:
    """Replace one profile again and again, and read it."""
    from localspec.policy.profile import Profile

    profile = Profile(["target · 1", "draft · 2"])
    while work.goes_on():
        profile.save({"n": [work.chance.random()] * work.chance.randrange(1, 3000)})
        work.note("kept costs")
        found = profile.load()
        if found is None or len(set(found["n"])) != 1:
            work.note(f"lost the costs are {str(found)[:100]}")


def check_costs(work: Work) -> None:
    """It is whole."""
    change_costs(replace(work, seconds=0.0, _until_s=None))


# --- names and presets


def change_names(work: Work) -> None:
    """Add and remove aliases and presets of one's own."""
    from localspec.presets import names, user_presets

    target, count = _demo("target"), 0
    while work.goes_on():
        count += 1
        name = f"p{work.number}-{count}-{work.chance.randrange(10**9)}"
        if is_alias := work.chance.random() < 0.6:
            names.change_names(lambda known, name=name: _with(known, name))  # type: ignore[misc]
        else:
            user_presets.add_preset(_new_preset(name, target))
        work.note(f"kept {name}")
        if work.chance.random() < 0.5:
            work.note(f"dropping {name}")
            if is_alias:
                names.change_names(lambda known, name=name: _without(known, name))  # type: ignore[misc]
            else:
                user_presets.drop_preset(name)
            work.note(f"dropped {name}")


def _demo(role: str) -> str:
    """The path of a model of the demo pair."""
    import localspec

    return str(Path(localspec.__file__).parent / f"demo/{role}.gguf")


def _new_preset(name: str, target: str) -> Any:
    from localspec.presets.user_presets import NewPreset

    return NewPreset(name=name, target=target, draft=None, description="", context_length=None)


def _with(known: Any, name: str) -> Any:
    return type(known)(known.default, {**known.aliases, name: "demo"})


def _without(known: Any, name: str) -> Any:
    return type(known)(known.default, {n: m for n, m in known.aliases.items() if n != name})


def check_names(work: Work) -> None:
    """All that was added is there, all that was dropped is not."""
    from localspec.presets.names import read_names
    from localspec.presets.presets import user_presets

    there = {*read_names().aliases, *user_presets()}
    maybe = {*work.lines("dropping")}
    for name in work.lines("kept"):
        if name not in there and name not in maybe:
            work.note(f"lost {name} was added, and is not there")
    for name in work.lines("dropped"):
        if name in there:
            work.note(f"lost {name} was removed, and is there")


# --- kept caches


def change_caches(work: Work) -> None:
    """Answer with engines that keep caches in one folder, too small for all of them."""
    import localspec

    expected = json.loads((work.folder.parent / EXPECTED).read_text("utf-8"))
    while work.goes_on():
        with localspec.load(target=_demo("draft"), cache_disk=_CACHE_BYTES, **_EXACT) as engine:
            for _ in range(work.chance.randrange(1, 4)):
                tale = work.chance.choice(_TALES)
                if (said := _told(engine, tale)) != expected[tale]:
                    work.note(f"lost {said!r} was told of {tale[:20]!r}")
                work.note("did it")


_EXACT: dict[str, Any] = {
    "exact": True, "num_threads": 1, "draft_tokens": 0, "context_length": 1024,
}  # fmt: skip


def _told(engine: Any, tale: str) -> str:
    import localspec

    greedy = localspec.SamplingParams(temperature=0)
    return str(engine.chat().send(tale, sampling=greedy, max_tokens=6).reply().text)


def check_caches(work: Work) -> None:
    """An engine finds what is left, and answers as ever."""
    change_caches(replace(work, seconds=0.0, _until_s=None))


def expect_caches(work: Work) -> None:
    """Note what an engine says that keeps nothing."""
    import localspec

    with localspec.load(target=_demo("draft"), **_EXACT) as engine:
        said = {tale: _told(engine, tale) for tale in _TALES}
    (work.folder.parent / EXPECTED).write_text(json.dumps(said), "utf-8")


# --- downloaded files


def change_files(work: Work) -> None:
    """Download the files of a preset, load them, or remove them."""
    import localspec
    from localspec.engine.disk_usage import free_disk
    from localspec.hub import patience

    patience.RETRY_DELAYS_S = (0.01,) * 5
    while work.goes_on():
        what = work.chance.randrange(3)
        try:
            if what == 0:
                localspec.download(PRESET)
            elif what == 1:
                with localspec.load(PRESET, num_threads=1, context_length=64) as engine:
                    engine.generate_raw("Hi", max_tokens=2).reply()
            else:
                free_disk(PRESET, "files", "caches", "costs")
            work.note("did it")
        except localspec.LocalspecError as error:
            work.note("busy" if _is_expected(error) else f"lost {what}: {error!r:.300}")
        time.sleep(0.05 * work.chance.random())


def _is_expected(error: Exception) -> bool:
    """Whether it says that a file is not here, or is being removed, or that no hub answers."""
    from localspec.errors import DownloadError, ModelNotFoundError, PresetError
    from localspec.hub.patience import HubBusyError

    if isinstance(error, ModelNotFoundError | HubBusyError):
        return True
    return isinstance(error, PresetError | DownloadError) and any(
        words in str(error) for words in _EXPECTED_WORDS
    )


def check_files(work: Work) -> None:
    """No file has its name unless it is right, and they can be had again."""
    import localspec
    from localspec.presets.presets import find_preset

    preset = find_preset(PRESET)
    assert preset.draft is not None
    right = {model.files[0].sha256 for model in (preset.target, preset.draft)}
    for _ in range(2):
        for path in work.folder.rglob("*.gguf"):
            if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() not in right:
                work.note(f"lost {path} is not right")
        localspec.download(PRESET)


KINDS: dict[str, tuple[Callable[[Work], None], Callable[[Work], None]]] = {
    "sessions": (change_session, check_session),
    "costs": (change_costs, check_costs),
    "names": (change_names, check_names),
    "caches": (change_caches, check_caches),
    "files": (change_files, check_files),
}


def run(
    act: Callable[[Work], None], work: Work, environment: dict[str, str], *, warns: bool = False
) -> None:
    """Do one process's part; what it raises is a loss. warns: whether it may log warnings."""
    os.environ.update(dict.fromkeys(_FOLDERS, str(work.folder)))
    os.environ.update(environment)
    handler = logging.NullHandler() if warns else _Warnings(work)
    logging.getLogger("localspec").addHandler(handler)
    try:
        act(work)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        places = ", ".join(f"{Path(each.filename).name}:{each.lineno}" for each in frames)
        work.note(f"lost {act.__name__} raised {error!r:.200}: {error!s:.200} in {places}")
    finally:
        logging.getLogger("localspec").removeHandler(handler)
