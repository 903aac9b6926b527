// Gleaner: data-parallel training over slow networks.
//
// Made of bindings/c/src by cbindgen. Every function but gleaner_error, gleaner_version and those that free returns 0, or what went
// wrong, of which gleaner_error gives the sentence. Any thread may use any handle; calls with the same gradients wait for each other. A
// handle that was freed is refused, and so is one of a process from which this one was forked. Calls block until their result is
// there. Strings are UTF-8 and end with a zero byte.

#ifndef GLEANER_H
#define GLEANER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// How a call ended. Whatever is not GLEANER_OK has a sentence, which gleaner_error gives.
typedef enum {
    // As it should.
    GLEANER_OK = 0,
    // An argument is null, no UTF-8, or of another length than is expected.
    GLEANER_ARGUMENT = 1,
    // Rank, world size, rendezvous or secret are missing or contradict each other.
    GLEANER_CONFIG = 2,
    // The workers did not come together.
    GLEANER_JOIN = 3,
    // The job has failed: a worker died, fell silent, left or violated the protocol. The session is of no further use.
    GLEANER_FAILED = 4,
    // A name, a length or an order of calls that does not fit the parameters.
    GLEANER_LAYOUT = 5,
    // An invalid method, or an invalid option of one or of the optimiser.
    GLEANER_METHOD = 6,
    // A checkpoint that cannot be written, or from which this job cannot go on.
    GLEANER_CHECKPOINT = 7,
    // The operating system refused something, or whatever else went wrong.
    GLEANER_OTHER = 8,
    // The library has a fault; standard error says more.
    GLEANER_PANIC = 9,
} gleaner_status;

// The gradients of a model's parameters, and the last step's update.
typedef struct gleaner_gradients gleaner_gradients;

// An all-reduce, how many entries it delivers, and what happens to the rest.
typedef struct gleaner_method gleaner_method;

// A worker's membership in a job.
typedef struct gleaner_session gleaner_session;

// A parameter of a model.
typedef struct {
    // Its name, which no other one has.
    const char *name;
    // How many entries it has.
    size_t entries;
    // Parameters that stand together with the same number travel together, as soon as all of them are ready.
    uint32_t group;
} gleaner_parameter;

// What waits on this rank, and how long, over the last steps that were looked at.
typedef struct {
    // In how many steps it was looked at, so far: in each seventeenth. Nothing is found before the fourth.
    uint64_t looks;
    // How many steps a value waits until it is delivered: infinitely many where nothing is, and 0 where nothing waits.
    double waits;
    // The sum of the magnitudes of what waits after a step.
    double waiting;
    // The same of what a step delivers of this rank's values.
    double delivered;
    // The share of the entries that a step is set to deliver.
    double density;
    // How many findings there are.
    size_t findings;
} gleaner_health_numbers;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, such as "0.1.0".
const char *gleaner_version(void);

// Agrees with all ranks on the parameters and the method. Free them with gleaner_gradients_free.
gleaner_status gleaner_gradients_new(gleaner_session *session,
                                     gleaner_method *method,
                                     const gleaner_parameter *parameters,
                                     size_t count,
                                     gleaner_gradients **gradients);

// The gradient of a parameter is ready. The values are free when this returns. In each step every parameter needs one, in
// any order; the last one of a group begins its exchange, which goes on in the background.
gleaner_status gleaner_ready(gleaner_gradients *gradients,
                             const char *parameter,
                             const float *values,
                             size_t count);

// Waits for the update of this step, the same on every rank, and keeps it until the next. `skipped`, which may be null,
// says whether all ranks left the step out because values of one were not finite: see the option on_nonfinite.
gleaner_status gleaner_wait(gleaner_gradients *gradients,
                            bool *skipped);

// Writes a parameter's mean over all ranks, of the last update: zeros where nothing was delivered.
gleaner_status gleaner_read(gleaner_gradients *gradients,
                            const char *parameter,
                            float *values,
                            size_t count);

// Adds `scale` times a parameter's mean over all ranks, of the last update: with a negative learning rate, what plain
// gradient descent does.
gleaner_status gleaner_add(gleaner_gradients *gradients,
                           const char *parameter,
                           float *values,
                           size_t count,
                           float scale);

// What waits on this rank and how long, and what in that slows a training whose optimiser has this momentum, from 0 to below 1: 0
// with gleaner_late_sgd_step, which counts how long entries have waited, and beside momentum correction. What is found are sentences, of which
// those that fit are written to `findings`, each with a line feed, and after them a zero byte; it has `size` bytes, and may be null if that is 0.
gleaner_status gleaner_health(gleaner_gradients *gradients,
                              float momentum,
                              gleaner_health_numbers *numbers,
                              char *findings,
                              size_t size);

// Writes what this rank has not delivered yet, what the method has learnt and the step to a file, which holds a whole
// checkpoint or the one before. Call it between steps, on every rank with a path of its own.
gleaner_status gleaner_save(gleaner_gradients *gradients,
                            const char *path);

// Goes on from what gleaner_save wrote, bit by bit. All ranks call it together, each with its own file; if one cannot go
// on, it fails on all, and nothing has changed.
gleaner_status gleaner_load(gleaner_gradients *gradients,
                            const char *path);

// Frees gradients; nothing for null. In the middle of a step this ends the job: the others wait for the rest of it.
void gleaner_gradients_free(gleaner_gradients *gradients);

// Makes the method of a name, such as "spardl", "ring" or "auto", that selects this share of the entries, above 0 and
// at most 1, with exact values unless "values" is set; or with a density of 0 the default: 5% of the entries, and of gradients at
// least 256 of each group, with values of 4 bits. A method that delivers every entry does not look at it. Free it with gleaner_method_free; whatever was made of
// it goes on.
gleaner_status gleaner_method_new(const char *name,
                                  double density,
                                  gleaner_method **method);

// Sets an option of a method: "k" (how many entries are delivered), "values" ("exact", "bf16", "f16", "qsgd8", "qsgd4" or
// "qsgd2"), "selector", "residual", "select_over", "on_nonfinite" ("refuse" or "skip"), "momentum_correction", and after it
// "mask_momentum" or "ef21" ("1" or "0"), "residual_decay", "clip_local", "warmup_density", "dense_below", "deliver_all_every", "deliver_all_at" (steps
// with commas between them), "complete_sums" ("1" or "0"), "norm_share", or one of the method's own, such as "teams" of SparDL.
gleaner_status gleaner_method_set(gleaner_method *method,
                                  const char *option,
                                  const char *value);

// Frees a method; nothing for null.
void gleaner_method_free(gleaner_method *method);

// Steps `count` parameters along a gradient, by stochastic gradient descent whose momentum counts how long entries have waited in residuals.
// The gradient is a mean as gleaner_read writes it: an entry comes where it is not 0. The velocities and the steps waited, 0 at first, are those
// of the last call; keep them in checkpoints. The rate and the weight decay are 0 or more, and the momentum is from 0 to below 1; with
// `nesterov` the step looks ahead along the new velocity. The arrays do not overlap. With a dense method take the usual momentum: there an
// entry of 0 has not waited. Each call computes 4,096 shares first, so parameters that lie side by side are best stepped together.
gleaner_status gleaner_late_sgd_step(float *parameters,
                                     float *velocities,
                                     float *waited,
                                     const float *gradient,
                                     size_t count,
                                     float rate,
                                     float momentum,
                                     float weight_decay,
                                     bool nesterov);

// Joins the job that the environment describes: as started by `gleaner launch`, torchrun, Slurm or Open MPI. Without any
// of them the job is this one worker. Leave it with gleaner_leave.
gleaner_status gleaner_join(gleaner_session **session);

// This worker's number, from 0 to world size - 1, and the number of workers.
gleaner_status gleaner_place(gleaner_session *session, uint32_t *rank, uint32_t *world_size);

// Waits until all ranks are here.
gleaner_status gleaner_barrier(gleaner_session *session);

// Replaces values by their mean over all ranks: the same bits everywhere. A sparse method keeps what it did not deliver
// for the next call with this name. All ranks call it with the same name, method and number of values, which are those of the
// first call with that name; and names that are new come in the same order on all ranks. A name keeps memory until
// gleaner_leave, so few should do.
gleaner_status gleaner_all_reduce(gleaner_session *session,
                                  gleaner_method *method,
                                  const char *name,
                                  float *values,
                                  size_t count);

// Ends the job on all ranks, whose calls fail with this rank and the reason. Another thread may call it while this one waits.
// Leave the session after it.
gleaner_status gleaner_abort(gleaner_session *session,
                             const char *reason);

// Leaves the job, once the others have what they need of this rank, and frees the session; nothing for null. Gradients of
// the session that are not freed yet keep this rank in the job until they are.
void gleaner_leave(gleaner_session *session);

// The sentence of this thread's last error: what was expected, what was found, and what to do. Empty if there was none.
// It is valid until the thread's next call.
const char *gleaner_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GLEANER_H */
