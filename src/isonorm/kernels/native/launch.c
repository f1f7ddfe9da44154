/* Launching several prepared GPU kernels by one call: see gpu/launch.py. */

#include <stdint.h>
#include <string.h>

/* The driver's CUlaunchConfig. */
struct config {
    unsigned grid[3], threads[3], shared;
    void *stream;
    void *attributes;
    unsigned attribute_count;
};

/* A compiled kernel with all of its parameters but the tensors' addresses, which come first. */
struct kernel {
    struct config how;
    void *function;
    int tensors, parameters;
    const uint64_t *numbers; /* parameters - tensors of them, 8 bytes each */
};

/* A kernel, and where among the addresses those of its tensors are. */
struct step {
    const struct kernel *kernel;
    const uint8_t *slots;
};

/* cuLaunchKernelEx. */
typedef int (*launcher)(const struct config *, void *, void **, void **);

enum { MOST_PARAMETERS = 64 };

/* Launches steps one after the other. Returns how many were launched: fewer than there are where one
   has failed. Everything that changes lies on the stack, so that threads may share the steps. */
int launch_kernels(launcher launch, const struct step *steps, int count, void *stream,
                   const uint64_t *addresses)
{
    for (int i = 0; i < count; i++) {
        const struct kernel *kernel = steps[i].kernel;
        uint64_t values[MOST_PARAMETERS];
        void *parameters[MOST_PARAMETERS];
        struct config how = kernel->how;
        if (kernel->parameters > MOST_PARAMETERS)
            return i;
        for (int j = 0; j < kernel->tensors; j++)
            values[j] = addresses[steps[i].slots[j]];
        memcpy(values + kernel->tensors, kernel->numbers,
               sizeof *values * (size_t)(kernel->parameters - kernel->tensors));
        for (int j = 0; j < kernel->parameters; j++)
            parameters[j] = &values[j];
        how.stream = stream;
        if (launch(&how, kernel->function, parameters, 0))
            return i;
    }
    return count;
}
