// A signed distance, sphere-traced (Hart 1996) from a camera and lit from its shoulder, as coopnet.mesh.render does.
//
// u[0]: width, height, rays along a side of a pixel, are normals smooth?   u[1]: eye, size of the box
// u[2]: forward, size of a pixel at distance 1   u[3]: right   u[4]: down   u[5], u[6]: corners of the box
// u[7]: the colour behind the surface

const uint STEPS = @STEPS@u;
const float EPS = @EPS@; // of hits, in sizes of the box
const float LIPSCHITZ = @LIPSCHITZ@; // bound on the length of the field's gradient
const float DIFFERENCE = @DIFFERENCE@; // of smooth normals, in sizes of the box
const float GAMMA = @GAMMA@;
out vec4 drawn;

float distance_at(vec3 p) {
    float y[1];
    field(float[3](p.x, p.y, p.z), y);
    return y[0];
}

vec3 normal_at(vec3 p) {
    float g[3] = float[3](0.0, 0.0, 0.0);
    if (u[0].w == 0.0) {
        float y[1];
        field_jacobian(float[3](p.x, p.y, p.z), y, g);
    } else {
        for (uint i = 0u; i < 6u; ++i) {
            float side = float(i & 1u) * 2.0 - 1.0;
            vec3 along = vec3(equal(uvec3(i >> 1u), uvec3(0u, 1u, 2u)));
            g[i >> 1u] += side * distance_at(p + side * DIFFERENCE * u[1].w * along);
        }
    }
    vec3 n = vec3(g[0], g[1], g[2]);
    return n / max(length(n), 1e-30);
}

vec3 radiance(vec2 pixel) {
    vec3 eye = u[1].xyz;
    vec2 v = (pixel - 0.5 * u[0].xy) * u[2].w;
    vec3 d = normalize(u[2].xyz + v.x * u[3].xyz + v.y * u[4].xyz);
    vec3 inverse = 1.0 / mix(d, vec3(1e-8), lessThan(abs(d), vec3(1e-8)));
    vec3 a = (u[5].xyz - eye) * inverse;
    vec3 b = (u[6].xyz - eye) * inverse;
    vec3 first = min(a, b);
    vec3 last = max(a, b);
    float t = max(max(first.x, max(first.y, first.z)), 0.0);
    float far = min(last.x, min(last.y, last.z));
    bool hit = false;
    for (uint i = 0u; i < STEPS; ++i) {
        if (t > far) {
            break;
        }
        float f = distance_at(eye + t * d) / LIPSCHITZ;
        if (abs(f) < EPS * u[1].w || (f < 0.0 && i == 0u)) { // or cut open by the box
            hit = true;
            break;
        }
        t += f; // back, where it was too far
    }
    if (!hit) {
        return pow(u[7].xyz, vec3(GAMMA));
    }
    vec3 n = normal_at(eye + t * d);
    vec3 light = normalize(0.45 * u[3].xyz - 0.6 * u[4].xyz - u[2].xyz);
    float lit = (0.14 + 0.86 * max(dot(n, light), 0.0)) * (0.75 + 0.25 * abs(dot(n, d)));
    return lit * vec3(@COLOUR@);
}

void main() {
    uint side = uint(u[0].z);
    vec2 pixel = floor(vec2(gl_FragCoord.x, u[0].y - gl_FragCoord.y));
    vec3 sum = vec3(0.0);
    for (uint i = 0u; i < side * side; ++i) {
        vec2 part = (vec2(uvec2(i % side, i / side)) + 0.5) / float(side);
        sum += radiance(pixel + part);
    }
    drawn = vec4(pow(sum / float(side * side), vec3(1.0 / GAMMA)), 1.0);
}
