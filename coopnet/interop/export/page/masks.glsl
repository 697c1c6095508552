// The field, or mean and deviation over dropout masks: of seed 0, the pixel's number and the steps 0, 1, ...

// Five colours of viridis.
vec3 map(float v) {
    vec3 a = vec3(0.267, 0.005, 0.329), b = vec3(0.231, 0.322, 0.545), c = vec3(0.129, 0.569, 0.549);
    vec3 d = vec3(0.369, 0.788, 0.384), e = vec3(0.992, 0.906, 0.145);
    float t = 4.0 * clamp(v, 0.0, 1.0);
    return mix(mix(mix(mix(a, b, min(t, 1.0)), c, clamp(t - 1.0, 0.0, 1.0)), d, clamp(t - 2.0, 0.0, 1.0)), e,
        clamp(t - 3.0, 0.0, 1.0));
}

vec3 shown(float x[2], vec2 pixel) {
    if (u[0].w == 0.0) {
        return plain(x, pixel);
    }
    float mean[OUTPUTS], spread[OUTPUTS];
    for (uint c = 0u; c < OUTPUTS; ++c) {
        mean[c] = spread[c] = 0.0;
    }
    uint index = uint(pixel.y) * uint(u[0].x) + uint(pixel.x);
    for (uint i = 0u; i < uint(u[3].x); ++i) {
        float y[OUTPUTS];
        masked(x, uint[4](0u, 0u, index, i), y);
        for (uint c = 0u; c < OUTPUTS; ++c) {
            float difference = y[c] - mean[c];
            mean[c] += difference / float(i + 1u);
            spread[c] += difference * (y[c] - mean[c]);
        }
    }
    if (u[0].w == 1.0) {
        return colour(mean, pixel);
    }
    float variance = 0.0;
    for (uint c = 0u; c < OUTPUTS; ++c) {
        variance += spread[c] / (u[3].x * float(OUTPUTS));
    }
    return map(sqrt(variance) / u[3].y);
}
