// A material on a unit sphere or a square under a point light: the picture of Mitsuba's direct light, without noise.
//
// u[0]: width, height, rays along a side of a pixel, is it a square?   u[1]: eye   u[2]: forward, size of a pixel at
// distance 1   u[3]: right   u[4]: down   u[5]: the light and its intensity   u[7]: the colour behind

const PI = 3.14159265358979;

@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4f {
    return vec4f(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}

// sRGB's curve, by which radiance becomes a colour, and its inverse.
fn encoded(v: vec3f) -> vec3f {
    return select(1.055 * pow(max(v, vec3f(0.0031308)), vec3f(1.0 / 2.4)) - 0.055, 12.92 * v, v <= vec3f(0.0031308));
}

fn decoded(v: vec3f) -> vec3f {
    return select(pow((max(v, vec3f(0.04045)) + 0.055) / 1.055, vec3f(2.4)), v / 12.92, v <= vec3f(0.04045));
}

fn radiance(pixel: vec2f) -> vec3f {
    let eye = u[1].xyz;
    let v = (pixel - 0.5 * u[0].xy) * u[2].w;
    let d = normalize(u[2].xyz + v.x * u[3].xyz + v.y * u[4].xyz);
    var p: vec3f; // point, normal, tangent
    var n: vec3f;
    var s: vec3f;
    var uv: vec2f;
    if (u[0].w == 0.0) {
        // from the point of the ray that is next to the middle: the quadratic formula would lose bits
        let next = eye - dot(eye, d) * d;
        let inside = 1.0 - dot(next, next);
        if (inside < 0.0) {
            return decoded(u[7].xyz);
        }
        p = next - sqrt(inside) * d;
        n = normalize(p);
        let across = length(n.xy);
        s = vec3f(1.0, 0.0, 0.0);
        var turn = 0.0;
        if (across > 0.0) {
            s = vec3f(-n.y, n.x, 0.0) / across;
            turn = atan2(n.y, n.x) / (2.0 * PI);
        }
        uv = vec2f(select(turn, turn + 1.0, turn < 0.0), atan2(across, n.z) / PI);
    } else {
        n = -u[2].xyz; // it faces the camera
        p = eye - dot(eye, n) / dot(d, n) * d;
        s = u[3].xyz;
        let place = vec2f(dot(p, s), -dot(p, u[4].xyz));
        if (any(abs(place) > vec2f(1.0))) {
            return decoded(u[7].xyz);
        }
        uv = 0.5 * place + 0.5;
    }
    let t = cross(n, s);
    let light = u[5].xyz - p;
    let wo = normalize(light);
    let x = array<f32, 8>(uv.x, uv.y, -dot(d, s), -dot(d, t), -dot(d, n), dot(wo, s), dot(wo, t), dot(wo, n));
    var y: array<f32, 3>;
    field(x, &y);
    return vec3f(y[0], y[1], y[2]) * (u[5].w / dot(light, light));
}

// What the screen shows of a pixel, whose upper left corner is given.
fn shown(pixel: vec2f) -> vec3f {
    let side = u32(u[0].z);
    var sum = vec3f(0.0);
    for (var i = 0u; i < side * side; i++) {
        let part = (vec2f(vec2u(i % side, i / side)) + 0.5) / f32(side);
        sum += radiance(pixel + part);
    }
    return clamp(encoded(sum / f32(side * side)), vec3f(0.0), vec3f(1.0));
}

@fragment fn main(@builtin(position) at: vec4f) -> @location(0) vec4f {
    return vec4f(shown(floor(at.xy)), 1.0);
}
