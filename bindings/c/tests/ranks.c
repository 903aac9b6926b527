// What goes wrong between two ranks has a sentence on each: ranks NAME prints it, and ends with 0 if the code is the expected one.

#include <gleaner.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gleaner_session *session;
static gleaner_method *method;

static void check(gleaner_status status) {
    if (status != GLEANER_OK) {
        printf("not expected: %s\n", gleaner_error());
        exit(1);
    }
}

static int expect(gleaner_status found, gleaner_status expected) {
    printf("%d: %s\n", (int)found, gleaner_error());
    return found == expected ? 0 : 1;
}

// Other parameters, another number of values, or another method on each rank.
static int layouts(uint32_t rank) {
    const gleaner_parameter parameters[] = {{"w", 4 + rank, 0}};
    gleaner_gradients *gradients;
    return expect(gleaner_gradients_new(session, method, parameters, 1, &gradients), GLEANER_FAILED);
}

static int lengths(uint32_t rank) {
    float values[2] = {1, 2};
    return expect(gleaner_all_reduce(session, method, "mean", values, 1 + rank), GLEANER_FAILED);
}

static int methods(uint32_t rank) {
    float values[2] = {1, 2};
    check(gleaner_method_set(method, "values", rank == 0 ? "exact" : "bf16"));
    return expect(gleaner_all_reduce(session, method, "mean", values, 2), GLEANER_FAILED);
}

static void *give_up(void *unused) {
    check(gleaner_abort(session, "the disk is full"));
    return unused;
}

// One thread of rank 1 waits, and another one ends the job.
static int aborts(uint32_t rank) {
    pthread_t other;
    if (rank == 1 && pthread_create(&other, NULL, give_up, NULL) != 0) {
        return 1;
    }
    gleaner_status found = GLEANER_OK;
    while (found == GLEANER_OK) {
        found = gleaner_barrier(session);
    }
    if (rank == 1) {
        pthread_join(other, NULL);
    }
    return expect(found, GLEANER_FAILED);
}

// Rank 1 returns from main and has not left.
static int returns(uint32_t rank) {
    check(gleaner_barrier(session));
    if (rank == 1) {
        exit(0);
    }
    return expect(gleaner_barrier(session), GLEANER_FAILED);
}

static const struct {
    const char *name;
    int (*run)(uint32_t rank);
} cases[] = {
    {"layouts", layouts}, {"lengths", lengths}, {"methods", methods}, {"aborts", aborts}, {"returns", returns},
};

int main(int count, char **arguments) {
    check(gleaner_join(&session));
    check(gleaner_method_new("spardl", 0.5, &method));
    uint32_t rank, workers;
    check(gleaner_place(session, &rank, &workers));
    int result = 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (count == 2 && strcmp(arguments[1], cases[i].name) == 0) {
            result = cases[i].run(rank);
        }
    }
    gleaner_method_free(method);
    gleaner_leave(session);
    return result;
}
