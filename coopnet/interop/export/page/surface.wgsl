// A signed distance, sphere-traced (Hart 1996) from a camera and lit from its shoulder, as coopnet.mesh.render does.
//
// u[0]: width, height, rays along a side of a pixel, are normals smooth?   u[1]: eye, size of the box
// u[2]: forward, size of a pixel at distance 1   u[3]: right   u[4]: down   u[5], u[6]: corners of the box
// u[7]: the colour behind the surface

const STEPS = @STEPS@u;
const EPS = @EPS@; // of hits, in sizes of the box
const LIPSCHITZ = @LIPSCHITZ@; // bound on the length of the field's gradient
const DIFFERENCE = @DIFFERENCE@; // of smooth normals, in sizes of the box
const GAMMA = @GAMMA@;

@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4f {
    return vec4f(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}

fn distance_at(p: vec3f) -> f32 {
    var y: array<f32, 1>;
    field(array<f32, 3>(p.x, p.y, p.z), &y);
    return y[0];
}

fn normal_at(p: vec3f) -> vec3f {
    var g: array<f32, 3>;
    if (u[0].w == 0.0) {
        var y: array<f32, 1>;
        field_jacobian(array<f32, 3>(p.x, p.y, p.z), &y, &g);
    } else {
        for (var i = 0u; i < 6u; i++) {
            let side = f32(i & 1u) * 2.0 - 1.0;
            let along = vec3f(vec3u(i >> 1u) == vec3u(0u, 1u, 2u));
            g[i >> 1u] += side * distance_at(p + side * DIFFERENCE * u[1].w * along);
        }
    }
    let n = vec3f(g[0], g[1], g[2]);
    return n / max(length(n), 1e-30);
}

fn radiance(pixel: vec2f) -> vec3f {
    let eye = u[1].xyz;
    let v = (pixel - 0.5 * u[0].xy) * u[2].w;
    let d = normalize(u[2].xyz + v.x * u[3].xyz + v.y * u[4].xyz);
    let inverse = 1.0 / select(d, vec3f(1e-8), abs(d) < vec3f(1e-8));
    let a = (u[5].xyz - eye) * inverse;
    let b = (u[6].xyz - eye) * inverse;
    let first = min(a, b);
    let last = max(a, b);
    var t = max(max(first.x, max(first.y, first.z)), 0.0);
    let far = min(last.x, min(last.y, last.z));
    var hit = false;
    for (var i = 0u; i < STEPS; i++) {
        if (t > far) {
            break;
        }
        let f = distance_at(eye + t * d) / LIPSCHITZ;
        if (abs(f) < EPS * u[1].w || (f < 0.0 && i == 0u)) { // or cut open by the box
            hit = true;
            break;
        }
        t += f; // back, where it was too far
    }
    if (!hit) {
        return pow(u[7].xyz, vec3f(GAMMA));
    }
    let n = normal_at(eye + t * d);
    let light = normalize(0.45 * u[3].xyz - 0.6 * u[4].xyz - u[2].xyz);
    let lit = (0.14 + 0.86 * max(dot(n, light), 0.0)) * (0.75 + 0.25 * abs(dot(n, d)));
    return lit * vec3f(@COLOUR@);
}

@fragment fn main(@builtin(position) at: vec4f) -> @location(0) vec4f {
    let side = u32(u[0].z);
    var sum = vec3f(0.0);
    for (var i = 0u; i < side * side; i++) {
        let part = (vec2f(vec2u(i % side, i / side)) + 0.5) / f32(side);
        sum += radiance(floor(at.xy) + part);
    }
    return vec4f(pow(sum / f32(side * side), vec3f(1.0 / GAMMA)), 1.0);
}
