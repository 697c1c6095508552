"""Figures of dropout in memory, many fields, several GPUs and PyTorch's layers are those of ``benchmarks/results``."""

from __future__ import annotations

from support.figures import page, performance, results, sentences_of


def test_dropout_in_memory_on_the_cpu():
    entries = {
        (e["peer"], e["log2_size"], e["rows"], e["dtype"]): e["wall_ms"] for e in results("memory-llvm")["entries"]
    }
    for size in (20, 24):
        for rows, dtype in ((64, "float32"), (64, "float16"), (8, "float32"), (8, "float16")):
            times = [entries[peer, size, rows, dtype] for peer in ("copy", "coopnet", "coopnet-list", "torch")]
            cells = [*(f"{ms:.2f}" for ms in times[:3]), f"{times[3]:.1f}", f"{times[3] / times[1]:.0f}×"]
            assert f"| 2^{size}, ({rows}, n) {dtype} | {' | '.join(cells)} |" in page("dropout"), cells


def test_what_dropout_costs_in_a_network():
    text = sentences_of("dropout")

    def cost(name, value, width, batch):
        own = {
            row["dropout"]: row["own"]
            for row in performance.ratios(name, value)
            if (row["mode"], row["width"], row["log2_batch"]) == ("train", width, batch)
        }
        return own[0.1] / own[0.0]

    wide, narrow = (cost("networks-llvm", "wall_ms", width, 17) for width in (64, 16))
    assert f"at width 64 take {wide:.2f} times as long with dropout, and at width 16 {narrow:.2f} times" in text
    costs = [f"{cost('networks-cuda', 'kernel_ms', width, 20):.1f}" for width in (16, 32, 64, 128)]
    assert f"take {costs[0]} times as long at width 16, {costs[1]} times at 32, {costs[2]} times at 64" in text
    assert f"and {costs[3]} times at 128" in text


def test_statistics_of_masks():
    found, text = results("statistics-llvm"), sentences_of("dropout")
    worst = max(abs(row["standard_errors"]) for row in found["keep_rates"])
    assert f"lie within {worst:.1f} standard errors of the quantized probability" in text


def test_many_fields_in_sentences():
    entries = results("many-fields-llvm")["entries"]
    times = {(e["peer"], e["width"], e["samples"]): e["us_per_field_and_step"] for e in entries}
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for (peer, width, samples), time in times.items():
        if peer == "torch":
            ratios[samples == 256].append(time / times["fit_many", width, samples])
    few, more = ratios[True], ratios[False]
    text = sentences_of("many_fields")
    assert f"takes {min(few):.2f} to {max(few):.1f} times as long as `fit_many` with 256 samples" in text
    assert f"and {min(more):.1f} to {max(more):.1f} times with more" in text
    entries = results("many-fields-cuda")["entries"]
    gpu = {e["peer"]: e["us_per_field_and_step"] for e in entries if (e["width"], e["samples"]) == (16, 256)}
    said = (
        f"takes {gpu['fit']:,.0f} µs in a loop of `fit`, {gpu['one by one']:.0f} µs one after the other by `fit_many`"
    )
    assert f"{said}, and {gpu['fit_many']:.0f} µs with 125 in a kernel" in text
    said = f"takes {gpu['torch']:.1f} µs there, and {gpu['torch-graph']:.1f} µs as a CUDA graph"
    assert said in text


def test_modules_of_pytorch():
    grid, network = results("torch-border-llvm")["jobs"]
    for label, key, small in (
        ("`cn.fit`, step", "fit, step", "fit, 8 samples"),
        ("module, step", "module, step, 1 threads", "module, 8 samples, 1 threads"),
        ("the field in `drjit.wrap`, step", "drjit.wrap, step, 1 threads", "drjit.wrap, 8 samples, 1 threads"),
        ("field, frozen, call", "field, call", None),
        ("module, call", "module, call, 1 threads", None),
    ):
        last = f"{network[small]:.2g}" if small else ""
        row = " ".join(f"| {label} | {grid[key]:.0f} | {network[key]:.0f} | {last} |".split())
        assert row in sentences_of("pytorch"), row
    one, two = ([network[f"PyTorch, {what}, {n} threads"] for what in ("step", "8 samples", "call")] for n in (1, 2))
    text = sentences_of("pytorch")
    assert f"step (with two threads) | | {one[0]:.0f} ({two[0]:.0f}) | {one[1]:.2f} ({two[1]:.2f}) |" in text
    assert f"call (with two threads) | | {one[2]:.0f} ({two[2]:.0f}) |" in text
    grid, network = results("torch-border-cuda")["jobs"]
    steps = [f"{job['module, step']:.1f}" for job in (grid, network)]
    assert f"steps take {steps[0]} and {steps[1]} ms, and {network['module, 8 samples']:.1f} ms with 8 samples" in text
    assert f"layers take {network['PyTorch, step']:.1f} ms with 2^17 samples or 8" in text
    assert f"`cn.fit` takes {grid['fit, step']:.2f} and {network['fit, step']:.1f} ms" in text
    calls = [*(f"{job['module, call']:.2g}" for job in (grid, network))]
    fields = [*(f"{job['field, call']:.2f}" for job in (grid, network))]
    assert f"Calls take {calls[0]} and {calls[1]}" in text.replace("1.0 ms", "1 ms")
    assert f"{fields[0]} and {fields[1]} for the field, and {network['PyTorch, call']:.2f} for PyTorch" in text


def test_steps_on_two_gpus():
    one, two = results("scaling-cuda")["runs"]
    text = page("distributed")
    for i, n in enumerate((18, 22)):
        share = one["weak"][i]["ms"] / two["weak"][i]["ms"]
        assert f"| {two['weak'][i]['ms']:.3g} | {100 * share:.0f} %".replace("%", "%") in text, (n, share)
    strong = [run["strong"] for run in (one, two)]
    assert f"| 2^18 in all | {strong[0][0]['ms']:.2f} | {strong[1][0]['ms']:.2f} | slower than one |" in text
    assert f"{strong[0][1]['ms'] / strong[1][2]['ms']:.1f} times as fast |" in text
    assert f"| 2^20 in all | | {strong[1][1]['ms']:.2f} | |" in text
    (alone,) = (row["ms"] for row in two["allreduce"] if row["bytes"] == 2**22)
    assert f"A sum of 4 MB alone takes {alone:.2f} ms" in sentences_of("distributed")


def test_compressed_textures_beside_bc7():
    rows = [row for row in results("texture-third-llvm")["codecs"] if f"| {row['bits']:.2f} |" in page("textures")]
    found = {row["codec"]: row["psnr"] for row in rows}  # of JPEG's, the one that the page has
    ours, text = found["neural, third"], sentences_of("textures")
    assert f"than BC7 in mode 6 (by {ours - found['BC7, mode 6']:.1f} dB)" in text
    assert f"better encoder, which is {found['BC7'] - ours:.1f} dB ahead" in text
    assert f"JPEG with more bits has {ours - found['JPEG']:.1f} dB less" in text


def test_the_model_of_several_gpus():
    found, text = results("scaling-cuda"), sentences_of("distributed")
    model = found["model"]
    a, h, alpha = (f"{1e3 * model['a']:.2f} ms", f"{1e3 * model['h']:.2f} ms", f"{1e6 * model['alpha']:.0f} µs")
    said = rf"$a$ = {a}, $b$ = {1e9 * model['b']:.1f} ns, $h$ = {h}, $\alpha$ = {alpha}, $1/\beta$ = "
    assert f"{said}{1e12 * model['per_byte']:.1f} ps" in text and f"{model['bytes'] / 1e6:.1f} MB of gradients" in text
    errors = {(e["kind"], e["world"], e["total"]): 100 * e["error"] for e in found["compared"]}
    large, middle, small = errors["weak", 2, 2**23], errors["strong", 2, 2**22], errors["strong", 2, 2**20]
    assert f"within {large:.0f} %, but steps of 2^19 and 2^21 samples {middle:.0f} to {small:.0f} % too long" in text
    few, many = (next(p for p in found["predicted"] if p["world"] == world) for world in (8, 1024))
    even = [f"${p['breaks_even_at'] / 1e5:.1f} \\cdot 10^5$" for p in (few, many)]
    assert f"That is {even[0]} for 8 GPUs and {even[1]} for 1,024" in text
    shares = {k: [100 * p["weak_efficiency"][str(k)] for p in (few, many)] for k in (2**18, 2**22)}
    assert (
        f"{shares[2**18][0]:.0f} % of the time would go into computation, and of 1,024 GPUs {shares[2**18][1]:.0f} %"
        in text
    )
    assert f"with 2^22 samples, {shares[2**22][0]:.0f} % and {shares[2**22][1]:.0f} %" in text
