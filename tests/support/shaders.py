"""What runs exported shaders: WGSL by wgpu and a browser, GLSL by Vulkan, Slang by slangpy.

Every runner takes a source, calls (names of its functions with the sizes of the arrays that each writes), the words of
its weights or ``None``, points ``(coordinates, samples)``, and a key ``(4, samples)`` or ``None``; it returns the
arrays of all calls, which are of one dispatch. ``missing`` says why one cannot run here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from .pages import chromium

GROUP = 32
LAVAPIPE = Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")


Calls = list[tuple[str, tuple[int, ...]]]


class Code:
    """Pieces of a shader: declarations of arrays ``r0``, ``r1``, ..., the calls, and copies to ``results``."""

    def __init__(self, calls: Calls, declare: str, loop: str, first: list[str], each: str = "r{}", suffix: str = ""):
        self.sizes = tuple(size for _, sizes in calls for size in sizes)
        self.total = sum(self.sizes)
        self.declared = " ".join(declare.format(i, size) for i, size in enumerate(self.sizes))
        names = iter(each.format(i) for i in range(len(self.sizes)))
        self.calls = "\n    ".join(
            f"{name}({', '.join([*first, *(next(names) for _ in sizes)])});" for name, sizes in calls
        )
        starts = np.cumsum([0, *self.sizes])
        place = f"t * {self.total}{suffix} + {{}}{suffix} + i"
        self.writes = "\n    ".join(
            f"{loop.format(size)} {{ results[{place.format(starts[i])}] = r{i}[i]; }}"
            for i, size in enumerate(self.sizes)
        )


def split(flat: np.ndarray, sizes: tuple[int, ...], samples: int) -> list[np.ndarray]:
    rows = flat.reshape(samples, sum(sizes)).T
    return np.split(rows, np.cumsum(sizes)[:-1])


def buffers(weights: Any, x: np.ndarray, key: Any) -> list[np.ndarray]:
    """The contents of the buffers 0 to 2: weights, points, keys."""
    words = np.zeros(1, np.uint32) if weights is None else weights
    keys = np.zeros((4, x.shape[1]), np.uint32) if key is None else key
    return [np.ascontiguousarray(v) for v in (words, x.T.astype(np.float32), keys.T)]


# ---- WGSL --------------------------------------------------------------------------------------------------


def wgsl(source: str, calls: Calls, weights: Any, x: np.ndarray, key: Any) -> tuple[str, tuple[int, ...]]:
    """A compute shader around exported functions, and the sizes of all that it writes."""
    d, stem = len(x), calls[0][0].removesuffix("_jacobian")
    first = ["x", *(["key"] if key is not None else [])]
    loop = "for (var i = 0u; i < {}u; i++)"
    code = Code(calls, "var r{}: array<f32, {}>;", loop, first, "&r{}", "u")
    taken = "" if weights is None else f"@group(0) @binding(0) var<storage, read> {stem}_weights: array<u32>;\n"
    text = f"""{taken}{source}
@group(0) @binding(1) var<storage, read> points: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> results: array<f32>;

@compute @workgroup_size({GROUP})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let t = id.x;
    if (t >= {x.shape[1]}u) {{ return; }}
    var x: array<f32, {d}>;
    for (var i = 0u; i < {d}u; i++) {{ x[i] = points[t * {d}u + i]; }}
    var key = array<u32, 4>(keys[4u * t], keys[4u * t + 1u], keys[4u * t + 2u], keys[4u * t + 3u]);
    {code.declared}
    {code.calls}
    {code.writes}
}}
"""
    return text, code.sizes


# ---- and what runs it --------------------------------------------------------------------------------------


class Wgpu:
    """WGSL by wgpu, on whatever Vulkan device there is."""

    @staticmethod
    def missing() -> str:
        if importlib.util.find_spec("wgpu") is None:
            return "wgpu is not installed (make test-export)"
        with contextlib.suppress(Exception):
            return "" if _adapter() else "no device for wgpu; Debian has the package mesa-vulkan-drivers"
        return "wgpu finds no device; Debian has the package mesa-vulkan-drivers"

    @staticmethod
    def run(source: str, calls: Calls, weights: Any, x: np.ndarray, key: Any = None) -> list:
        from wgpu.utils.compute import compute_with_buffers

        _adapter()
        samples = x.shape[1]
        code, sizes = wgsl(source, calls, weights, x, key)
        given = dict(enumerate(buffers(weights, x, key)))
        out = compute_with_buffers(
            input_arrays=given, output_arrays={3: (samples * sum(sizes), "f")},
            shader=code, n=-(-samples // GROUP),
        )  # fmt: skip
        return split(np.frombuffer(out[3], np.float32), sizes, samples)


@functools.cache
def _adapter() -> Any:
    import wgpu

    if LAVAPIPE.exists() and not shutil.which("nvidia-smi"):
        os.environ.setdefault("VK_ICD_FILENAMES", str(LAVAPIPE))
    return wgpu.gpu.request_adapter_sync()


class Chromium:
    """WGSL by a headless browser and its own software device."""

    PAGE = """async ([code, buffers, groups, bytes]) => {
        const adapter = await navigator.gpu.requestAdapter();
        const device = await adapter.requestDevice();
        const module = device.createShaderModule({code});
        const messages = (await module.getCompilationInfo()).messages.filter(m => m.type == "error");
        if (messages.length) throw new Error(messages.map(m => m.lineNum + ": " + m.message).join("; "));
        const S = GPUShaderStage.COMPUTE, U = GPUBufferUsage;
        const types = ["read-only-storage", "read-only-storage", "read-only-storage", "storage"];
        const layout = device.createBindGroupLayout({entries:
            types.map((type, binding) => ({binding, visibility: S, buffer: {type}}))});
        const pipeline = await device.createComputePipelineAsync({
            layout: device.createPipelineLayout({bindGroupLayouts: [layout]}), compute: {module, entryPoint: "main"}});
        const made = buffers.map(text => {
            const raw = Uint8Array.from(atob(text), c => c.charCodeAt(0));
            const b = device.createBuffer({size: raw.length, usage: U.STORAGE | U.COPY_DST});
            device.queue.writeBuffer(b, 0, raw);
            return b;
        });
        made.push(device.createBuffer({size: bytes, usage: U.STORAGE | U.COPY_SRC}));
        const read = device.createBuffer({size: bytes, usage: U.MAP_READ | U.COPY_DST});
        const entries = made.map((buffer, binding) => ({binding, resource: {buffer}}));
        const encoder = device.createCommandEncoder(), pass = encoder.beginComputePass();
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, device.createBindGroup({layout, entries}));
        pass.dispatchWorkgroups(groups);
        pass.end();
        encoder.copyBufferToBuffer(made[3], 0, read, 0, bytes);
        device.queue.submit([encoder.finish()]);
        await read.mapAsync(GPUMapMode.READ);
        const words = Array.from(new Uint32Array(read.getMappedRange()));
        device.destroy();
        return words;
    }"""

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        self.playwright = sync_playwright().start()
        options = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"]
        self.browser = self.playwright.chromium.launch(executable_path=chromium(), args=[*options, "--no-sandbox"])
        self.page = self.browser.new_page()
        self.directory = tempfile.TemporaryDirectory()
        page = Path(self.directory.name) / "page.html"  # WebGPU needs a page of its own
        page.write_text("<!doctype html><title>export</title>")
        self.page.goto(page.as_uri())

    @staticmethod
    def missing() -> str:
        if importlib.util.find_spec("playwright") is None:
            return "playwright is not installed (make test-export)"
        return "" if chromium() else "there is no chromium"

    def run(self, source: str, calls: Calls, weights: Any, x: np.ndarray, key: Any = None) -> list:
        import base64

        samples = x.shape[1]
        given = [base64.b64encode(v.tobytes()).decode() for v in buffers(weights, x, key)]
        code, sizes = wgsl(source, calls, weights, x, key)
        words = self.page.evaluate(self.PAGE, [code, given, -(-samples // GROUP), 4 * samples * sum(sizes)])
        return split(np.array(words, np.uint32).view(np.float32), sizes, samples)

    def close(self) -> None:
        self.browser.close()
        self.playwright.stop()
        self.directory.cleanup()


# ---- Slang -------------------------------------------------------------------------------------------------


class Slang:
    """Slang by slangpy, compiled for the CPU."""

    kind = "CPU"

    @classmethod
    def missing(cls) -> str:
        if importlib.util.find_spec("slangpy") is None:
            return "slangpy is not installed (make test-export)"
        with contextlib.suppress(Exception):
            return "" if cls.device() else "slangpy finds no device"
        return f"slangpy has no device for {cls.kind}"

    @staticmethod
    def device() -> Any:
        return _slang()

    @classmethod
    def run(cls, source: str, calls: Calls, weights: Any, x: np.ndarray, key: Any = None) -> list:
        import slangpy as spy

        device, samples, d = cls.device(), x.shape[1], len(x)
        first = [*(["words"] if weights is not None else []), "x", *(["key"] if key is not None else [])]
        c = Code(calls, "float r{}[{}];", "for (uint i = 0; i < {}; ++i)", first)
        code = f"""{source}
ByteAddressBuffer words; StructuredBuffer<float> points; StructuredBuffer<uint> keys;
RWStructuredBuffer<float> results; uniform uint samples;

[shader("compute")] [numthreads({GROUP}, 1, 1)]
void run(uint3 id: SV_DispatchThreadID) {{
    uint t = id.x;
    if (t >= samples) return;
    float x[{d}]; uint key[4]; {c.declared}
    for (uint i = 0; i < {d}; ++i) x[i] = points[t * {d} + i];
    for (uint i = 0; i < 4; ++i) key[i] = keys[4 * t + i];
    {c.calls}
    {c.writes}
}}
"""
        module = device.load_module_from_source(f"module_{abs(hash(code))}", code)
        kernel = device.create_compute_kernel(device.link_program([module], [module.entry_point("run")]))
        read, write = spy.BufferUsage.shader_resource, spy.BufferUsage.unordered_access
        # a buffer of bytes: of one with a struct_size, the CPU's device gives the number of elements as its size
        given = [
            device.create_buffer(size=v.nbytes, struct_size=size, usage=read, data=v)
            for v, size in zip(buffers(weights, x, key), (0, 4, 4), strict=True)
        ]
        nothing = np.zeros(samples * c.total, np.float32)
        out = device.create_buffer(size=nothing.nbytes, struct_size=4, usage=write, data=nothing)
        kernel.dispatch(
            thread_count=[samples, 1, 1],
            vars={"words": given[0], "points": given[1], "keys": given[2], "results": out, "samples": samples},
        )
        return split(out.to_numpy().view(np.float32)[: nothing.size].copy(), c.sizes, samples)


@functools.cache
def _slang() -> Any:
    import slangpy as spy

    return spy.Device(type=spy.DeviceType.cpu)


class SlangVulkan(Slang):
    """Slang by slangpy, compiled for Vulkan."""

    kind = "Vulkan"

    @staticmethod
    def device() -> Any:
        return _slang_vulkan()


@functools.cache
def _slang_vulkan() -> Any:
    import slangpy as spy
    import vulkan as vk

    instance, physical, _ = _physical()
    # slangpy's own devices ask for VK_KHR_shader_non_semantic_info, which Mesa 22.3's lavapipe does not name
    extensions = [e.extensionName for e in vk.vkEnumerateDeviceExtensionProperties(physical, None)]
    features = vk.VkPhysicalDeviceVulkan12Features()
    features = vk.VkPhysicalDeviceVulkan13Features(pNext=features)
    features = vk.VkPhysicalDeviceFeatures2(pNext=features)
    vk.vkGetPhysicalDeviceFeatures2(physical, features)
    device = _logical(extensions, features)
    handles = zip(("VkInstance", "VkPhysicalDevice", "VkDevice"), (instance, physical, device), strict=True)
    given = [spy.NativeHandle(spy.NativeHandleType[k], int(vk.ffi.cast("uintptr_t", h))) for k, h in handles]
    return spy.Device(type=spy.DeviceType.vulkan, existing_device_handles=given)


# ---- GLSL --------------------------------------------------------------------------------------------------


class Vulkan:
    """GLSL by glslangValidator and a compute pipeline of Vulkan."""

    @staticmethod
    def missing() -> str:
        if importlib.util.find_spec("vulkan") is None:
            return "the package vulkan is not installed (make test-export)"
        if shutil.which("glslangValidator") is None:
            return "there is no glslangValidator; Debian has the package glslang-tools"
        with contextlib.suppress(Exception):
            return "" if _vulkan() else "no Vulkan device"
        return "no Vulkan device; Debian has the package mesa-vulkan-drivers"

    @staticmethod
    def run(source: str, calls: Calls, weights: Any, x: np.ndarray, key: Any = None) -> list:
        d, samples = len(x), x.shape[1]
        first = ["x", *(["key"] if key is not None else [])]
        c = Code(calls, "float r{}[{}];", "for (uint i = 0u; i < {}u; ++i)", first, suffix="u")
        code = f"""#version 450
{source}
layout(local_size_x = {GROUP}) in;
layout(std430, binding = 1) readonly buffer Points {{ float points[]; }};
layout(std430, binding = 2) readonly buffer Keys {{ uint keys[]; }};
layout(std430, binding = 3) buffer Results {{ float results[]; }};

void main() {{
    uint t = gl_GlobalInvocationID.x;
    if (t >= {samples}u) return;
    float x[{d}]; uint key[4]; {c.declared}
    for (uint i = 0u; i < {d}u; ++i) x[i] = points[t * {d}u + i];
    for (uint i = 0u; i < 4u; ++i) key[i] = keys[4u * t + i];
    {c.calls}
    {c.writes}
}}
"""
        flat = _dispatch(spirv(code, "comp"), buffers(weights, x, key), 4 * samples * c.total, -(-samples // GROUP))
        return split(flat, c.sizes, samples)


def spirv(code: str, stage: str) -> bytes:
    """Compiled by glslangValidator."""
    with tempfile.TemporaryDirectory() as directory:
        path, out = Path(directory) / f"shader.{stage}", Path(directory) / "shader.spv"
        path.write_text(code)
        command = ["glslangValidator", "-V", str(path), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout
        return out.read_bytes()


@functools.cache
def _physical() -> tuple[Any, Any, int]:
    """(instance, physical device, number of a queue family that computes)."""
    import vulkan as vk

    if LAVAPIPE.exists() and not shutil.which("nvidia-smi"):
        os.environ.setdefault("VK_ICD_FILENAMES", str(LAVAPIPE))
    app = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 3, 0))
    instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=app), None)
    physical = vk.vkEnumeratePhysicalDevices(instance)[0]
    families = vk.vkGetPhysicalDeviceQueueFamilyProperties(physical)
    return instance, physical, next(i for i, f in enumerate(families) if f.queueFlags & vk.VK_QUEUE_COMPUTE_BIT)


def _logical(extensions: Any = (), features: Any = None) -> Any:
    """A device with one queue."""
    import vulkan as vk

    _, physical, family = _physical()
    queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=family, queueCount=1, pQueuePriorities=[1.0])
    create = vk.VkDeviceCreateInfo(pNext=features, pQueueCreateInfos=[queue], ppEnabledExtensionNames=list(extensions))
    return vk.vkCreateDevice(physical, create, None)


@functools.cache
def _vulkan() -> tuple[Any, Any, int, Any]:
    """(physical device, device, number of a queue family that computes, memory properties)."""
    import vulkan as vk

    _, physical, family = _physical()
    return physical, _logical(), family, vk.vkGetPhysicalDeviceMemoryProperties(physical)


def _dispatch(code: bytes, inputs: list[np.ndarray], size: int, groups: int) -> np.ndarray:
    """Run a compute shader with storage buffers 0, 1, ...: the inputs, and a last one, which comes back."""
    import vulkan as vk

    _, device, family, memory = _vulkan()
    kept = [_buffer(v.nbytes, memory) for v in inputs] + [_buffer(size, memory)]
    for (_, held), v in zip(kept, inputs, strict=False):
        mapped = vk.vkMapMemory(device, held, 0, v.nbytes, 0)
        mapped[:] = v.tobytes()
        vk.vkUnmapMemory(device, held)
    storage = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
    bindings = [
        vk.VkDescriptorSetLayoutBinding(
            binding=i, descriptorType=storage, descriptorCount=1, stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT
        )
        for i in range(len(kept))
    ]
    layout = vk.vkCreateDescriptorSetLayout(
        device, vk.VkDescriptorSetLayoutCreateInfo(bindingCount=len(bindings), pBindings=bindings), None
    )
    size_of = vk.VkDescriptorPoolSize(type=storage, descriptorCount=len(kept))
    pool = vk.vkCreateDescriptorPool(
        device, vk.VkDescriptorPoolCreateInfo(maxSets=1, poolSizeCount=1, pPoolSizes=[size_of]), None
    )
    (descriptors,) = vk.vkAllocateDescriptorSets(
        device, vk.VkDescriptorSetAllocateInfo(descriptorPool=pool, descriptorSetCount=1, pSetLayouts=[layout])
    )
    for i, ((buffer, _), length) in enumerate(zip(kept, [*(v.nbytes for v in inputs), size], strict=True)):
        info = vk.VkDescriptorBufferInfo(buffer=buffer, offset=0, range=length)
        write = vk.VkWriteDescriptorSet(
            dstSet=descriptors, dstBinding=i, descriptorCount=1, descriptorType=storage, pBufferInfo=[info]
        )
        vk.vkUpdateDescriptorSets(device, 1, [write], 0, None)
    whole = vk.vkCreatePipelineLayout(
        device, vk.VkPipelineLayoutCreateInfo(setLayoutCount=1, pSetLayouts=[layout]), None
    )
    module = vk.vkCreateShaderModule(device, vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code), None)
    stage = vk.VkPipelineShaderStageCreateInfo(stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=module, pName="main")
    create = vk.VkComputePipelineCreateInfo(stage=stage, layout=whole)
    pipeline = vk.vkCreateComputePipelines(device, None, 1, [create], None)
    pipeline = pipeline[0] if isinstance(pipeline, (list, tuple)) or hasattr(pipeline, "__getitem__") else pipeline
    commands_pool = vk.vkCreateCommandPool(device, vk.VkCommandPoolCreateInfo(queueFamilyIndex=family), None)
    allocate = vk.VkCommandBufferAllocateInfo(
        commandPool=commands_pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
    )
    commands = vk.vkAllocateCommandBuffers(device, allocate)[0]
    vk.vkBeginCommandBuffer(commands, vk.VkCommandBufferBeginInfo())
    vk.vkCmdBindPipeline(commands, vk.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline)
    vk.vkCmdBindDescriptorSets(commands, vk.VK_PIPELINE_BIND_POINT_COMPUTE, whole, 0, 1, [descriptors], 0, None)
    vk.vkCmdDispatch(commands, groups, 1, 1)
    vk.vkEndCommandBuffer(commands)
    queue = vk.vkGetDeviceQueue(device, family, 0)
    vk.vkQueueSubmit(queue, 1, vk.VkSubmitInfo(commandBufferCount=1, pCommandBuffers=[commands]), None)
    vk.vkQueueWaitIdle(queue)
    mapped = vk.vkMapMemory(device, kept[-1][1], 0, size, 0)
    result = np.frombuffer(bytes(mapped[:]), np.float32).copy()
    vk.vkUnmapMemory(device, kept[-1][1])
    vk.vkDestroyPipeline(device, pipeline, None)
    vk.vkDestroyPipelineLayout(device, whole, None)
    vk.vkDestroyShaderModule(device, module, None)
    vk.vkDestroyDescriptorPool(device, pool, None)
    vk.vkDestroyDescriptorSetLayout(device, layout, None)
    vk.vkDestroyCommandPool(device, commands_pool, None)
    for buffer, held in kept:
        vk.vkDestroyBuffer(device, buffer, None)
        vk.vkFreeMemory(device, held, None)
    return result


def _buffer(size: int, memory: Any) -> tuple[Any, Any]:
    import vulkan as vk

    _, device, _, properties = _vulkan()
    info = vk.VkBufferCreateInfo(
        size=size, usage=vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE
    )
    buffer = vk.vkCreateBuffer(device, info, None)
    needs = vk.vkGetBufferMemoryRequirements(device, buffer)
    wanted = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
    kind = next(
        i
        for i in range(properties.memoryTypeCount)
        if needs.memoryTypeBits & (1 << i) and properties.memoryTypes[i].propertyFlags & wanted == wanted
    )
    held = vk.vkAllocateMemory(device, vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=kind), None)
    vk.vkBindBufferMemory(device, buffer, held, 0)
    return buffer, held
