"""How a server's program is started so that it ends with us, whatever ends us."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

# A watcher in the server's own group of processes. Once we or the server have ended, it ends
# the group: the server, its children, and itself. `exec` leaves the server the number that was
# started, and its stdin and stdout. $0 is our number, $$ the server's. The shell sets PWD.
_WATCHED = (
    '(while kill -0 "$0" && kill -0 "$$"; do sleep 1; done; kill -KILL 0) '
    '</dev/null >/dev/null 2>&1 & unset PWD OLDPWD; exec "$@"'
)


def watched_command(command: str, args: Sequence[str]) -> list[str]:
    """The command that starts the program, with a watcher.

    On Windows the program is in a job, which ends with us, and needs none.
    """
    if sys.platform == "win32":
        return [command, *args]
    return ["/bin/sh", "-c", _WATCHED, str(os.getpid()), command, *args]


def program_of(command: str, env: Mapping[str, str]) -> str | None:
    """The file of a command, looked for as the server's process would; None if there is none.

    Args:
        command: a name or a path.
        env: the server's own variables, of which PATH counts.
    """
    path = os.path.expanduser(command)
    return shutil.which(path, path=env.get("PATH"))
