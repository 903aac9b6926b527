// Entries that come late: a step by momentum that counts how long they have waited, and what is found where they wait for too long.

#include <gleaner.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 1000, STEPS = 69 };

static void check(gleaner_status status) {
    if (status != GLEANER_OK) {
        printf("%s\n", gleaner_error());
        exit(1);
    }
}

static void expect(int holds, const char *what) {
    if (!holds) {
        printf("expected that %s\n", what);
        exit(1);
    }
}

// With a momentum of 1/2, of an entry that comes after two steps (1 - 1/4) / (2 * 1/2) = 3/4 goes into the velocity, and twice the rest is applied.
static void steps(void) {
    float values[] = {1, 1}, velocities[] = {0, 0}, waited[] = {0, 0};
    const float first[] = {0, 1}, second[] = {2, 0};
    check(gleaner_late_sgd_step(values, velocities, waited, first, 2, 1, 0.5f, 0, false));
    expect(values[0] == 1 && values[1] == 0 && waited[0] == 1 && waited[1] == 0, "one entry waits and one comes");
    check(gleaner_late_sgd_step(values, velocities, waited, second, 2, 1, 0.5f, 0, false));
    expect(values[0] == 1 - 1.5f - 1 && velocities[0] == 1.5f && waited[0] == 0, "the entry that waited is overdue");
    expect(values[1] == -0.5f && velocities[1] == 0.5f && waited[1] == 1, "the other one goes on by its velocity");
    // With weight decay, and ahead along the new velocity.
    float value = 1, velocity = 0, none = 0;
    const float gradient = 1;
    check(gleaner_late_sgd_step(&value, &velocity, &none, &gradient, 1, 1, 0.5f, 0.5f, true));
    expect(velocity == 1.5f && value == 1 - 2.25f, "weight decay and Nesterov's step are those of the usual momentum");
    check(gleaner_late_sgd_step(NULL, NULL, NULL, NULL, 0, 1, 0.5f, 0, false));
}

// One entry of a thousand in a step.
static void waits(gleaner_session *session) {
    gleaner_method *method;
    check(gleaner_method_new("spardl", 0.5, &method));
    check(gleaner_method_set(method, "k", "1"));
    const gleaner_parameter parameters[] = {{"w", ENTRIES, 0}};
    gleaner_gradients *gradients;
    check(gleaner_gradients_new(session, method, parameters, 1, &gradients));
    gleaner_method_free(method);
    gleaner_health_numbers health;
    char findings[2000] = "?", one[2000];
    check(gleaner_health(gradients, 0.9f, &health, findings, sizeof findings));
    expect(health.looks == 0 && health.waits == 0 && health.findings == 0 && *findings == 0, "nothing is found at first");
    unsigned seed = 1;
    for (int step = 0; step < STEPS; step++) {
        float gradient[ENTRIES];
        for (int i = 0; i < ENTRIES; i++) {
            seed = seed * 1664525u + 1013904223u;
            gradient[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
        }
        check(gleaner_ready(gradients, "w", gradient, ENTRIES));
        check(gleaner_wait(gradients, NULL));
    }
    check(gleaner_health(gradients, 0.9f, &health, findings, sizeof findings));
    expect(health.looks == 4 && health.waits > 100 && health.density == 0.001, "values wait");
    expect(health.waits == health.waiting / health.delivered, "they wait as long as Little's law says");
    const char *second = strchr(findings, '\n') + 1;
    expect(health.findings == 2 && strstr(findings, "old gradients") < second, "updates are stale");
    expect(strstr(second, "momentum 0.9 goes on") != NULL, "momentum goes on with late sums");
    // Whole lines, as many as there is room for.
    size_t first = (size_t)(second - findings);
    check(gleaner_health(gradients, 0.9f, &health, one, first + 1));
    expect(strlen(one) == first && memcmp(one, findings, first) == 0, "the first line has room");
    check(gleaner_health(gradients, 0.9f, &health, one, first));
    expect(*one == 0 && health.findings == 2, "no line has room");
    check(gleaner_health(gradients, 0, &health, NULL, 0));
    expect(health.findings == 1, "momentum that counts waiting is none");
    gleaner_gradients_free(gradients);
}

int main(void) {
    steps();
    gleaner_session *session;
    check(gleaner_join(&session));
    waits(session);
    gleaner_leave(session);
    return 0;
}
