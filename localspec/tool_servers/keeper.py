"""How a server's program is started so that it ends with this process, even after a crash."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

# A shell script that starts a watcher and then the server, in one group of processes. Once this
# process or the server has ended, the watcher kills the group: the server, its children, and
# itself. By `exec` the server replaces the shell and keeps its process id, stdin and stdout.
# $0 is the id of this process, $$ the server's. The shell sets PWD, which is removed again.
_WATCHED = (
    '(while kill -0 "$0" && kill -0 "$$"; do sleep 1; done; kill -KILL 0) '
    '</dev/null >/dev/null 2>&1 & unset PWD OLDPWD; exec "$@"'
)


def watched_command(command: str, args: Sequence[str]) -> list[str]:
    """The command line of a program, with a watcher that ends the program after this process.

    On Windows there is no watcher: the program is in a job, which ends with this process.
    """
    if sys.platform == "win32":
        return [command, *args]
    return ["/bin/sh", "-c", _WATCHED, str(os.getpid()), command, *args]


def program_of(command: str, env: Mapping[str, str]) -> str | None:
    """The path of a command's program; None if it is not found.

    Args:
        command: a name or a path.
        env: the server's own variables, in whose PATH a name is looked for; without a PATH
            there, that of this process counts.
    """
    path = os.path.expanduser(command)
    return shutil.which(path, path=env.get("PATH"))
