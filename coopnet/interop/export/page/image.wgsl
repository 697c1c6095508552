// A picture of a field over the plane: coordinates of pixels, and what is shown of the field there.
//
// u[0]: width, height, -, what to show   u[1]: place of the upper left corner, size of a pixel
// u[2]: left, top, width and height of the region   u[3]: masks, white of deviations   u[7]: the colour outside

const OUTPUTS = @OUTPUTS@u;

@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4f {
    return vec4f(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}

fn colour(y: array<f32, OUTPUTS>, pixel: vec2f) -> vec3f {
    let square = floor(pixel / 8.0);
    let checks = 0.6 + 0.2 * (square.x + square.y - 2.0 * floor((square.x + square.y) * 0.5));
    return @COLOUR@;
}

fn plain(x: array<f32, 2>, pixel: vec2f) -> vec3f {
    var y: array<f32, OUTPUTS>;
    field(x, &y);
    return colour(y, pixel);
}

@SHOWN@

@fragment fn main(@builtin(position) at: vec4f) -> @location(0) vec4f {
    let pixel = floor(at.xy);
    let p = u[1].xy + (pixel + 0.5) * u[1].zw;
    let inside = (p - u[2].xy) / u[2].zw;
    if (any(inside < vec2f(0.0)) || any(inside > vec2f(1.0))) {
        return vec4f(u[7].xyz, 1.0);
    }
    return vec4f(clamp(shown(array<f32, 2>(p.x, p.y), pixel), vec3f(0.0), vec3f(1.0)), 1.0);
}
