// A material on a unit sphere or a square under a point light: the picture of Mitsuba's direct light, without noise.
//
// u[0]: width, height, rays along a side of a pixel, is it a square?   u[1]: eye   u[2]: forward, size of a pixel at
// distance 1   u[3]: right   u[4]: down   u[5]: the light and its intensity   u[7]: the colour behind

const float PI = 3.14159265358979;

/** sRGB's curve, by which radiance becomes a colour, and its inverse. */
vec3 encoded(vec3 v) {
    return mix(1.055 * pow(max(v, 0.0031308), vec3(1.0 / 2.4)) - 0.055, 12.92 * v, lessThanEqual(v, vec3(0.0031308)));
}

vec3 decoded(vec3 v) {
    return mix(pow((max(v, 0.04045) + 0.055) / 1.055, vec3(2.4)), v / 12.92, lessThanEqual(v, vec3(0.04045)));
}

vec3 radiance(vec2 pixel) {
    vec3 eye = u[1].xyz;
    vec2 v = (pixel - 0.5 * u[0].xy) * u[2].w;
    vec3 d = normalize(u[2].xyz + v.x * u[3].xyz + v.y * u[4].xyz);
    vec3 p, n, s; // point, normal, tangent
    vec2 uv;
    if (u[0].w == 0.0) {
        // from the point of the ray that is next to the middle: the quadratic formula would lose bits
        vec3 next = eye - dot(eye, d) * d;
        float inside = 1.0 - dot(next, next);
        if (inside < 0.0) {
            return decoded(u[7].xyz);
        }
        p = next - sqrt(inside) * d;
        n = normalize(p);
        float across = length(n.xy);
        s = across > 0.0 ? vec3(-n.y, n.x, 0.0) / across : vec3(1.0, 0.0, 0.0);
        float turn = across > 0.0 ? atan(n.y, n.x) / (2.0 * PI) : 0.0;
        uv = vec2(turn < 0.0 ? turn + 1.0 : turn, atan(across, n.z) / PI);
    } else {
        n = -u[2].xyz; // it faces the camera
        p = eye - dot(eye, n) / dot(d, n) * d;
        s = u[3].xyz;
        vec2 place = vec2(dot(p, s), -dot(p, u[4].xyz));
        if (any(greaterThan(abs(place), vec2(1.0)))) {
            return decoded(u[7].xyz);
        }
        uv = 0.5 * place + 0.5;
    }
    vec3 t = cross(n, s), light = u[5].xyz - p, wo = normalize(light);
    float x[8] = float[8](uv.x, uv.y, -dot(d, s), -dot(d, t), -dot(d, n), dot(wo, s), dot(wo, t), dot(wo, n)), y[3];
    field(x, y);
    return vec3(y[0], y[1], y[2]) * (u[5].w / dot(light, light));
}

/** What the screen shows of a pixel, whose upper left corner is given. */
vec3 shown(vec2 pixel) {
    uint side = uint(u[0].z);
    vec3 sum = vec3(0.0);
    for (uint i = 0u; i < side * side; ++i) {
        vec2 part = (vec2(uvec2(i % side, i / side)) + 0.5) / float(side);
        sum += radiance(pixel + part);
    }
    return clamp(encoded(sum / float(side * side)), 0.0, 1.0);
}

out vec4 drawn;

void main() {
    drawn = vec4(shown(floor(vec2(gl_FragCoord.x, u[0].y - gl_FragCoord.y))), 1.0);
}
