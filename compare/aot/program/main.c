// One launch of one kernel, without Python:
//
//   program INPUT... OUTPUT           reads the inputs' bytes, launches once, writes the output's bytes
//   program --graph INPUT... OUTPUT   the same, the launch replayed as a CUDA graph
//   program --time INPUT... OUTPUT    and then many launches, timed on the host
//
// The first result's time and those of launches go to stdout, a line each.  plan.h, which was generated with
// the program, says which kernel it is and what it is given.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "plan.h"

// The output lies between zones of the same poison as its own: what is written past it shows.
enum { ZONE_BYTES = 1 << 16, POISON = 0x7fde };
enum { SAMPLES = 50, LAUNCHES = 100 };  // fewer in a row than the driver lets wait for the GPU

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char* what, const char* file) {
    fprintf(stderr, "%s %s\n", what, file);
    exit(2);
}

static void* bytes_of(size_t bytes) {
    void* memory = malloc(bytes ? bytes : 1);
    if (!memory) fail("no memory for", "the host's copies");
    return memory;
}

static CUgraphExec graph_of_a_launch(CUstream stream, const CUdeviceptr* memory) {
    CUgraph graph;
    CUgraphExec executable;
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK(launch(stream, memory));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
}

// Microseconds of the host's time for one of LAUNCHES launches in a row.
static double host_us(CUstream stream, const CUdeviceptr* memory, CUgraphExec graph) {
    CHECK(cuStreamSynchronize(stream));
    const int64_t begin = now_ns();
    for (int i = 0; i < LAUNCHES; ++i) {
        if (graph) {
            CHECK(cuGraphLaunch(graph, stream));
        } else {
            CHECK(launch(stream, memory));
        }
    }
    const int64_t end = now_ns();
    CHECK(cuStreamSynchronize(stream));
    return (double)(end - begin) / LAUNCHES / 1000;
}

int main(int count, char** words) {
    int as_graph = 0, timed = 0;
    for (; count > 1 && strncmp(words[1], "--", 2) == 0; --count, ++words) {
        as_graph |= strcmp(words[1], "--graph") == 0;
        timed |= strcmp(words[1], "--time") == 0;
    }
    if (count != INPUTS + 2) fail("usage: program [--graph] [--time]", USAGE);

    CUdevice device;
    CUcontext context;
    CUstream stream;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    load();

    CUdeviceptr memory[INPUTS + 1];
    unsigned char* given[INPUTS];
    for (int i = 0; i < INPUTS; ++i) {
        given[i] = bytes_of(MEMORY_BYTES[i]);
        FILE* file = fopen(words[1 + i], "rb");
        if (!file || fread(given[i], 1, MEMORY_BYTES[i], file) != MEMORY_BYTES[i] || fgetc(file) != EOF) {
            fail("not a file of the input's bytes:", words[1 + i]);
        }
        fclose(file);
        CHECK(cuMemAlloc(&memory[i], MEMORY_BYTES[i] ? MEMORY_BYTES[i] : 1));
        CHECK(cuMemcpyHtoD(memory[i], given[i], MEMORY_BYTES[i]));
    }
    const size_t output_bytes = MEMORY_BYTES[INPUTS];
    const size_t all_bytes = ZONE_BYTES + (output_bytes + 1) / 2 * 2 + ZONE_BYTES;
    CUdeviceptr around;
    CHECK(cuMemAlloc(&around, all_bytes));
    CHECK(cuMemsetD16(around, POISON, all_bytes / 2));
    memory[INPUTS] = around + ZONE_BYTES;
    CHECK(cuStreamSynchronize(
        0));  // copies and poison are on the legacy stream, which the other does not wait for

    if (as_graph) {
        CHECK(cuGraphLaunch(graph_of_a_launch(stream, memory), stream));
    } else {
        CHECK(launch(stream, memory));
    }
    CHECK(cuStreamSynchronize(stream));
    unsigned char* result = bytes_of(all_bytes);
    CHECK(cuMemcpyDtoH(result + ZONE_BYTES, memory[INPUTS], output_bytes));
    printf("first_result_ns %lld\n", (long long)now_ns());

    CHECK(cuMemcpyDtoH(result, around, all_bytes));
    FILE* file = fopen(words[1 + INPUTS], "wb");
    if (!file || fwrite(result + ZONE_BYTES, 1, output_bytes, file) != output_bytes || fclose(file) != 0) {
        fail("cannot write", words[1 + INPUTS]);
    }
    for (size_t at = 0; at < all_bytes; at += 2) {
        const unsigned short poison = POISON;
        const int inside = at >= ZONE_BYTES && at < all_bytes - ZONE_BYTES;
        if (!inside && memcmp(result + at, &poison, 2) != 0) {
            printf("out_of_bounds %lld\n", (long long)at - ZONE_BYTES);
            break;
        }
    }
    for (int i = 0; i < INPUTS; ++i) {
        unsigned char* after = bytes_of(MEMORY_BYTES[i]);
        CHECK(cuMemcpyDtoH(after, memory[i], MEMORY_BYTES[i]));
        if (memcmp(after, given[i], MEMORY_BYTES[i]) != 0) printf("input_changed %d\n", i);
        free(after);
    }
    if (timed) {
        const CUgraphExec graph = graph_of_a_launch(stream, memory);
        host_us(stream, memory, NULL);
        host_us(stream, memory, graph);
        for (int i = 0; i < SAMPLES; ++i) {
            printf("launch_us %.4f\n", host_us(stream, memory, NULL));
            printf("graph_us %.4f\n", host_us(stream, memory, graph));
        }
    }
    return 0;
}
