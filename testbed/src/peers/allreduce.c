/* A dense all-reduce by MPI, measured as `gleaner bench` measures: a barrier, the clock around the all-reduce alone, the
 * maximum over the ranks, and fresh numbers in every step. Rank 0 prints one JSON object.
 *
 *     allreduce METHOD PARAMS STEPS WARMUP SEED
 */
#include <limits.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bits of a counter (SplitMix64's finaliser), and from them a number that sums exactly in any order: a multiple of 1/256
 * below 4, so that the result can be compared bit by bit. */
static float entry(uint64_t seed, uint64_t rank, uint64_t step, uint64_t position) {
    uint64_t z = (position + (rank << 40) + (step << 52)) * 0x9e3779b97f4a7c15u ^ seed * 0xd1b54a32d192ed03u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return (float)((int64_t)(z >> 53) - 1024) / 256;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words) {
    if (count != 6) {
        fprintf(stderr, "usage: allreduce METHOD PARAMS STEPS WARMUP SEED\n");
        return 2;
    }
    long params = atol(words[2]), steps = atol(words[3]), warmup = atol(words[4]), seed = atol(words[5]);
    if (params < 1 || params > INT_MAX) {
        fprintf(stderr, "%ld entries cannot be reduced at once; expected from 1 to %d\n", params, INT_MAX);
        return 2;
    }
    int rank, workers;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &workers);
    float *own = malloc(params * sizeof *own), *sum = malloc(params * sizeof *sum);
    double *seconds = malloc((steps + 1) * sizeof *seconds);
    if (own == NULL || sum == NULL || seconds == NULL) {
        fprintf(stderr, "rank %d has no memory for %ld entries\n", rank, params);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (long step = 0; step < warmup + steps; step++) {
        for (long i = 0; i < params; i++) own[i] = entry(seed, rank, step, i);
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(own, sum, (int)params, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double took = MPI_Wtime() - start, slowest = 0;
        MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (step >= warmup) seconds[step - warmup] = slowest;
        for (long i = 0; i < params; i += 997) {
            float expected = 0;
            for (int other = 0; other < workers; other++) expected += entry(seed, other, step, i);
            if (sum[i] != expected) {
                fprintf(stderr, "rank %d, step %ld, entry %ld: the sum is %g and not %g\n", rank, step, i, sum[i], expected);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        }
    }
    if (rank == 0) {
        char version[MPI_MAX_LIBRARY_VERSION_STRING];
        int length;
        MPI_Get_library_version(version, &length);
        /* The first line says enough, and nothing in it may end a text in JSON. */
        version[strcspn(version, ",\n\"\\")] = 0;
        for (char *at = version; (at = strchr(at, '\t')) != NULL;) *at = ' ';
        printf("{\"method\": \"%s\", \"library\": \"%s\", \"workers\": %d, \"params\": %ld, \"steps\": %ld, \"seconds_steps\": [",
               words[1], version, workers, params, steps);
        for (long i = 0; i < steps; i++) printf("%s%.9f", i ? ", " : "", seconds[i]);
        qsort(seconds, steps, sizeof *seconds, ascending);
        printf("], \"seconds\": %.9f}\n", (seconds[(steps - 1) / 2] + seconds[steps / 2]) / 2);
    }
    /* MPICH 4.0 over UCX was seen not to come back from MPI_Finalize among three emulated hosts. Everything is measured and printed
     * by now: its ranks wait until all are here, give the last messages a second to leave, and end. */
    if (strcmp(words[1], "mpich") == 0) {
        fflush(stdout);
        MPI_Barrier(MPI_COMM_WORLD);
        sleep(1);
        _exit(0);
    }
    MPI_Finalize();
    return 0;
}
