// inference CONFIG INPUTS OUTPUTS SAMPLES: nanoseconds that tiny-cuda-nn takes for an evaluation of a network.
//
// CONFIG is a file with its "encoding" and "network". Inputs and outputs are single precision in memory, as in
// benchmarks/export.py. Prints two medians: of its precompiled kernels, and of the kernel that it compiles at run time
// for this network. A time is that of calls in a row, between two events of the stream.

#include <tiny-cuda-nn/config.h>
#include <tiny-cuda-nn/random.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

using namespace tcnn;

constexpr int CALLS = 20, REPEATS = 15;

int main(int argc, char *argv[]) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: inference CONFIG INPUTS OUTPUTS SAMPLES\n");
        return 1;
    }
    std::ifstream file{argv[1]};
    json config = json::parse(file);
    const uint32_t inputs = atoi(argv[2]), outputs = atoi(argv[3]), samples = atoi(argv[4]);
    // the trainer owns the parameters; nothing is trained
    config["loss"] = {{"otype", "L2"}};
    config["optimizer"] = {{"otype", "Adam"}};
    TrainableModel model = create_from_config(inputs, outputs, config);

    cudaStream_t stream;
    cudaEvent_t begin, end;
    CUDA_CHECK_THROW(cudaStreamCreate(&stream));
    CUDA_CHECK_THROW(cudaEventCreate(&begin));
    CUDA_CHECK_THROW(cudaEventCreate(&end));
    GPUMatrix<float> x(inputs, samples), y(outputs, samples);
    default_rng_t rng{1};
    generate_random_uniform<float>(stream, rng, inputs * samples, x.data());

    for (bool fused : {false, true}) {
        model.network->set_jit_fusion(fused && supports_jit_fusion());
        model.network->inference(stream, x, y);
        std::vector<float> ns;
        for (int repeat = 0; repeat < REPEATS; ++repeat) {
            CUDA_CHECK_THROW(cudaEventRecord(begin, stream));
            for (int call = 0; call < CALLS; ++call) {
                model.network->inference(stream, x, y);
            }
            CUDA_CHECK_THROW(cudaEventRecord(end, stream));
            CUDA_CHECK_THROW(cudaEventSynchronize(end));
            float ms;
            CUDA_CHECK_THROW(cudaEventElapsedTime(&ms, begin, end));
            ns.push_back(ms * 1e6f / CALLS / samples);
        }
        std::nth_element(ns.begin(), ns.begin() + REPEATS / 2, ns.end());
        // a kernel that could not be compiled at run time switches this off again
        std::printf("%s %g\n", fused ? "jit" : "precompiled", fused && !model.network->jit_fusion() ? NAN : ns[REPEATS / 2]);
    }
    free_all_gpu_memory_arenas();
    return 0;
}
