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


def test_what_masks_that_are_drawn_again_are_for():
    found, text = results("replayed-adjoint-llvm"), sentences_of("dropout")
    replay, names = found["replay"], {"same masks": "the same masks", "other masks": "other masks"}
    median = replay["median"]
    for way, label in names.items():
        before, after, trained = (median[when][way] for when in ("before", "after", "trained"))
        cells = [f"{100 * before['error']:.0f} %", f"{100 * after['error']:.0f} %", f"{after['cosine']:.2f}"]
        cells += [f"{trained['deviation']:.2f}", f"{trained['rms_of_mean']:.3f}"]
        assert f"| {label} | {' | '.join(cells)} |" in page("dropout")
    assert all(row[when]["same masks"]["largest"] == 0 for row in replay["each"] for when in ("before", "after"))
    assert (
        f"Medians over {len(replay['each'])} seeds" in text
        and f"measured after {replay['steps']} steps; the mean" in text
    )
    assert f"| after {replay['steps']} steps |" in page("dropout")
    same, other = (median["trained"][way] for way in names)
    said = "the RMS error of the field without a key is {:.3f} instead of {:.3f}"
    assert said.format(other["rms_without_key"], same["rms_without_key"]) in text
    assert f"it becomes {other['deviation'] / same['deviation']:.1f} times as large" in text
    chunks, memory, masks = (found[name] for name in ("chunks", "memory", "masks"))
    assert f"A batch of 2^{chunks['samples'].bit_length() - 1} samples at once and in {chunks['chunks']} chunks" in text
    assert f"differ by at most {chunks['largest']:.0e}".replace("e-0", "e-") in text
    tally = [row for row in results("kills-llvm")["tally"].values() if "runs" in row]
    runs = sum(row["runs"] for row in tally)
    assert f"all {runs} runs that were killed or interrupted" in text
    assert runs == sum(row["equal ends"] for row in tally)
    peak, saved = memory["peak"], memory["torch_saved"]
    said = f"of 2^{memory['samples'].bit_length() - 1} samples is {peak['dropout'] / 1e6:.0f} MB with dropout and"
    assert f"{said} {peak['plain'] / 1e6:.0f} MB without" in text
    assert f"masks would be {memory['byte_masks'] / 1e6:.0f} MB" in text
    assert f"PyTorch keeps {(saved['dropout'] - saved['plain']) / 1e6:.0f} MB more" in text
    assert masks["different"] == 0
    assert f"all {masks['elements'] * masks['samples']:,} elements of the masks of {masks['samples']:,} samples" in text


def test_statistics_of_masks():
    found, text = results("statistics-llvm"), sentences_of("dropout")
    worst = max(abs(row["standard_errors"]) for row in found["keep_rates"])
    assert f"lie within {worst:.1f} standard errors of the quantized probability" in text
    assert "The words of a GPU give the same p-values and the same keep rates (`statistics-cuda.json`)" in text
    for name in ("smallcrush", "keep_rates"):
        assert results("statistics-cuda")[name] == found[name]
    suspect = [p for run in found["smallcrush"] for p in run["p_values"].values() if not 0.001 < p < 0.999]
    count = sum(len(run["p_values"]) for run in found["smallcrush"])
    assert not suspect and f"none of {count} p-values lies outside 0.001 .. 0.999" in text


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
    gpu = {e["peer"]: e["us_per_field_and_step"] for e in entries if e["width"] == 16}
    said = (
        f"takes {gpu['fit']:,.0f} µs in a loop of `fit`, {gpu['one by one']:.0f} µs one after the other by `fit_many`"
    )
    assert f"{said}, and {gpu['fit_many']:.1f} µs with 125 in a kernel" in text
    (further,) = (e["us_per_further_step"] for e in entries if (e["peer"], e["width"]) == ("fit_many", 16))
    assert f"Further steps take {further:.1f} µs" in text
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
    layers = [f"{network[f'PyTorch, {what}']:.1f} ms" for what in ("step", "8 samples")]
    assert f"layers take {layers[0]} with 2^17 samples, {layers[1]} with 8" in text
    assert f"`cn.fit` takes {grid['fit, step']:.2f} and {network['fit, step']:.2f} ms" in text
    calls = [*(f"{job['module, call']:.2f}" for job in (grid, network))]
    (fields,) = {f"{job['field, call']:.2f}" for job in (grid, network)}
    assert f"Calls take {calls[0]} and {calls[1]} ms for the module, {fields} ms for the fields" in text
    assert f"and {network['PyTorch, call']:.2f} for PyTorch" in text


def test_steps_on_several_gpus():
    runs, text = results("scaling-cuda")["runs"], page("distributed")
    found = {
        (kind, run["world"], e["total"]): e["ms"] for run in runs for kind in ("weak", "strong") for e in run[kind]
    }
    worlds = [run["world"] for run in runs]
    assert worlds == [1, 2, 4]
    for k in (18, 20, 22):
        for kind, where, times in (("weak", "on each", True), ("strong", "in all", False)):
            cells = [f"{found[kind, w, 2**k * (w if times else 1)]:.2f}" for w in worlds]
            assert f"| 2^{k} {where} | {' | '.join(cells)} |" in text, cells
    text = sentences_of("distributed")
    faster = found["strong", 1, 2**22] / found["strong", 4, 2**22]
    assert f"and on 2^22 samples {faster:.1f} times as fast" in text
    assert f"in {found['weak', 4, 2**24] / found['weak', 1, 2**22]:.2f} times the time of one" in text
    (alone,) = (row["ms"] for row in runs[1]["allreduce"] if row["bytes"] == 2**22)
    assert f"A sum of 4 MB alone takes {alone:.2f} ms" in text
    seconds = [f"{run['many']['seconds']:.2f} s" for run in runs]
    assert f"took {seconds[0]} on one GPU, {seconds[1]} on two and {seconds[2]} on four" in text


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
    assert f"the host of a step takes about {1e3 * model['h']:.1f} ms with several processes" in text
    errors: dict[bool, list[float]] = {True: [], False: []}
    for e in found["compared"]:
        errors[e["world"] > 1 and e["predicted_ms"] == 1e3 * model["h"]].append(100 * abs(e["error"]))
    said = f"wrong by up to {max(errors[True]):.0f} % where the host is the limit"
    assert f"{said}, since the time of the host varied, and by up to {max(errors[False]):.0f} % elsewhere" in text
    even = {f"{p['breaks_even_at'] / 1e5:.1f}" for p in found["predicted"]}
    assert len(even) == 1 and f"from ${even.pop()} \\cdot 10^5$ samples on" in text
    few, many = (next(p for p in found["predicted"] if p["world"] == world) for world in (8, 1024))
    shares = {k: [100 * p["weak_efficiency"][str(k)] for p in (few, many)] for k in (2**20, 2**22)}
    said = f"{shares[2**20][0]:.0f} % of the time would go into computation, and of 1,024 GPUs {shares[2**20][1]:.0f} %"
    assert f"{said}; with 2^22 samples, {shares[2**22][0]:.0f} % and {shares[2**22][1]:.0f} %" in text
