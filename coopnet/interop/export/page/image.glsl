// A picture of a field over the plane: coordinates of pixels, and what is shown of the field there.
//
// u[0]: width, height, -, what to show   u[1]: place of the upper left corner, size of a pixel
// u[2]: left, top, width and height of the region   u[3]: masks, white of deviations   u[7]: the colour outside

const uint OUTPUTS = @OUTPUTS@u;
out vec4 drawn;

vec3 colour(float y[OUTPUTS], vec2 pixel) {
    vec2 square = floor(pixel / 8.0);
    float checks = 0.6 + 0.2 * mod(square.x + square.y, 2.0);
    return @COLOUR@;
}

vec3 plain(float x[2], vec2 pixel) {
    float y[OUTPUTS];
    field(x, y);
    return colour(y, pixel);
}

@SHOWN@

void main() {
    vec2 pixel = floor(vec2(gl_FragCoord.x, u[0].y - gl_FragCoord.y));
    vec2 p = u[1].xy + (pixel + 0.5) * u[1].zw;
    vec2 inside = (p - u[2].xy) / u[2].zw;
    if (any(lessThan(inside, vec2(0.0))) || any(greaterThan(inside, vec2(1.0)))) {
        drawn = vec4(u[7].xyz, 1.0);
        return;
    }
    drawn = vec4(clamp(shown(float[2](p.x, p.y), pixel), 0.0, 1.0), 1.0);
}
