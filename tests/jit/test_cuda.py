"""The NVIDIA driver and OptiX, asked by ``ctypes``."""

import ctypes

from support.machines import linux

from coopnet.jit.native import cuda


class Driver:
    """NVIDIA's driver: what ``ctypes`` makes of libcuda, with two GPUs, of which the first cannot be named."""

    def __init__(self, initialized=0, counted=0):
        self.initialized, self.counted = initialized, counted

    def cuDriverGetVersion(self, number):
        number._obj.value = 12090

    def cuInit(self, flags):
        assert flags == 0  # all that CUDA accepts
        return self.initialized

    def cuDeviceGetCount(self, count):
        count._obj.value = 3
        return self.counted

    def cuDeviceGet(self, device, i):
        device._obj.value = 10 + i
        return 0 if i < 2 else 101

    def cuDeviceGetName(self, name, length, device):
        assert ctypes.sizeof(name) == length
        name.value = f"GPU {device.value}".encode()
        return 0 if device.value > 10 else 1


def module_of_the_kernel(monkeypatch, text):
    """Make NVIDIA's say this about itself, or be missing."""

    class File:
        def __init__(self, path):
            assert path == "/proc/driver/nvidia/version"

        def read_text(self):
            if text is None:
                raise FileNotFoundError
            return text

    monkeypatch.setattr(cuda, "Path", File)


@linux
def test_the_driver_is_asked(monkeypatch):
    ask = cuda.driver.__wrapped__
    monkeypatch.delenv("DRJIT_LIBCUDA_PATH", raising=False)
    loaded, text = [], "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\nGCC version 12.2.0"
    module_of_the_kernel(monkeypatch, text)

    drivers = [Driver(), Driver(initialized=100), Driver(counted=100), Driver(), Driver()]

    def load(name):
        loaded.append(name)
        return drivers.pop(0)

    monkeypatch.setattr(cuda.ctypes, "CDLL", load)
    assert ask() == ("570.86.15", "12.9", ["GPU 11"])
    monkeypatch.setenv("DRJIT_LIBCUDA_PATH", "/mine/libcuda.so")
    for _ in range(2):  # it does not start, and does not count
        assert ask() == ("570.86.15", "12.9", [])
    assert loaded == ["libcuda.so.1", "/mine/libcuda.so", "/mine/libcuda.so"]
    module_of_the_kernel(monkeypatch, "nothing known")
    assert ask()[0] == ""
    module_of_the_kernel(monkeypatch, None)
    assert ask()[0] == ""

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(cuda.ctypes, "CDLL", missing)
    assert ask() == ("", "", [])


@linux
def test_optix_is_loaded(monkeypatch):
    usable, loaded = cuda.has_optix.__wrapped__, []
    monkeypatch.setattr(cuda.ctypes, "CDLL", loaded.append)
    monkeypatch.delenv("DRJIT_LIBOPTIX_PATH", raising=False)
    assert usable() is True
    monkeypatch.setenv("DRJIT_LIBOPTIX_PATH", "/mine/optix.so")
    assert usable() is True
    assert loaded == ["libnvoptix.so.1", "/mine/optix.so"]
    monkeypatch.undo()
    monkeypatch.setenv("DRJIT_LIBOPTIX_PATH", "/nonsense/optix.so")
    assert usable() is False
