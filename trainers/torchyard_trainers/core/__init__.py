"""What every workload shares: one loop, one data order, one checkpoint format, strategy as a setting.

Read `workload` (what a workload says), `loop` (what is done with it) and `step` (one optimizer step) first; the rest is
what these three ask for:

    batching, order, randomness, waits          which samples a rank has in a step, and their random numbers
    parallel, precision, activations, buffers   how a model is spread, cast, computed again, kept equal
    world                                       the processes of a run, and what they agree on
    checkpoints/                                how training is saved beside itself, committed, and found again
    memory/                                     what a step takes, foretold and measured; micro-batches that fit
    metrics/, report, profiler                  what people and the agent see of it
    guard, preempt, watchdog, exits             what ends a run early, and with which code
    modes/, finish, export/, preflight/         what is done instead of training, before it, and at its end
    command, worker, config, held               from the command line to the loop; a class of somebody's own, looked at
    losses, graphs, frozen, parameters          what workloads may use
    gpus, gpus_command, device, switch          GPUs of the machine; what the device of a tensor allows
"""
