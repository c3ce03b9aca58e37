"""The core shared by all workloads: one loop, one data order, one checkpoint format, strategy as a setting.

Read `workload` (the interface), `loop` (the training loop) and `step` (one optimizer step) first; everything else
supports these three:

    batching, sampler, randomness, data_wait    the samples of a rank in a step, and their random numbers
    data/                                       samples that are read: sources, and the loader that reads ahead
    parallel, precision, activations, buffers   sharding, casting, recomputation, buffers
    world                                       the processes of a run, and their collectives
    checkpoints/                                asynchronous saves, commit protocol, restore
    memory/                                     forecast and measurement; micro-batches that fit
    metrics/, report, profiler                  output for people and for the agent
    guard, preempt, watchdog, exits             early ends of a run, and exit codes
    modes/, finish, export/, preflight/         other modes, the end of training, exports, checks before it
    command, worker, config, contract           from the command line to the loop; checks of custom workloads
    losses, graphs, frozen, parameters          building blocks for workloads
    gpus, gpus_command, device, flag            GPUs of the machine; device of a tensor
"""
