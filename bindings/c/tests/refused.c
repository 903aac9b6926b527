// What cannot be is refused with a code and a sentence.

#include <gleaner.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void expect(gleaner_status found, gleaner_status expected, const char *words) {
    if (found != expected || strstr(gleaner_error(), words) == NULL) {
        printf("expected %d and '%s', found %d and '%s'\n", (int)expected, words, (int)found, gleaner_error());
        exit(1);
    }
}

int main(void) {
    expect(gleaner_join(NULL), GLEANER_ARGUMENT, "null");
    gleaner_session *session = NULL;
    if (gleaner_join(&session) != GLEANER_OK) {
        printf("%s\n", gleaner_error());
        return 1;
    }
    gleaner_method *method = NULL;
    if (gleaner_method_new("spardl", 0, &method) != GLEANER_OK) {
        return 1;
    }
    gleaner_method_free(method);
    method = NULL;
    expect(gleaner_method_new("spardle", 0.1, &method), GLEANER_METHOD, "spardle");
    expect(gleaner_method_new("spardl", 1.5, &method), GLEANER_METHOD, "density is 1.5");
    expect(gleaner_method_new(NULL, 0.1, &method), GLEANER_ARGUMENT, "null");
    expect(gleaner_method_new("\xff", 0.1, &method), GLEANER_ARGUMENT, "UTF-8");
    if (gleaner_method_new("spardl", 0.5, &method) != GLEANER_OK) {
        return 1;
    }
    expect(gleaner_method_set(method, "team", "2"), GLEANER_METHOD, "team");
    expect(gleaner_method_set(method, "momentum", "0.9"), GLEANER_METHOD, "did you mean momentum_correction?");
    expect(gleaner_method_set(method, "momentum_correction", "1.5"), GLEANER_METHOD, "1.5");
    expect(gleaner_method_set(method, "clip_local", "far"), GLEANER_METHOD, "far");
    expect(gleaner_method_set(method, "complete_sums", "2"), GLEANER_METHOD, "true or false");
    expect(gleaner_method_set(method, "mask_momentum", "1"), GLEANER_METHOD, "without momentum correction");
    expect(gleaner_method_set(method, "momentum_correction", "0.9"), GLEANER_OK, "");
    expect(gleaner_method_set(method, "mask_momentum", "1"), GLEANER_OK, "");
    expect(gleaner_method_set(method, "ef21", "1"), GLEANER_METHOD, "EF21");
    expect(gleaner_method_set(method, "mask_momentum", "0"), GLEANER_OK, "");
    expect(gleaner_method_set(method, "momentum_correction", "0"), GLEANER_OK, "");

    gleaner_gradients *gradients = NULL;
    const gleaner_parameter twice[] = {{"w", 4, 0}, {"w", 2, 0}};
    expect(gleaner_gradients_new(session, method, twice, 2, &gradients), GLEANER_LAYOUT, "'w'");
    const gleaner_parameter parameters[] = {{"w", 4, 0}, {"b", 2, 1}};
    if (gleaner_gradients_new(session, method, parameters, 2, &gradients) != GLEANER_OK) {
        printf("%s\n", gleaner_error());
        return 1;
    }
    float values[4] = {1, -3, 2, 0.5f};
    bool skipped = true;
    expect(gleaner_read(gradients, "w", values, 4), GLEANER_LAYOUT, "no update");
    expect(gleaner_ready(gradients, "v", values, 4), GLEANER_LAYOUT, "'v'");
    expect(gleaner_ready(gradients, "w", values, 3), GLEANER_LAYOUT, "3 entries");
    expect(gleaner_ready(gradients, "w", NULL, 4), GLEANER_ARGUMENT, "null");
    expect(gleaner_wait(gradients, &skipped), GLEANER_LAYOUT, "'w', 'b'");
    if (gleaner_ready(gradients, "w", values, 4) != GLEANER_OK ||
        gleaner_ready(gradients, "b", values, 2) != GLEANER_OK ||
        gleaner_wait(gradients, &skipped) != GLEANER_OK || skipped ||
        gleaner_read(gradients, "w", values, 4) != GLEANER_OK) {
        printf("%s\n", gleaner_error());
        return 1;
    }
    if (values[0] != 0 || values[1] != -3 || values[2] != 2 || values[3] != 0) {
        printf("%g %g %g %g\n", values[0], values[1], values[2], values[3]);
        return 1;
    }
    expect(gleaner_load(gradients, "/nowhere/at/all"), GLEANER_CHECKPOINT, "/nowhere/at/all");

    gleaner_health_numbers health;
    char findings[100];
    expect(gleaner_health(gradients, 1, &health, findings, 100), GLEANER_METHOD, "momentum of the optimiser is 1");
    expect(gleaner_health(gradients, 0.9f, NULL, findings, 100), GLEANER_ARGUMENT, "null");
    expect(gleaner_health(gradients, 0.9f, &health, NULL, 100), GLEANER_ARGUMENT, "null");
    float velocities[4] = {0}, waited[4] = {0}, mean[4] = {1};
    expect(gleaner_late_sgd_step(values, NULL, waited, mean, 4, 0.1f, 0.9f, 0, false), GLEANER_ARGUMENT, "velocities is null");
    expect(gleaner_late_sgd_step(NULL, NULL, NULL, NULL, 4, 0.1f, 0.9f, 0, false), GLEANER_ARGUMENT, "parameters is null");
    expect(gleaner_late_sgd_step(values, velocities, waited, mean, SIZE_MAX, 0.1f, 0.9f, 0, false), GLEANER_ARGUMENT, "cannot be");
    expect(gleaner_late_sgd_step(values, waited, waited, mean, 4, 0.1f, 0.9f, 0, false), GLEANER_ARGUMENT, "overlap");
    expect(gleaner_late_sgd_step(values, velocities, waited, values + 3, 4, 0.1f, 0.9f, 0, false), GLEANER_ARGUMENT, "overlap");
    expect(gleaner_late_sgd_step(values, velocities, waited, mean, 4, -1, 0.9f, 0, false), GLEANER_METHOD, "rate: expected");
    expect(gleaner_late_sgd_step(values, velocities, waited, mean, 4, 0.1f, 1, 0, false), GLEANER_METHOD, "momentum: expected");

    expect(gleaner_all_reduce(session, method, "mean", NULL, 4), GLEANER_ARGUMENT, "null");
    expect(gleaner_all_reduce(session, method, "mean", values, SIZE_MAX), GLEANER_ARGUMENT, "cannot be");
    if (gleaner_all_reduce(session, method, "mean", values, 4) != GLEANER_OK) {
        printf("%s\n", gleaner_error());
        return 1;
    }
    expect(gleaner_all_reduce(session, method, "mean", values, 3), GLEANER_LAYOUT, "3");
    gleaner_method *other = NULL;
    if (gleaner_method_new("ring", 1, &other) != GLEANER_OK) {
        return 1;
    }
    expect(gleaner_all_reduce(session, other, "mean", values, 4), GLEANER_METHOD, "'mean'");

    // A forked process has the handles, and none of the threads.
    pid_t child = fork();
    if (child == 0) {
        expect(gleaner_barrier(session), GLEANER_ARGUMENT, "forked");
        expect(gleaner_ready(gradients, "w", values, 4), GLEANER_ARGUMENT, "forked");
        gleaner_gradients_free(gradients);
        gleaner_leave(session);
        _exit(0);
    }
    int ended = 1;
    if (child < 0 || waitpid(child, &ended, 0) != child || ended != 0) {
        printf("the forked process ended with %d\n", ended);
        return 1;
    }

    // A handle that was freed is refused, and freeing it again does nothing.
    for (int twice = 0; twice < 2; twice++) {
        gleaner_gradients_free(gradients);
        gleaner_method_free(other);
        gleaner_leave(session);
    }
    expect(gleaner_ready(gradients, "w", values, 4), GLEANER_ARGUMENT, "gleaner_gradients_free");
    expect(gleaner_method_set(other, "k", "2"), GLEANER_ARGUMENT, "gleaner_method_free");
    expect(gleaner_barrier(session), GLEANER_ARGUMENT, "gleaner_leave");
    expect(gleaner_gradients_new(session, method, parameters, 2, &gradients), GLEANER_ARGUMENT, "gleaner_leave");
    gleaner_method_free(method);
    gleaner_gradients_free(NULL);
    gleaner_method_free(NULL);
    gleaner_leave(NULL);
    return strlen(gleaner_version()) > 0 ? 0 : 1;
}
