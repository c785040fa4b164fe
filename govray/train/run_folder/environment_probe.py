"""The environment of a process, as `govray.governance.attestation.environment` describes it.

The driver records it before the first step, and rank 0 in every commit. An attestation states that
of the last commit.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

import torch

from govray.governance.attestation.environment import SETUP, Environment, Setup, SourceCode
from govray.governance.formats import canonical_json
from govray.train.run_folder.source_code import code_digest

_OF_FRAMEWORKS: Mapping[str, tuple[str, ...]] = {"jax": ("jax", "jaxlib", "flax", "optax")}
"""What moves bits besides, of a framework that is not torch; and so for `_VARIABLES_OF`."""
_VARIABLES_OF: Mapping[str, tuple[str, ...]] = {
    "jax": ("XLA_FLAGS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION")
}

PACKAGES = (
    *("govray", "torch", "ray", "pyarrow", "numpy", "safetensors", "cryptography"),
    *("transformers", "tokenizers"),
)
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "MKL_CBWR",
    "OPENBLAS_NUM_THREADS",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "NCCL_ALGO",
    "NCCL_PROTO",
)
"""Environment variables that decide which kernel runs, or in which order it sums."""

DRIVER = Path("/proc/driver/nvidia/version")
"""Where the kernel module of NVIDIA's driver says its version, in containers too."""


def environment_here(
    *,
    seed: int,
    threads: int,
    source: SourceCode | None,
    chosen: Mapping[str, str] = MappingProxyType({}),
    device: str | None = None,
) -> Environment:
    """The environment of this process.

    Args:
        threads: Threads of one worker's kernels.
        source: As `govray.train.run_folder.source_code.source_of` found it on the driver.
        chosen: Settings of the run itself that decide which kernels run.
        device: What computes gradients; by default what torch would take.
    """
    framework = chosen.get("run.framework", "torch")
    device = device or _device()
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(terse=True),
        processor=_processor(),
        device=device,
        packages=_installed(framework) | _of_gpu(framework, device),
        code_digest=code_digest(),
        source=source,
        seeds={"run": seed},
        threads=threads,
        settings=_settings(framework) | dict(chosen),
        setup=_setup(),
    )


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _setup() -> Setup | None:
    """What the job was set up with that this process is of, if it is of one."""
    stated = os.environ.get(SETUP)
    if stated is None:
        return None
    return Setup.from_json(canonical_json.parse(stated.encode(), where=SETUP), where=SETUP)


@cache
def _installed(framework: str) -> dict[str, str]:
    """Versions of the packages that can move a bit."""
    found = {}
    for package in (*PACKAGES, *_OF_FRAMEWORKS.get(framework, ())):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _of_gpu(framework: str, device: str) -> dict[str, str]:
    """Versions of what runs torch's kernels on a GPU of this process. On a CPU nothing of it does,
    whatever torch was built with."""
    if framework != "torch" or device == "cpu" or not torch.cuda.is_available():
        return {}
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
    found = {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, nccl)),
        "nvidia-driver": _driver(),
    }
    return {name: str(each) for name, each in found.items() if each}


def _driver() -> str | None:
    try:
        said = DRIVER.read_text("utf-8", "replace").partition("\n")[0]
    except OSError:
        return None
    number = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", said.partition("Kernel Module")[2])
    return number[0] if number else None


@cache
def _processor() -> str:
    """The CPU's model, and the widest instructions that torch uses on it."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware") and value.strip():
            model = value.strip()
            break
    return f"{model[:256]}, {torch.backends.cpu.get_cpu_capability()}"


def _settings(framework: str) -> dict[str, str]:
    deterministic = "off"
    if torch.are_deterministic_algorithms_enabled():
        deterministic = "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"
    found = {
        "torch.deterministicAlgorithms": deterministic,
        "torch.float32MatmulPrecision": torch.get_float32_matmul_precision(),
        "cuda.matmul.fp32Precision": torch.backends.cuda.matmul.fp32_precision,
        "cudnn.conv.fp32Precision": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "cudnn.deterministic": str(torch.backends.cudnn.deterministic),
        "cudnn.benchmark": str(torch.backends.cudnn.benchmark),
        "mkldnn": str(torch.backends.mkldnn.enabled),
    }
    return found | {
        f"env.{name}": os.environ[name][:256]
        for name in (*VARIABLES, *_VARIABLES_OF.get(framework, ()))
        if os.environ.get(name)
    }
