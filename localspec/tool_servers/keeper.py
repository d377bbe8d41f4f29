"""How a server's program is started so that it ends with this process, even after a crash."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

# A watcher in the server's own group of processes. Once this process or the server has ended,
# the watcher ends the group: the server, its children, and itself. By `exec` the server keeps
# the shell's process number, stdin and stdout. $0 is the number of this process, $$ the
# server's. The shell sets PWD, which is removed again.
_WATCHED = (
    '(while kill -0 "$0" && kill -0 "$$"; do sleep 1; done; kill -KILL 0) '
    '</dev/null >/dev/null 2>&1 & unset PWD OLDPWD; exec "$@"'
)


def watched_command(command: str, args: Sequence[str]) -> list[str]:
    """The command that starts the program, with a watcher.

    On Windows it needs none: the program is in a job, which ends with this process.
    """
    if sys.platform == "win32":
        return [command, *args]
    return ["/bin/sh", "-c", _WATCHED, str(os.getpid()), command, *args]


def program_of(command: str, env: Mapping[str, str]) -> str | None:
    """The file of a command, as the server's process would find it; None if there is none.

    Args:
        command: a name or a path.
        env: the server's own variables; its PATH is used, if it has one.
    """
    path = os.path.expanduser(command)
    return shutil.which(path, path=env.get("PATH"))
