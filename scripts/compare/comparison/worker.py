"""The inside of a worker process: requests come as JSON lines, answers leave as such."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict

from comparison.contender import Answer, Request
from localspec.errors import LocalspecError


def serve(make: Callable[[dict[str, object]], Callable[[Request], Answer]]) -> None:
    """Answer until standard input ends.

    make: takes the options of the command line and loads what answers.
    """
    # Output of libraries must not end up between the answers.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(message: dict[str, object]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        sys.stdin.readline()  # the parent's greeting
        answer = make(json.loads(sys.argv[1]))
        reply({})
        for line in sys.stdin:
            reply(asdict(answer(Request(**json.loads(line)))))
    except LocalspecError as error:
        reply({"error": str(error), "hint": error.hint})
