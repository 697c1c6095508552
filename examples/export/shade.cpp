// Draws the surface of an exported signed distance in the unit cube, lit from the camera's shoulder.
//
//     coopnet export sdf.safetensors -o . --to c --derivatives --no-inline
//     c++ -O2 -std=c++17 -I. shade.cpp -o shade
//     ./shade field.c.weights surface.ppm
#include "field.c"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>
const int SIDE = 256, STEPS = 128;
const float EPS = 5e-4f, DISTANCE = 2.4f, FIELD_OF_VIEW = 0.54f;

int main(int count, char **arguments) {
    if (count != 3) return std::fprintf(stderr, "usage: shade field.c.weights surface.ppm\n"), 2;
    std::ifstream file(arguments[1], std::ios::binary);
    std::istreambuf_iterator<char> end, begin(file.peek() == EOF ? nullptr : file.rdbuf()); // of a folder nothing
    std::vector<char> bytes(begin, end);
    if (!field_fits(bytes.data(), bytes.size()))
        return std::fprintf(stderr, "%s: not the weights of this field\n", arguments[1]), 1;
    std::vector<uint32_t> weights(bytes.size() / 4);
    std::memcpy(weights.data(), bytes.data(), bytes.size());
    std::ofstream picture(arguments[2], std::ios::binary);
    picture << "P6\n" << SIDE << " " << SIDE << "\n255\n";
    for (int row = 0; row < SIDE; ++row)
        for (int column = 0; column < SIDE; ++column) {
            // the camera looks along -z at the middle of the cube
            float d[3] = {(column + 0.5f) / SIDE - 0.5f, 0.5f - (row + 0.5f) / SIDE, -1.0f / FIELD_OF_VIEW}, p[3], y[1];
            float length = std::sqrt(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]), t = 0.0f, lit = 1.0f;
            for (float &v : d) v /= length;
            t = (DISTANCE - 0.5f) / -d[2]; // the front of the cube
            for (int i = 0; i < STEPS && t < DISTANCE + 1.0f; ++i) {
                for (int k = 0; k < 3; ++k) p[k] = 0.5f + (k == 2 ? DISTANCE : 0.0f) + t * d[k];
                field(weights.data(), p, y);
                if (y[0] < EPS) { // a hit: the derivative is the normal
                    float n[3];
                    field_jacobian(weights.data(), p, y, n);
                    float size = std::sqrt(n[0] * n[0] + n[1] * n[1] + n[2] * n[2]);
                    lit = 0.15f + 0.85f * std::max(0.0f, (0.48f * n[0] + 0.6f * n[1] + 0.64f * n[2]) / size);
                    break;
                }
                t += 0.8f * y[0];
            }
            for (int k = 0; k < 3; ++k) picture.put(static_cast<char>(255.0f * std::pow(lit, 1 / 2.2f) + 0.5f));
        }
    return picture.flush() ? 0 : (std::fprintf(stderr, "cannot write %s\n", arguments[2]), 1);
}
