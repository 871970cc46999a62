"""The machine: clock of the device, memory, launches, and the state of the chip.

`Cuda` is what numbers come from. `Host` lets the whole command run where there is no GPU; its times
say nothing about a GPU.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_SPACER = 4096  # rows and columns of the GEMM before a sample
_STATE_SPACERS = 100
_COPY_BYTES = 2 << 30
_COPY_SAMPLES = 11


@dataclass(frozen=True)
class State:
    """Of the chip at one moment; None where it does not say."""

    clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None


class Host:
    """A CPU with the interface of `Cuda`."""

    def __init__(self):
        self.device = torch.device("cpu")
        self.chip = _cpu_name()
        self.driver = self.cuda = None

    def synchronize(self) -> None:
        pass

    def spacer(self) -> None:
        """What runs before a sample."""

    def sample(self, call: Callable) -> Callable[[], float]:
        """Runs call; what comes back gives its ms once the device is synchronized."""
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        return lambda: took * 1e3

    def state(self) -> State:
        return State()

    def launches(self, call: Callable):
        """(result of call, number of kernels, memsets and memcpys or None)"""
        return call(), None

    def allocated(self) -> int | None:
        return None

    def peak(self) -> int | None:
        return None

    def reset_peak(self) -> None:
        pass

    def outside_torch(self) -> int | None:
        """Bytes in use that torch did not allocate."""
        return None

    def copy_rate(self) -> float | None:
        """Bytes a second of a large copy, reads and writes counted."""
        return None

    def release(self) -> None:
        pass


def _requested(which: str) -> int:
    """Bytes that were asked of torch's allocator: its blocks may be up to 1 MiB larger."""
    return torch.cuda.memory_stats()[f"requested_bytes.all.{which}"]


class Cuda(Host):
    """The current GPU."""

    def __init__(self):
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.chip = torch.cuda.get_device_name(self.device)
        self.driver = _nvidia_smi("driver_version")
        self.cuda = torch.version.cuda
        shape = (_SPACER, _SPACER)
        self._a = torch.randn(shape, device=self.device).bfloat16()
        self._b = torch.randn(shape, device=self.device).bfloat16()
        self._c = torch.empty_like(self._a)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def spacer(self) -> None:
        """A GEMM of about 0.2 ms: the host gets ahead, so that launching is not what is timed; L2
        holds nothing of the sample's; the chip stays under load."""
        torch.mm(self._a, self._b, out=self._c)

    def sample(self, call: Callable) -> Callable[[], float]:
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        return lambda: start.elapsed_time(end)

    def state(self) -> State:
        """Read while GEMMs run: an idle chip is at another clock at once."""
        for _ in range(_STATE_SPACERS):
            self.spacer()
        read = _read_nvml() or _read_nvidia_smi()
        torch.cuda.synchronize()
        return read

    def launches(self, call: Callable):
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            result = call()
            torch.cuda.synchronize()
        on_device = torch.autograd.DeviceType.CUDA
        return result, sum(event.device_type == on_device for event in profile.events())

    def allocated(self) -> int:
        return _requested("current")

    def peak(self) -> int:
        return _requested("peak")

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def outside_torch(self) -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    def copy_rate(self) -> float:
        source = torch.empty(_COPY_BYTES // 2, dtype=torch.bfloat16, device=self.device).normal_()
        target = torch.empty_like(source)
        pending = [self.sample(lambda: target.copy_(source)) for _ in range(_COPY_SAMPLES)]
        self.synchronize()
        ms = statistics.median(get() for get in pending[1:])
        return 2 * _COPY_BYTES / (ms * 1e-3)

    def release(self) -> None:
        """Gives cached memory back, for what is not allocated by torch."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _read_nvml() -> State | None:
    try:
        return State(
            round(torch.cuda.clock_rate()),
            round(torch.cuda.power_draw() / 1000, 1),
            round(torch.cuda.temperature()),
        )
    except Exception:  # pynvml may be missing, or be another package of that name
        return None


def _read_nvidia_smi() -> State:
    text = _nvidia_smi("clocks.sm,power.draw,temperature.gpu")
    try:
        clock, power, temperature = (float(part) for part in (text or "").split(","))
    except ValueError:
        return State()
    return State(round(clock), round(power, 1), round(temperature))


def _nvidia_smi(query: str) -> str | None:
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", index]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    name = lines[0].split(":", 1)[1].strip() if lines else platform.machine()
    return f"cpu {name}"


def content_hash(tensors: list[torch.Tensor]) -> str:
    """16 hex digits over the bits, computed where the tensors are. Equal bits, equal hash."""
    total = 0
    for tensor in tensors:
        words = tensor.detach().contiguous().flatten().view(torch.uint8)
        if words.numel() % 4:
            words = torch.nn.functional.pad(words, (0, -words.numel() % 4))
        words = words.view(torch.int32)
        for first in range(0, words.numel(), _HASH_CHUNK):
            chunk = words[first : first + _HASH_CHUNK].long()
            place = torch.arange(first, first + chunk.numel(), device=tensor.device)
            mixed = (chunk ^ (place * _HASH_ODD)) * _HASH_ODD
            mixed = (mixed ^ (mixed >> 29)) * _HASH_ODD
            total = (total * 31 + int(mixed.sum())) % 2**64
    return f"{total:016x}"


_HASH_CHUNK = 1 << 26
_HASH_ODD = 0x9E3779B97F4A7C15 - 2**64  # as a signed 64-bit integer
