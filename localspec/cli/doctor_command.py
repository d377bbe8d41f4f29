"""`localspec doctor`"""

from __future__ import annotations

import click

from localspec.cli.help import Command
from localspec.cli.installation import Installation, inspect_installation
from localspec.cli.json_output import json_option, write_json
from localspec.cli.screen import counted, in_flags, readable_bytes, titled
from localspec.cli.shared_options import shared
from localspec.llama.devices import Device
from localspec.system.machine import Cores


@click.command(cls=Command)
@json_option("object with everything found")
@shared("rpc", help="Check these RPC servers, too.")
def doctor(*, as_json: bool, rpc: tuple[str, ...] | None) -> None:
    """Show what is installed, and what to improve.

    Versions, the build of llama.cpp, devices, cores, memory and caches. Each problem comes with
    its remedy. Nothing is sent over the network, except to llama.cpp RPC servers named here or
    in one of your presets.

    \b
        localspec doctor
        localspec doctor --json
        localspec doctor --rpc workshop-pc:50052
    """
    # Imported here, because it loads libllama, which other commands do not need at once.
    from localspec.llama.quirks.nextn import missing_functions

    found = inspect_installation(rpc or ())
    for_layers = missing_functions(reads_layers=True)
    # Behind libllama, because it loads NumPy.
    from localspec.engine.cache_store import kept_folder, kept_sizes

    sizes = kept_sizes()
    if as_json:
        write_json(found, missing_head_functions=for_layers, kept_conversations=sizes)
        return
    count = counted(len(sizes), "conversation")
    size = readable_bytes(sum(sizes.values()))
    conversations = f"{kept_folder()}: {count} kept by servers, {size}"
    heads = _heads(missing_functions(reads_layers=False), for_layers)
    problems = found.problems
    click.echo(titled(_blocks(found, heads, conversations)))
    for one in problems:
        click.echo()
        click.echo(titled([("Problem", [one.what]), ("Remedy", [in_flags(one.remedy)])]))
    if not problems:
        click.echo("\nNo problems found.")


def _blocks(found: Installation, heads: str, conversations: str) -> list[tuple[str, list[str]]]:
    packages = ", ".join(f"{name} {version}" for name, version in found.packages.items())
    cache = found.cache
    memory = found.memory
    presets = f"{found.presets_file}{'' if found.presets_file.exists() else ' (none yet)'}"
    size = readable_bytes(cache.size_bytes)
    disk = readable_bytes(cache.free_bytes)
    profiles = (
        f"{found.profiles_folder}: measured speeds of {counted(found.num_profiles, 'pair')}"
    )
    return [
        ("localspec", [f"{found.version}, Python {found.python}, {found.system}"]),
        ("Packages", [packages]),
        ("llama.cpp", [f"{found.library}: {found.build}"]),
        ("Heads", [heads]),
        *(("Device", [_device(device)]) for device in found.devices),
        ("Measured", list(found.trials)),
        ("Cores", [_cores_in_words(found.cores)]),
        ("Memory", [_free_of(memory.available_bytes, memory.total_bytes)]),
        ("Cache", [f"{cache.path}: {size}, {disk} of disk free"]),
        ("Profiles", [profiles]),
        ("Conversations", [conversations]),
        ("Presets", [presets]),
    ]


def _device(device: Device) -> str:
    what = f"{device.name}: {device.description}, {device.kind}"
    if device.kind == "CPU":  # its memory has a line of its own
        return what
    return f"{what}, {_free_of(device.free_bytes, device.total_bytes)}"


def _free_of(free_bytes: int, total_bytes: int) -> str:
    return f"{readable_bytes(free_bytes)} of {readable_bytes(total_bytes)} free"


def _heads(missing: tuple[str, ...], for_layers: tuple[str, ...]) -> str:
    """The trained heads that libllama supports.

    Args:
        missing: Functions that all heads lack.
        for_layers: Functions that EAGLE-3 and DFlash lack.
    """
    if missing:
        return f"off: this libllama lacks {', '.join(missing)}; another version may have them"
    if for_layers:
        return f"MTP; for EAGLE-3 and DFlash this libllama lacks {', '.join(for_layers)}"
    return "trained heads can draft here (MTP, EAGLE-3, DFlash)"


def _cores_in_words(cores: Cores) -> str:
    """The number of cores that a model uses, and the reasons against the others."""
    others = {
        "excluded core": cores.logical - cores.allowed,  # not open to this process
        "efficiency core": cores.efficiency,
        "hyperthread": cores.hyperthreads,
    }
    reasons = [counted(number, what) for what, number in others.items() if number]
    if cores.is_bound_by_quota:
        reasons.append(f"the container's quota is {cores.quota:g}")
    used = f"{cores.usable} of {counted(cores.logical, 'core')}"
    if reasons:
        return f"{used}; not used: {', '.join(reasons)}"
    return used
