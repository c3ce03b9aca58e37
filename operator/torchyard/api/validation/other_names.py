"""Parameters of trainers by the names that other programs give them: what to set here instead."""

from collections.abc import Container

_EPOCHS = "epochs x records / batch; `torchyard dataset inspect` counts records"
_MICRO_BATCH = "spec.parallelism.microBatchSize, the samples of a rank in one pass; batch is that of all ranks"
# Names without case, `_` and `-` -> a parameter, and what it means where that differs.
_PARAMETERS = {
    **dict.fromkeys(("learningrate", "stepsize"), ("lr", "")),
    **dict.fromkeys(("epochs", "numepochs", "numtrainepochs", "nepochs", "maxepochs"), ("steps", _EPOCHS)),
    **dict.fromkeys(("maxsteps", "numsteps", "totalsteps", "trainsteps", "iterations", "maxiters"), ("steps", "")),
    **dict.fromkeys(("batchsize", "globalbatchsize", "trainbatchsize"), ("batch", "samples of a step over all ranks")),
    **dict.fromkeys(("modelname", "modelnameorpath", "basemodel", "modelpath"), ("pretrained", "a local folder")),
    **dict.fromkeys(("dataset", "datasets", "datasetname", "trainfile", "datafiles", "trainfiles"), ("data", "")),
    **dict.fromkeys(("evalfile", "evaldataset", "validationfile", "valfiles"), ("validation", "")),
    **dict.fromkeys(("maxseqlength", "maxseqlen", "cutofflen", "sequencelen", "blocksize"), ("maxLength", "")),
    **dict.fromkeys(("maxcompletionlength", "maxtokens", "responselength"), ("maxNewTokens", "")),
    **dict.fromkeys(("r", "lorar"), ("loraRank", "")),
    **dict.fromkeys(("targetmodules", "loratargetmodules"), ("loraTargets", "")),
    **dict.fromkeys(("warmupratio", "warmup"), ("warmupSteps", "a number of steps")),
    **dict.fromkeys(("evalsteps", "evalinterval", "evaluationstrategy"), ("evalEvery", "a number of steps")),
    **dict.fromkeys(("numgenerations", "groupsize", "rolloutn"), ("group", "")),
    **dict.fromkeys(("rewardfuncs", "rewardfunction"), ("reward", "")),
}
_SPEC = {
    **dict.fromkeys(("bf16", "fp16", "torchdtype", "dtype", "mixedprecision"), "spec.parallelism.precision"),
    **dict.fromkeys(("perdevicetrainbatchsize", "microbatchsize", "perdevicebatchsize"), _MICRO_BATCH),
    "gradientaccumulationsteps": f"nothing: it follows from batch and {_MICRO_BATCH}",
    "gradientcheckpointing": "spec.parallelism.activationCheckpointing",
    **dict.fromkeys(("savesteps", "savestrategy"), "spec.checkpoint.interval"),
    "savetotallimit": "spec.checkpoint.keepLast",
    **dict.fromkeys(("outputdir", "outdir"), "spec.checkpoint.volume"),
    **dict.fromkeys(("resumefromcheckpoint", "resume"), "spec.checkpoint.resumeFrom"),
    **dict.fromkeys(("reportto", "wandb", "wandbproject"), "spec.logging"),
    **dict.fromkeys(("torchcompile", "compile"), "spec.parallelism.compile"),
    **dict.fromkeys(("fsdp", "deepspeed", "zerostage"), "spec.parallelism.strategy"),
}


def meant_by(name: str, parameters: Container[str]) -> str:
    """Return what to set instead of a parameter of another trainer; "" if the name is not known.

    Args:
        name: that is not a parameter here.
        parameters: of this trainer.
    """
    plain = name.lower().replace("_", "").replace("-", "")
    ours, more = _PARAMETERS.get(plain, ("", ""))
    if ours in parameters:
        return f"use {ours}" + (f": {more}" if more else "")
    return f"use {_SPEC[plain]}" if plain in _SPEC and "steps" in parameters else ""
