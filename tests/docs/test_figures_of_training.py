"""Times and errors in docs/performance/gradients.md are those of ``benchmarks/results``."""

from __future__ import annotations

from support.figures import page, performance, results, sentences_of

from coopnet.engine import limits
from coopnet.kernels.atomic_sums import CAPABILITY

PAGE = "performance/gradients"


def says(*pieces):
    for piece in pieces:
        assert piece in sentences_of(PAGE), piece


def beside_torch(name, mode, batches, dropout=0.0):
    """PyTorch's time over coopnet's for gradients alone, by width and batch."""
    return {
        (row["width"], row["log2_batch"]): row["ratio"]
        for row in performance.ratios(name, "wall_ms")
        if row["peer"] == "torch" and row["mode"] == mode and row["log2_batch"] in batches
        if row["dropout"] == dropout and row["width"] <= 128
    }


def test_loops_with_and_without_banks():
    rows = {(r["width"], r["samples"], r["turns"], r["differentiated"], r["path"]): r for r in results("scopes-cuda")}
    text = page(PAGE)
    for label, where, other in (
        ("differentiated from outside, 4 iterations over 2^20 samples, width 64", (64, 2**20, 4, "through it"), 1),
        ("the same, 2^16 samples", (64, 2**16, 4, "through it"), 1),
        ("`dr.backward` inside, 1 iteration over 2^20 samples, width 32", (32, 2**20, 1, "in the loop"), 0),
        ("the same, width 64", (64, 2**20, 1, "in the loop"), 0),
    ):
        banks, without = rows[(*where, "banks")], rows[(*where, "builtin")]
        cells = f"| {label} | {banks['error']:.1e}".replace("e-0", "e-") + f", {banks['milliseconds']:.1f} ms | "
        digits = ".0f" if without["milliseconds"] > 10 else ".1f"
        cells += f"{100 * without['error']:.0f} %, {without['milliseconds']:{digits}} ms "
        assert f"{cells}({'built-in' if other else 'one buffer'}) |" in text, cells


def test_embeddings():
    shown = []
    for name in ("embedding-llvm", "embedding-cuda"):
        few, many = {}, {}
        for row in results(name):
            for way in ("fixed point", "atomics"):
                where = many if row["count"] == 1_000_000 else few
                where.setdefault(way, []).append(row["sorted"]["ms"] / row[way]["ms"])
        shown.append((few, many))
    (few, many), (few_cuda, many_cuda) = shown
    integers, atomics = few["fixed point"], few["atomics"]
    slower = [1 / ratio for ratio in many["fixed point"]]
    everywhere = few_cuda["atomics"] + many_cuda["atomics"]
    says(
        f"integers are {min(integers):.1f} to {max(integers):.1f} times as fast as sorting "
        f"and atomics {min(atomics):.1f} to {max(atomics):.0f} times",
        f"sorting is {min(slower):.1f} to {max(slower):.1f} times as fast as integers, and at least about as fast",
        f"fastest throughout, {min(everywhere):.1f} to {max(everywhere):.0f} times as fast as sorting",
    )
    assert max(many["atomics"]) < 1.01


def test_threads_of_blas():
    (row,) = (r for r in results("products-llvm") if (r["samples"], r["width"]) == (2**17, 64))
    says(f"over 2^17 samples took {row['others_after_ms'] / row['drjit_after_ms']:.1f} times as long")


def test_gradients_beside_torch():
    for label, name, batches in (
        ("AVX-512, 2^12 and 2^14 samples", "networks-llvm", (12, 14)),
        ("AVX-512, from 2^16 on", "networks-llvm", (16, 17, 18, 20)),
        ("AVX2, 2^12 and 2^14 samples", "networks-haswell-llvm", (12, 14)),
        ("AVX2, 2^17 samples", "networks-haswell-llvm", (17,)),
    ):
        cells = []
        for mode in ("train", "infer"):
            found = beside_torch(name, mode, batches).values()
            low, high = min(found), max(found)
            cells.append(f"{low:.{2 if low < 1.1 else 1}f} to {high:.{2 if high < 1.3 else 1}f}")
        assert f"| {label} | {' | '.join(cells)} |" in page(PAGE), cells
    every = (12, 14, 16, 17, 18, 20)
    of = {
        (name, mode): beside_torch(name, mode, every, 0.1).values()
        for name in ("networks-llvm", "networks-haswell-llvm")
        for mode in ("train", "infer")
    }
    both = [*of["networks-llvm", "train"], *of["networks-llvm", "infer"]]
    trained, inferred = of["networks-haswell-llvm", "train"], of["networks-haswell-llvm", "infer"]
    says(
        f"With dropout, PyTorch takes {min(both):.1f} to {max(both):.0f} times as long throughout",
        f"PyTorch takes {min(trained):.1f} to {max(trained):.1f} times as long to train there, "
        f"and {min(inferred):.0f} to {max(inferred):.0f} times to infer",
    )


def steps_beside(peer, name, dropout=0.0, time=lambda entry, who: entry["wall_ms"][who]):
    """A peer's time over coopnet's for whole steps, by width and batch."""
    return {
        (e["width"], e["log2_samples"]): time(e, peer) / time(e, "coopnet")
        for e in results(name)
        if e["dropout"] == dropout and peer in e["wall_ms"]
    }


def test_whole_steps_beside_torch():
    for name, label in (("training-steps-llvm", "AVX-512"), ("training-steps-haswell-llvm", "AVX2")):
        found, dropout = steps_beside("torch", name), steps_beside("torch", name, 0.1)
        less = "; ".join(f"width {width}, 2^{batch}" for (width, batch), ratio in sorted(found.items()) if ratio < 1)
        spans = [
            f"{min(of.values()):.2f} to {max(of.values()):.2f}" for of in (found, dropout, steps_beside("drjit", name))
        ]
        assert f"| {label} | {len(found)} | {less or '–'} | {' | '.join(spans)} |" in page(PAGE)


def bytes_of(entry):
    mebi = entry["peak_bytes"] / 2**20
    return f"{mebi / 1024:.1f} GiB" if mebi > 1024 else f"{mebi:.0f} MiB"


def seconds_of(entry):
    return f"{entry['first_step_s']:.{0 if entry['first_step_s'] > 10 else 1}f} s"


def row_of(label, entries, *columns):
    """A row of several jobs, whose cells give one number for each, between commas or semicolons."""
    between = "; " if ";" in label or len(entries) > 2 else ", "
    cells = [column if isinstance(column, str) else between.join(map(column, entries)) for column in columns]
    return f"| {' | '.join([label, *cells])} |"


def test_whole_jobs_on_the_cpu():
    jobs = {e["job"]: e for e in results("whole-jobs-llvm")}
    for label, names in (
        ("w = 16, 32", ("16", "32")),
        ("w = 64; with biases; with dropout 0.1", ("64", "64/bias", "64/dropout")),
        ("w = 128", ("128",)),
        ("tiny-cuda-nn's `config_hash` at 2^16", ("config_hash",)),
    ):
        row = row_of(label, [jobs[n] for n in names], lambda e: f"{e['wall_ms']:.0f} ms", seconds_of, bytes_of)
        assert row in page(PAGE), row


def test_whole_jobs_on_the_gpu():
    jobs = {(e["job"], e.get("peer", "")): e for e in results("whole-jobs-cuda")}
    wall = {job: entry["wall_ms"] for job, entry in jobs.items()}
    blob, peer = jobs["config_oneblob", ""], jobs["config_oneblob", "tiny-cuda-nn"]
    says(
        f"takes {wall['16', '']:.2f} ms with 16 units, {wall['64', '']:.2f} ms with 64, "
        f"and {wall['128', '']:.2f} ms with 128",
        f"Biases make the one with 64 units {wall['64/bias', ''] / wall['64', '']:.2f} times as long",
        f"With SiLU instead of ReLU, it takes {wall['64/silu', '']:.2f} ms, and with a sine "
        f"{wall['64/sine', '']:.2f} ms; with 128 units, these take {wall['128/silu', '']:.2f} ms "
        f"and {wall['128/sine', '']:.2f} ms",
        f"`config_oneblob` takes {blob['wall_ms']:.2f} ms where tiny-cuda-nn's own sample, run just before, takes "
        f"{peer['wall_ms']:.2f} ms",
        f"its picture has {blob['psnr_db']:.2f} dB (one run; tiny-cuda-nn's {peer['psnr_db']:.2f})",
        f"the outputs of layers longer than {limits.LONG_VECTOR} if their activation needs them",
        f"the first-level cache together ({limits.KERNEL_WEIGHT_BYTES[0] >> 10} KiB, with dropout "
        f"{limits.KERNEL_WEIGHT_BYTES[1] >> 10} KiB)",
    )
    assert limits.KEPT_SHARE == 1 / 8


def test_bytes_of_a_step_with_products():
    """Activations and deltas are written and read by products; the backward pass reads activations, too."""
    activations, deltas = 16 + 3 * 128, 3 * 128 + 8
    total = 2 * 2**20 * (2 * (activations + deltas) + 3 * 128)
    says(f"the products read them: about {total / 1e9:.0f} GB a step with 128 units and 2^20 samples")


def test_how_much_is_unrolled():
    (evaluated, _), (narrow, _) = (limits.UNROLLED_EVALUATED[lanes] for lanes in (16, 8))
    (trained, same), (alike, others) = (limits.UNROLLED_TRAINED[lanes] for lanes in (16, 8))
    assert trained == same == alike
    says(
        f"may have {evaluated:,} entries ({narrow:,} with AVX2)",
        f"may have {trained:,}, counted forward and back "
        f"(with AVX2 and activations that are not piecewise linear {others:,})",
        f"three hidden layers of 128 units have {round(128 * (16 + 2 * 128 + 3), -3):,}",
    )


def test_gradients_of_grids():
    rows = {
        (r["plan"], r["in_pairs"]): f"{r['kernel_ms']:.2f} ms"
        for r in results("grid-gradient-cuda")["rows"]
        if (r["part"], r["grid"], r["samples"], r.get("points")) == ("gradient", "config_hash", 1 << 18, "random")
    }
    says(
        f"GPUs from compute capability {CAPABILITY / 10} on add to two such entries",
        f"grid takes {rows['one', False]} with one copy for 2^18 random points, {rows['rule', False]} with copies, "
        f"and {rows['rule', True]} if neighbours are added together, too",
    )


def test_waiting_for_the_host():
    rows = [r for r in results("host-functions-cuda") if r["bytes"] >= 1 << 26]
    own = {f"{r['wait_us']:.0f}" for r in rows if r["flags"] == 0}
    assert len(own) == 1
    least, most = (f"{f(r['wait_us'] for r in rows):.0f}" for f in (min, max))
    says(
        f"After work of {min(r['work_us'] for r in rows):.0f} µs or more, the stream of an H100 waits {own.pop()} µs",
        f"(`host-functions-cuda.json`): {least} to {most} µs",
    )


def test_atomic_additions():
    rows = {
        (*r["shape"], r["times"], r["banks"], r["order"]): f"{r['kernel_ms']:.2f}"
        for r in results("outer-products-cuda")
    }
    says(
        f"one outer product of 64 by 64 takes {rows[64, 64, 1, 16, 'turns']} ms, "
        f"and one with three {rows[64, 64, 3, 16, 'turns']} ms",
        f"one of 24 by 24 takes {rows[24, 24, 1, 16, 'turns']} ms, "
        f"and one of 24 by 32 {rows[24, 32, 1, 16, 'turns']} ms",
        f"the first two took {rows[64, 64, 1, 16, 'blocks']} and {rows[64, 64, 3, 16, 'blocks']} ms",
    )


def test_small_batches_and_other_libraries():
    """What docs/limits.md and docs/coming_from/tiny_cuda_nn.md say in words."""
    pairs = [(theirs, own) for _, theirs, own in performance.beside_tiny_cuda_nn()]
    rows = {own["job"]: theirs["wall_ms"] / own["wall_ms"] for theirs, own in pairs}
    assert rows["config_hash"] > 1 and rows["config_oneblob"] > 1
    assert "Training steps take more than coopnet's" in sentences_of("coming_from/tiny_cuda_nn")


def test_what_postponed_frees_save():
    saved = {r["job"]: r["waiting_ms"] - r["postponed_ms"] for r in results("waiting-cuda")}
    says(
        f"takes away {saved['64']:.2f} ms of a step with 64 units, {saved['config_hash']:.2f} ms of `config_hash`, "
        f"and {saved['config_oneblob']:.2f} ms of `config_oneblob`",
    )


def test_code_beyond_the_cache():
    rows = {(r["target"], r["depth"]): r for r in results("code-size-llvm")}
    two, three = (rows["haswell", depth] for depth in (2, 3))
    assert {r["width"] for r in rows.values()} == {32}
    assert two["code_bytes"] < two["cache_bytes"] < three["code_bytes"]
    second, third = (rows["haswell", d]["wall_ms"] - rows["haswell", d - 1]["wall_ms"] for d in (2, 3))
    says(
        f"hidden layers fits into its {two['cache_bytes'] >> 10} KiB and runs at {two['gflops']:.0f} GFLOP/s",
        f"does not, and runs at {three['gflops']:.0f} (`code-size-llvm.json`",
        f"the second layer takes {second:.2f} ms, and the third {third:.2f}",
        f"three layers run at {rows['skylake-avx512', 3]['gflops']:.0f}",
    )
