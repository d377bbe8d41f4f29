"""`localspec serve` for files that no preset names. Started by `compare_clients`."""

from __future__ import annotations

import argparse
from pathlib import Path

import localspec
from localspec.presets.preset import Preset
from localspec.server.app import Limits, Server
from localspec.server.guard import AccessRules
from localspec.server.running import Runner, listen
from localspec.server.served_models import ServedModel, ServedModels


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a target and perhaps a draft.")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--ctx", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=4)  # as `localspec serve`
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    preset = Preset(
        name="compared",
        target=localspec.LocalModel(path=asked.target),
        draft=None if asked.draft is None else localspec.LocalModel(path=asked.draft),
        context_length=asked.ctx,
    )
    model = ServedModel(preset, asked.ctx)
    model.parallel = asked.parallel
    models = ServedModels([model], takes_any_name=True)
    server = Server(models, Limits())
    app = server.app(AccessRules(keys=(), hosts=(), origins=()))
    with listen(asked.host, asked.port) as listening:
        models.open_first()
        Runner(app, lambda: None, server.stop).run(sockets=[listening])


if __name__ == "__main__":
    main()
