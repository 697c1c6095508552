// The field, or mean and deviation over dropout masks: of seed 0, the pixel's number and the steps 0, 1, ...

// Five colours of viridis.
fn map(v: f32) -> vec3f {
    let a = vec3f(0.267, 0.005, 0.329);
    let b = vec3f(0.231, 0.322, 0.545);
    let c = vec3f(0.129, 0.569, 0.549);
    let d = vec3f(0.369, 0.788, 0.384);
    let e = vec3f(0.992, 0.906, 0.145);
    let t = 4.0 * clamp(v, 0.0, 1.0);
    return mix(mix(mix(mix(a, b, min(t, 1.0)), c, clamp(t - 1.0, 0.0, 1.0)), d, clamp(t - 2.0, 0.0, 1.0)), e,
        clamp(t - 3.0, 0.0, 1.0));
}

fn shown(x: array<f32, 2>, pixel: vec2f) -> vec3f {
    if (u[0].w == 0.0) {
        return plain(x, pixel);
    }
    var mean: array<f32, OUTPUTS>;
    var spread: array<f32, OUTPUTS>;
    let index = u32(pixel.y) * u32(u[0].x) + u32(pixel.x);
    for (var i = 0u; i < u32(u[3].x); i++) {
        var y: array<f32, OUTPUTS>;
        masked(x, array<u32, 4>(0u, 0u, index, i), &y);
        for (var c = 0u; c < OUTPUTS; c++) {
            let difference = y[c] - mean[c];
            mean[c] += difference / f32(i + 1u);
            spread[c] += difference * (y[c] - mean[c]);
        }
    }
    if (u[0].w == 1.0) {
        return colour(mean, pixel);
    }
    var variance = 0.0;
    for (var c = 0u; c < OUTPUTS; c++) {
        variance += spread[c] / (u[3].x * f32(OUTPUTS));
    }
    return map(sqrt(variance) / u[3].y);
}
