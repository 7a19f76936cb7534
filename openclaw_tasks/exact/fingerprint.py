"""The arithmetic fingerprint: on machines that share it, equal inputs give equal bits."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

_DISPATCH_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve", "bf16")
"""CPU features by which MKL and oneDNN choose among kernels that round differently."""
_DISPATCH_VARIABLES = (
    "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip


def set_deterministic(threads: int) -> None:
    """Set this process to deterministic arithmetic with `threads` threads an operation.

    Call it before any tensor work: cuBLAS reads its workspace setting once.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # It would fill every new tensor with NaN: a pass over memory for programs that read what they
    # never wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def arithmetic_fingerprint(threads: int) -> dict[str, str]:
    """What bits depend on, as text by name; `threads` is the job's threads per rank."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else _cpu_vendor(),
        "isa": _isa(),
        "torch": str(torch.__version__),
        "threads": str(threads),
        "deterministic": "yes" if torch.are_deterministic_algorithms_enabled() else "no",
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "") if cuda else "",
    }


def _isa() -> str:
    parts = [torch.backends.cpu.get_cpu_capability(), *(f for f in _DISPATCH_FLAGS if f in _cpu_flags())]
    chosen = [f"{name}={os.environ[name]}" for name in _DISPATCH_VARIABLES if os.environ.get(name)]
    return " ".join([*parts, *chosen])


def _cpu_info() -> dict[str, str]:
    """The first processor's fields; empty where the system has no /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def _cpu_flags() -> set[str]:
    info = _cpu_info()
    return set((info.get("flags") or info.get("Features") or "").split())


def _cpu_vendor() -> str:
    vendor = _cpu_info().get("vendor_id", "")
    return " ".join(part for part in ("cpu", platform.machine(), vendor) if part)
