// Fits a small network to a function that no rank sees whole: every rank has points of its own. It steps by momentum that counts how
// long entries have waited in residuals.
//
//     cc train.c $(pkg-config --cflags --libs gleaner) -lm -o train
//     gleaner launch --workers 4 -- ./train

#include <gleaner.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 32, POINTS = 64, STEPS = 600 };

// Says what went wrong, and ends.
static void check(gleaner_status status) {
    if (status != GLEANER_OK) {
        fprintf(stderr, "train: %s\n", gleaner_error());
        exit(1);
    }
}

// Numbers between -1 and 1, the same for the same seed on every machine.
static float uniform(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / (float)(1 << 23) - 1.0f;
}

// y = out . tanh(in x + bias)
typedef struct {
    float in[HIDDEN], bias[HIDDEN], out[HIDDEN];
} network;

// The mean squared error at all points, and its gradient.
static float pass(const network *net, const float *x, const float *y, network *gradient) {
    float loss = 0;
    memset(gradient, 0, sizeof *gradient);
    for (int point = 0; point < POINTS; point++) {
        float hidden[HIDDEN], found = 0;
        for (int i = 0; i < HIDDEN; i++) {
            hidden[i] = tanhf(net->in[i] * x[point] + net->bias[i]);
            found += net->out[i] * hidden[i];
        }
        float error = found - y[point];
        loss += error * error / POINTS;
        for (int i = 0; i < HIDDEN; i++) {
            float back = 2 * error / POINTS * net->out[i] * (1 - hidden[i] * hidden[i]);
            gradient->out[i] += 2 * error / POINTS * hidden[i];
            gradient->in[i] += back * x[point];
            gradient->bias[i] += back;
        }
    }
    return loss;
}

// Where a parameter's momentum is, and for how many steps its entries have waited: part of a checkpoint, beside the network.
typedef struct {
    float velocities[HIDDEN], waited[HIDDEN];
} state;

// A parameter follows its mean gradient, which is the same on every rank: so all networks stay the same.
static void follow(gleaner_gradients *gradients, const char *parameter, float *values, state *kept) {
    float mean[HIDDEN];
    check(gleaner_read(gradients, parameter, mean, HIDDEN));
    const float rate = 0.0025f, momentum = 0.9f, weight_decay = 0;
    check(gleaner_late_sgd_step(values, kept->velocities, kept->waited, mean, HIDDEN, rate, momentum, weight_decay, false));
}

int main(void) {
    gleaner_session *session;
    check(gleaner_join(&session));
    uint32_t rank, workers;
    check(gleaner_place(session, &rank, &workers));

    // All ranks start with the same network, and have other points.
    network net;
    unsigned seed = 1;
    for (int i = 0; i < HIDDEN; i++) {
        net.in[i] = 3 * uniform(&seed);
        net.bias[i] = uniform(&seed);
        net.out[i] = 0.3f * uniform(&seed);
    }
    float x[POINTS], y[POINTS];
    seed = 100 + rank;
    for (int point = 0; point < POINTS; point++) {
        x[point] = uniform(&seed);
        y[point] = sinf(3 * x[point]);
    }

    // A tenth of the entries in each step; the rest is sent later.
    gleaner_method *method;
    check(gleaner_method_new("spardl", 0.1, &method));
    const gleaner_parameter parameters[] = {
        // Backpropagation comes to the last layer first, which travels while the others are computed.
        {.name = "out", .entries = HIDDEN, .group = 0},
        {.name = "in", .entries = HIDDEN, .group = 1},
        {.name = "bias", .entries = HIDDEN, .group = 1},
    };
    gleaner_gradients *gradients;
    check(gleaner_gradients_new(session, method, parameters, 3, &gradients));
    gleaner_method_free(method);

    state in = {0}, bias = {0}, out = {0};
    float first = 0, last = 0;
    for (int step = 0; step < STEPS; step++) {
        network gradient;
        last = pass(&net, x, y, &gradient);
        if (step == 0) {
            first = last;
        }
        check(gleaner_ready(gradients, "out", gradient.out, HIDDEN));
        check(gleaner_ready(gradients, "in", gradient.in, HIDDEN));
        check(gleaner_ready(gradients, "bias", gradient.bias, HIDDEN));
        check(gleaner_wait(gradients, NULL));
        follow(gradients, "out", net.out, &out);
        follow(gradients, "in", net.in, &in);
        follow(gradients, "bias", net.bias, &bias);
    }
    // What stands in the way of this training, with a momentum of 0, since the one above counts how long entries have waited.
    gleaner_health_numbers health;
    char findings[2000];
    check(gleaner_health(gradients, 0, &health, findings, sizeof findings));
    if (rank == 0) {
        printf("a value waits for %.1f steps\n%s", health.waits, findings);
    }
    gleaner_gradients_free(gradients);

    // The mean of the ranks' losses, by a method that delivers every entry.
    float losses[2] = {first, last};
    check(gleaner_method_new("ring", 1.0, &method));
    check(gleaner_all_reduce(session, method, "losses", losses, 2));
    gleaner_method_free(method);
    if (rank == 0) {
        printf("loss %.4f at first, %.4f after %d steps of %u ranks\n", losses[0], losses[1], STEPS,
               (unsigned)workers);
    }
    check(gleaner_barrier(session));
    gleaner_leave(session);
    return losses[1] < losses[0] / 4 ? 0 : 1;
}
