"""Times, errors and memory in the pages on rendering are those of ``benchmarks/results``."""

from __future__ import annotations

from support.figures import page, results, sentences_of


def rows(name):
    return {row["row"]: row for row in results(name)["rows"]}


def test_textures():
    row = next(r for r in results("neural-textures-llvm")["rows"] if r["texture"] == "64 x 2")
    assert round(row["symbolic_s"] / row["evaluated_s"]) == 6
    assert "three with 64 units then take a sixth of the time" in page("mitsuba")


def test_what_calls_cost():
    cpu, gpu, more = (rows(f"mitsuba_spheres{name}") for name in ("-llvm", "-cuda", "_ablations-llvm"))

    def ms(found, *names):
        return [f"{found[name]['kernel_ms']:.{0 if found[name]['kernel_ms'] > 100 else 1}f}" for name in names]

    one, four = "path, one network", "path, four networks"
    apart = [f"{four} in sample", f"{four} in eval"]
    lines = [
        ["`path`, analytic materials", *ms(cpu, "path, analytic"), *ms(gpu, "path, analytic")],
        ["`neural_path`, analytic materials", *ms(cpu, "neural_path, analytic"), *ms(gpu, "neural_path, analytic")],
        ["`path`, one network / four", *(" / ".join(ms(found, one, four)) for found in (cpu, gpu))],
        ["`path`, four networks, mixed", *(f"{t}*" for t in ms(more, f"{four}, mixed")), *ms(gpu, f"{four}, mixed")],
        ["`path`, four networks, in `sample` or `eval_pdf` only / in neither"],
        ["`path`, one network / four, evaluated calls"],
        ["`neural_path`, one network / four"],
        ["`neural_path`, one network / four, branch", "(the same)"],
        ["`neural_path`, one network / four, branch, mixed", "(the same)"],
    ]
    none = [*ms(more, "path, no network"), *ms(gpu, "path, no network")]
    lines[4] += [
        f"{', '.join(ms(more, *apart))} / {round(float(none[0]))}*",
        f"{', '.join(ms(gpu, *apart))} / {none[1]}",
    ]
    lines[5] += [" / ".join(ms(found, f"{one}, evaluated", f"{four}, evaluated")) for found in (cpu, gpu)]
    lines[6] += [" / ".join(ms(found, f"neural_{one}", f"neural_{four}")) for found in (cpu, gpu)]
    for line, how in zip(lines[7:], ("branch", "branch, mixed"), strict=True):
        line += [" / ".join(ms(gpu, f"neural_{one}, {how}", f"neural_{four}, {how}"))]
    for line in lines:
        assert f"| {' | '.join(line)} |" in page("rendering"), line
    assert f"twice as long ({gpu[f'{one}, evaluated']['wall_ms']:.0f} ms on the H200)" in sentences_of("rendering")

    def over(found, networks):
        return f"{found[f'neural_path, {networks}']['kernel_ms'] / found['neural_path, analytic']['kernel_ms']:.1f}"

    said, text = (
        [over(found, n) for n in ("one network", "four networks") for found in (cpu, gpu)],
        sentences_of("neural_path"),
    )
    assert f"With one network it takes {said[0]} times the time of analytic materials on the CPU, and {said[1]}" in text
    assert f"times on an H200; with four, {said[2]} and {said[3]} times" in text
    seconds = [
        f"{cpu[f'{name}, {networks}, gradient']['kernel_ms'] / 1e3:.2f} s"
        for networks in ("one network", "four networks")
        for name in ("neural_path", "prb")
    ]
    assert (
        f"on the CPU {seconds[0]} against {seconds[1]} with one network, and {seconds[2]} against {seconds[3]}" in text
    )


def test_modes_of_marching():
    found = {
        (name, row["field"], row["peer"]): row["to_plain"]
        for name in ("llvm", "cuda")
        for row in results(f"marching-{name}")["training"]
        if row["frozen"]
    }
    for field in ("hash grid, 64 wide", "bare, 33 wide", "bare, 64 wide"):
        cells = [
            " / ".join(f"{found[name, field, mode]:.2f}" for name in ("llvm", "cuda"))
            for mode in ("wide", "replay", "loop")
        ]
        assert f"| {field} | {' | '.join(cells)} |" in page("rendering"), cells
    memory = {(row["peer"], row["steps"]): row["peak_bytes"] / 1e6 for row in results("marching-llvm")["memory"]}
    said = f'grows from {memory["wide", 16]:.0f} to {memory["wide", 256]:.0f} MB, while that of `"replay"` stays at'
    assert f"{said} {memory['replay', 256]:.1f} MB" in sentences_of("rendering")
    assert memory["replay", 16] == memory["replay", 256]


def test_sphere_tracing_beside_a_bare_loop():
    found = {name: results(f"tracing-{name}") for name in ("llvm", "cuda")}
    for name, label in (("llvm", "CPU"), ("cuda", "H200")):
        for key, what in (("trace_over_bare", ""), ("full_over_bare_full", ", with normals")):
            cells = [f"{row[key]:.2f}" for row in found[name]]
            assert f"| {label}{what} | {' | '.join(cells)} |" in page("rendering"), cells
    cpu, gpu = found["llvm"][0], found["cuda"][0]
    by_hand = [f"{row['by_hand_over_trace']:.2f} times" for row in (cpu, gpu)]
    evaluated = [f"{row['evaluated_over_trace']:.0f}" for row in (cpu, gpu)]
    text = sentences_of("rendering")
    assert f"take {by_hand[0]} the time of `sphere_trace` on the CPU, and {by_hand[1]} on the H200" in text
    assert f"With evaluated loops they take {evaluated[0]} and {evaluated[1]} times its time" in text
    fewer = 1 - gpu["by_hand_evaluations_per_ray"] / gpu["evaluations_per_ray"]
    assert f"where they evaluate the field {100 * fewer:.0f} % less often" in text


def test_what_is_compiled_again():
    """To the nearest thousand; the first call's two kernels are a loop and a normal."""
    found = {row["call"]: f"{row['operations'] / 1e3:.0f},000" for row in results("trace-shapes-llvm")["rows"]}
    text = page("rendering")
    loop, rest = found["t alone evaluated"], found["then the normal alone"]
    assert f"| `t` evaluated alone, then `normal` alone | {loop}, then {rest} |" in text
    alike = ("one origin for all rays", "t_max for each ray", "active for each ray", "a single ray")
    assert {found[call] for call in alike} == {found["first"]} == {"15,000"}
    assert f"a single ray | {found['first']} |" in text and f"kernel has {found['first']} operations" in sentences_of(
        "rendering"
    )


def test_a_cache_that_is_trained_and_then_used():
    text = sentences_of("mitsuba_light")

    def cache(name, scene, steps):
        (row,) = (r for r in results(f"radiance-cache-{name}") if r["scene"] == scene)
        (found,) = (c for c in row["cache"] if c["vertices"] == 1 and c["steps"] == steps)
        return found["training_s"], found["moments"][-1]["path_over_cache"], found["moments"]

    (spent, cornell, moments), (_, glossy, _) = (cache("llvm", scene, 600) for scene in ("cornell", "glossy"))
    end = f"after {moments[-1]['seconds']:.0f} s"
    assert f"600 training steps ({spent:.0f} s of the time), the error of `path` {end} is {cornell:.1f} times" in text
    assert f"in the Cornell box, and {glossy:.1f} times in a glossy scene" in text
    _, last, moments = cache("llvm", "cornell", 100)
    best = max(m["path_over_cache"] for m in moments)
    assert f"is {best:.1f} times the cache's at best, and {last:.1f} times {end}" in text
    (spent, more, _), (_, fewer, _) = (cache("cuda", "cornell", steps) for steps in (600, 300))
    assert f"{spent:.1f} s of them training, the error of `path` is {more:.1f} times the cache's" in text
    assert f"with 300 steps {fewer:.1f} times" in text


def test_what_ten_minutes_lead_to():
    found, text = results("ten-minutes-llvm"), sentences_of("ten_minutes")
    said = f"A field of {found['parameters']:,} parameters, in a file of {found['bytes'] / 1e3:.1f} kB, that"
    assert said in text
    assert f"a frame of {found['size']} x {found['size']} rays takes {found['frame_ms']:.0f} ms" in text
    *small, all_pixels = found["kernels"]
    assert all_pixels == found["size"] ** 2 and len(small) == 3 and max(small) < 4096
    assert f"steps={found['steps']}" in text and found["loss"] < 0.005 and "It ends below 0.005." in text
