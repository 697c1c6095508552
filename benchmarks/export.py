"""What an evaluation of an exported field costs: C on one core, and shaders, beside Dr.Jit's own kernel.

Nanoseconds per evaluation, medians. C is compiled with ``cc -O3 -march=native``, and once more with ``-ffast-math``,
which lets sums be reordered and so be done by vectors. Shaders are dispatched often enough to subtract what a
submission costs: WGSL by wgpu on Vulkan; Slang, with and without cooperative vectors, by slangpy on Vulkan, or on the
CPU where it finds no such device. With ``--tcnn``, inference of the same networks by tiny-cuda-nn is measured, too, by
its precompiled kernels and by those that it compiles at run time (``tcnn.py``). ``drjit_us`` are microseconds of
Dr.Jit's kernel by the power of two of the samples: on CUDA, a launch through OptiX costs some in any case. What cannot
run is in the results with the reason. Without a GPU, ``VK_ICD_FILENAMES`` may name Mesa's lavapipe.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
import tcnn

import coopnet as cn  # isort: skip
import drjit as dr


def _network(width: int, layers: int) -> dict[str, Any]:
    return {"otype": "FullyFusedMLP", "activation": "ReLU", "output_activation": "None",
            "n_neurons": width, "n_hidden_layers": layers}  # fmt: skip


#: Samples, as powers of two, for which Dr.Jit's kernel is timed besides, by the backend.
SIZES = {"cuda": (16, 20, 22, 24), "llvm": (12, 16)}
#: Numbers of outputs, and configurations that coopnet and tiny-cuda-nn read. All networks have three inputs.
FIELDS: dict[str, tuple[int, dict[str, Any]]] = {
    "3-32-32-1, relu": (1, {"encoding": {"otype": "Identity"}, "network": _network(32, 2)}),
    "3-64-64-64-3, relu": (3, {"encoding": {"otype": "Identity"}, "network": _network(64, 3)}),
    "hash grid, 8 levels, 32-32-1": (1, {
        "encoding": {"otype": "HashGrid", "n_levels": 8, "n_features_per_level": 2, "log2_hashmap_size": 14,
                     "base_resolution": 8, "per_level_scale": 16 ** (1 / 7)},
        "network": _network(32, 2),
    }),
}  # fmt: skip
GROUP, DISPATCHES = 64, 9
PRECISIONS = ("single", "half")
_MANY = """
#include "{source}"
void many(const uint32_t *weights, const float *x, float *y, size_t n) {{
    for (size_t i = 0; i < n; ++i) field(weights, x + {inputs} * i, y + {outputs} * i);
}}
"""
_WGSL = """
@group(0) @binding(0) var<storage, read> field_weights: array<u32>;
@group(0) @binding(1) var<storage, read> points: array<f32>;
@group(0) @binding(2) var<storage, read_write> results: array<f32>;
{source}
@compute @workgroup_size({group})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let t = id.x + {width}u * id.y;
    var x: array<f32, {inputs}>;
    for (var i = 0u; i < {inputs}u; i++) {{ x[i] = points[t * {inputs}u + i]; }}
    var y: array<f32, {outputs}>;
    field(x, &y);
    for (var i = 0u; i < {outputs}u; i++) {{ results[t * {outputs}u + i] = y[i]; }}
}}
"""
_SLANG = """
{source}
ByteAddressBuffer words;
StructuredBuffer<float> points;
RWStructuredBuffer<float> results;

[shader("compute")] [numthreads({group}, 1, 1)]
void main_many(uint3 id: SV_DispatchThreadID) {{
    uint t = id.x;
    float x[{inputs}];
    for (uint i = 0; i < {inputs}; ++i) x[i] = points[t * {inputs} + i];
    float y[{outputs}];
    field(words, x, y);
    for (uint i = 0; i < {outputs}; ++i) results[t * {outputs} + i] = y[i];
}}
"""


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        fields=dict(nargs="+", default=list(FIELDS), choices=list(FIELDS), metavar="FIELD"),
        log2_samples=dict(type=int, help="16 on LLVM, 20 on CUDA unless given; C takes 16"),
        tcnn=dict(type=Path, metavar="SOURCE", help="a source tree of tiny-cuda-nn to build and compare with"),
    )
    samples, rows, devices = 1 << (args.log2_samples or (20 if args.backend == "cuda" else 16)), [], {}
    runners = {"wgsl": wgsl, "slang": slang, "slang-coopvec": slang}
    for name in args.fields:
        outputs, config = FIELDS[name]
        field = cn.from_config(3, outputs, config).field.build(args.backend, seed=1)
        points = np.random.default_rng(1).random((max(samples, 1 << max(SIZES[args.backend])), 3), np.float32)
        x = points[:samples]
        row: dict[str, Any] = {"field": name, "samples": samples, "ns": drjit_kernels(field, x, args.backend)}
        row["drjit_us"] = {n: drjit_us(field, points[: 1 << n], args.backend) for n in SIZES[args.backend]}
        row["difference"] = {}
        for precision in PRECISIONS:
            for target, run in {"c": in_c, "c, fast math": in_c, **runners}.items():
                if (target, precision) == ("slang-coopvec", "single"):
                    continue
                try:
                    way = f"{target}, {precision}"
                    row["ns"][way], row["difference"][way], devices[target] = run(field, x, target, precision)
                except Exception as error:  # no device, no package, no such feature
                    said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                    row.setdefault("missing", {})[f"{target}, {precision}"] = said
        if args.tcnn is not None:
            try:
                row["ns"] |= tcnn.inference(args.tcnn, config, 3, outputs, samples)
            except Exception as error:  # no compiler, no GPU
                row.setdefault("missing", {})["tiny-cuda-nn"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        rows.append(row)
        print(name, {k: round(v, 3) for k, v in row["ns"].items()}, row.get("missing", ""), flush=True)
    print("written to", common.write("export", args.backend, {"devices": devices, "rows": rows}, args.out))


def drjit_us(field: cn.NeuralField, x: np.ndarray, backend: str) -> float:
    """Kernel time of a plain call, in microseconds."""
    single = cn.backend.namespace(backend).Float
    p = [single(np.ascontiguousarray(v)) for v in x.T]
    dr.eval(p)

    def run() -> None:
        dr.eval(field(p))
        dr.sync_thread()

    return 1e3 * common.kernel_times(run)["kernel_ms"]


def drjit_kernels(field: cn.NeuralField, x: np.ndarray, backend: str) -> dict[str, float]:
    """Kernel times of a plain call, in nanoseconds per evaluation; on LLVM with one thread, too."""
    threads, found = dr.thread_count(), {"drjit": 1e3 * drjit_us(field, x, backend) / len(x)}
    if backend == "llvm":
        dr.set_thread_count(1)
        found["drjit, one thread"] = 1e3 * drjit_us(field, x, backend) / len(x)
        dr.set_thread_count(threads)
    return found


def exported(field: cn.NeuralField, target: str, precision: str, folder: str) -> tuple[str, np.ndarray, int]:
    """Source, weights, and the number of outputs."""
    written = cn.export(field, target, Path(folder, "field.txt"), precision=precision, inline=False)
    assert written.weights is not None
    outputs = len(field([cn.backend.namespace(dr.backend_v(next(iter(field.values())))).Float(0.5)] * 3))
    return written.source.read_text(), np.fromfile(written.weights, np.uint32), outputs


def in_c(field: cn.NeuralField, x: np.ndarray, target: str, precision: str) -> tuple[float, float, str]:
    with tempfile.TemporaryDirectory() as folder:
        source, weights, outputs = exported(field, "c", precision, folder)
        Path(folder, "field.c").write_text(source)
        Path(folder, "many.c").write_text(_MANY.format(source="field.c", inputs=3, outputs=outputs))
        library, flags = Path(folder, "many.so"), ["-O3", "-march=native", *["-ffast-math"] * ("fast" in target)]
        subprocess.run(["cc", *flags, "-shared", "-fPIC", Path(folder, "many.c"), "-o", library, "-lm"], check=True)
        many, n = ctypes.CDLL(str(library)).many, min(len(x), 1 << 16)
        y = np.zeros((n, outputs), np.float32)
        pointers = [ctypes.c_void_p(v.ctypes.data) for v in (weights, x, y)]
        seconds = common.median_seconds(lambda: many(*pointers, ctypes.c_size_t(n)))
    version = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    return 1e9 * seconds / n, difference(field, x, y), " ".join([version, *flags])


def by_slope(submit: Callable[[int], Any]) -> float:
    """Seconds of a dispatch: what more of them cost than one, where ``submit(count)`` waits for so many."""
    submit(1)
    differences = []
    for _ in range(5):
        times = []
        for count in (1, 1 + DISPATCHES):
            start = time.perf_counter()
            submit(count)
            times.append(time.perf_counter() - start)
        differences.append((times[1] - times[0]) / DISPATCHES)
    return float(np.median(differences))


def wgsl(field: cn.NeuralField, x: np.ndarray, target: str, precision: str) -> tuple[float, float, str]:
    import wgpu

    with tempfile.TemporaryDirectory() as folder:
        source, weights, outputs = exported(field, "wgsl", precision, folder)
    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    device = adapter.request_device_sync()
    groups = len(x) // GROUP
    size = (min(groups, 1 << 15), max(1, groups >> 15), 1)
    code = _WGSL.format(source=source, group=GROUP, width=size[0] * GROUP, inputs=3, outputs=outputs)
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffers = [device.create_buffer_with_data(data=v, usage=usage) for v in (weights, x)]
    buffers.append(device.create_buffer(size=4 * outputs * len(x), usage=usage))
    module = device.create_shader_module(code=code)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    entries = [{"binding": i, "resource": {"buffer": b}} for i, b in enumerate(buffers)]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

    def submit(count: int) -> None:
        encoder = device.create_command_encoder()
        for _ in range(count):
            ends = encoder.begin_compute_pass()
            ends.set_pipeline(pipeline)
            ends.set_bind_group(0, group)
            ends.dispatch_workgroups(*size)
            ends.end()
        device.queue.submit([encoder.finish()])
        device.queue.read_buffer(buffers[2], 0, 4)  # waits

    seconds = by_slope(submit)
    worst = difference(field, x, np.frombuffer(device.queue.read_buffer(buffers[2]), np.float32).reshape(-1, outputs))
    return (
        1e9 * seconds / len(x),
        worst,
        f"{adapter.info['device']} ({adapter.info['backend_type']}), wgpu {wgpu.__version__}",
    )


def slang(field: cn.NeuralField, x: np.ndarray, target: str, precision: str) -> tuple[float, float, str]:
    import slangpy as spy

    with tempfile.TemporaryDirectory() as folder:
        source, weights, outputs = exported(field, target, precision, folder)
    try:
        device = spy.Device(type=spy.DeviceType.vulkan)
    except RuntimeError:
        device = spy.Device(type=spy.DeviceType.cpu)
    if "coopvec" in target and not device.has_feature(spy.Feature.cooperative_vector):
        raise RuntimeError(f"{device.info.adapter_name} has no cooperative vectors")
    code = _SLANG.format(source=source, group=GROUP, inputs=3, outputs=outputs)
    module = device.load_module_from_source("many", code)
    kernel = device.create_compute_kernel(device.link_program([module], [module.entry_point("main_many")]))
    read, write = spy.BufferUsage.shader_resource, spy.BufferUsage.unordered_access
    given = [device.create_buffer(size=v.nbytes, struct_size=4, usage=read, data=v.ravel()) for v in (weights, x)]
    out = device.create_buffer(size=4 * outputs * len(x), struct_size=4, usage=write)

    def submit(count: int) -> None:
        encoder = device.create_command_encoder()
        for _ in range(count):
            kernel.dispatch([len(x), 1, 1], {"words": given[0], "points": given[1], "results": out}, encoder)
        device.submit_command_buffer(encoder.finish())
        device.wait_for_idle()

    seconds = by_slope(submit)
    worst = difference(field, x, out.to_numpy().view(np.float32)[: outputs * len(x)].reshape(-1, outputs))
    return (
        1e9 * seconds / len(x),
        worst,
        f"{device.info.adapter_name} ({device.info.api_name}), slangpy {spy.__version__}",
    )


def difference(field: cn.NeuralField, x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference between a program and the field; an error where that is not rounding."""
    single = cn.backend.namespace(dr.backend_v(next(iter(field.values())))).Float
    expected = field([single(np.ascontiguousarray(v)) for v in x[:1000].T])
    worst = max(float(np.abs(e.numpy() - y[:1000, i]).max()) for i, e in enumerate(expected))
    assert worst < 0.02, f"the program is wrong by {worst}"
    return worst


if __name__ == "__main__":
    main()
