"""Everything that would stop a run after minutes, looked at in a second: before anything is started or written."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from openclaw_core.config.checks import check_environment
from openclaw_core.config.schema import Config
from openclaw_core.errors import UsageFindings

from .host import Host, read_host
from .memory import GIB
from .plan import Plan
from .sources import missing_sources

Finding = tuple[str, str]


def preflight(config: Config, plan: Plan | None = None, env: Mapping[str, str] | None = None, host: Host | None = None) -> None:
    """Raises UsageFindings with everything that keeps this configuration from running on this machine.

    Without a plan (serve) only what the proxy needs is looked at.
    """
    env = os.environ if env is None else env
    found = missing_sources(config)
    found += check_environment(config, env) + occupied_port(config.proxy.host, config.proxy.port)
    if plan is not None and plan.nodes == 1:
        on_gpus = plan.device == "cuda"
        found += unmet_needs(plan, config, host or read_host(gpus=on_gpus))
    if found:
        raise UsageFindings("This run can't start:", found)


def occupied_port(host: str, port: int) -> list[Finding]:
    """A finding where the address can't be bound; port 0 picks a free one and is never occupied."""
    if port == 0:
        return []
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            return [
                (
                    f"proxy.host={host} and proxy.port={port} can't be used: {reason}.",
                    "Set proxy.port=0 for a free one, or another.",
                )
            ]
    return []


def unmet_needs(plan: Plan, config: Config, host: Host) -> list[Finding]:
    """Where the plan's estimates go beyond what this machine has."""
    stated = config.partition.host_memory_gib
    limit, source = (stated * GIB, "partition.host_memory_gib") if stated is not None else (host.memory_bytes, host.source)
    found: list[Finding] = []
    need = plan.host_bytes.get(0, 0)
    if need > limit:
        what = f"The plan needs about {need / GIB:.1f} GiB of main memory, more than the {limit / GIB:.1f} GiB of {source}."
        found.append(
            (what, "Give the roles more ranks or machines, or set partition.host_memory_gib where the estimate is wrong.")
        )
    return found + (_unmet_on_gpus(plan, host) if plan.device == "cuda" else [])


def _unmet_on_gpus(plan: Plan, host: Host) -> list[Finding]:
    gpus = {gpu.index: gpu for gpu in host.gpus}
    if not gpus:
        return [
            ("No GPU is visible here: nvidia-smi shows none.", "Run on a machine with GPUs, or use --dry-run for the plan alone.")
        ]
    found: list[Finding] = []
    for role in plan.roles.values():
        for device in sorted({device for process in role.processes for device in process.devices}):
            gpu = gpus.get(device)
            if gpu is None:
                found.append(
                    (
                        f"Device {device} of the {role.name} isn't there: this machine has {_ids(gpus)}.",
                        "Set partition.allowed_devices.",
                    )
                )
            elif role.memory is not None and role.memory.least_bytes > gpu.free_bytes:
                held = (
                    ", ".join(f"pid {pid} {size / GIB:.1f} GiB" for pid, size in gpu.holders)
                    or "no process that nvidia-smi shows"
                )
                free, least = gpu.free_bytes / GIB, role.memory.least_bytes / GIB
                what = f"Device {device} has {free:.1f} GiB free, but the {role.name} needs {least:.1f} GiB; held by {held}."
                found.append((what, "End those processes, or leave the device out with partition.allowed_devices."))
    return found


def _ids(gpus: Mapping[int, object]) -> str:
    return ", ".join(map(str, sorted(gpus)))
