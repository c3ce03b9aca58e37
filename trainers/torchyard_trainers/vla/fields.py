"""The fields of `trainer.params` of `vla`. Imports no torch: the operator's schema is made from this file."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from torchyard_trainers.core.parameters import Count, LoraAlpha, LoraRank, LoraTargets, Positive, doc

# The geometries of vla/models.py, which needs torch.
Geometry = Literal["tiny-pi0", "small-pi0", "pi0", "tiny-paligemma", "paligemma-3b"]
Rate = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class Params(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Behaviour cloning of a vision-language-action model. Fields that are not set come from the preset."""

    preset: Annotated[
        Literal["tiny", "large"],
        doc("Sizes to start from: tiny learns on a CPU in a minute, large is pi0 on GPUs."),
    ] = "tiny"
    steps: Annotated[Count | None, doc("Optimizer steps.")] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)], doc("Seed of weights, demonstrations, times and noise.")
    ] = 1
    model: Annotated[
        Geometry | None,
        doc(
            "Geometry of the model, with random weights: a vision-language model and an action expert (pi0), or a "
            "vision-language model with a head (paligemma)."
        ),
    ] = None
    pretrained: Annotated[
        Text | None,
        doc(
            "Folder of a Hugging Face model of type pi0 or paligemma, or of an export hf of this workload; default: "
            "random weights."
        ),
    ] = None
    tokenizer: Annotated[
        Text | None,
        doc("Folder with the tokenizer.json of the model; default: the folder of pretrained."),
    ] = None
    lora_rank: LoraRank = None
    lora_alpha: LoraAlpha = None
    lora_targets: LoraTargets = None
    head: Annotated[
        Literal["flow", "tokens", "act", "diffusion"],
        doc(
            "flow: flow matching. With paligemma also tokens: a token for each part of an action, all at once; act: "
            "action chunking with a variational transformer; diffusion: a U-Net that removes noise. act and diffusion "
            "are experimental: they learned a tabletop with one object; with several, no run has shown it."
        ),
    ] = "flow"
    policy: Annotated[
        Text | None,
        doc("MODULE:CLASS of a policy of your own, in place of model and head; see docs/vision-action.md."),
    ] = None
    kl_weight: Annotated[
        Annotated[float, Meta(ge=0)] | None, doc("head act: weight of the divergence of the latent variable; 10.")
    ] = None
    pre_norm: Annotated[
        bool | None,
        doc(
            "head act: norms before attention and perceptrons, not behind sums, as in LeRobot. Preset tiny: true, else "
            "false."
        ),
    ] = None
    action_loss: Annotated[
        Literal["l1", "l2"] | None,
        doc(
            "head act: l1, the absolute error of an action, as in LeRobot, or l2, the squared one, which learns more "
            "where most actions are 0. Preset tiny: l2, else l1."
        ),
    ] = None
    noise_steps: Annotated[
        Annotated[int, Meta(ge=2, le=1000)] | None, doc("head diffusion: steps from an action to noise; 100.")
    ] = None
    denoising_steps: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        doc(
            "head diffusion: steps from noise to actions, in evaluation: DDPM with all noiseSteps, DDIM with fewer; 10."
        ),
    ] = None
    prediction: Annotated[
        Literal["epsilon", "sample"] | None,
        doc(
            "head diffusion: what the U-Net predicts, as in LeRobot: epsilon, the noise; sample, the actions, which "
            "weighs steps of much noise more. Preset tiny: sample, else epsilon."
        ),
    ] = None
    bins: Annotated[
        Annotated[int, Meta(ge=2, le=4096)] | None,
        doc("head tokens: values that a part of an action can have, which are the last tokens of the vocabulary."),
    ] = None
    data: Annotated[
        Text | None,
        doc("Folder of a LeRobot dataset, version 2.0, 2.1 or 3.0; default: demonstrations on a procedural tabletop."),
    ] = None
    mixture: Annotated[
        dict[str, Positive],
        doc(
            "Folders of several LeRobot datasets, and the share of each in the samples, relative to the others; in "
            "place of data."
        ),
    ] = field(default_factory=dict)
    delta_actions: Annotated[
        bool, doc("data: learn the change from the state at which a chunk begins, in place of absolute actions.")
    ] = False
    absolute_parts: Annotated[
        list[str],
        doc("deltaActions: parts of an action that stay absolute, by number or name, such as that of a gripper."),
    ] = field(default_factory=list)
    environment: Annotated[
        Text | None,
        doc(
            "data: gymnasium environment for closed-loop episodes: an id, such as gym_pusht/PushT-v0, or MODULE:CLASS; "
            "its observations have pixels and agent_pos."
        ),
    ] = None
    environment_options: Annotated[
        dict[str, Any], doc("environment: arguments that make it, such as {observation_width: 96}.")
    ] = field(default_factory=dict)
    max_episode_steps: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | None,
        doc("environment: steps after which an episode ends; default: as many as are registered."),
    ] = None
    instruction: Annotated[
        Text | None, doc("environment: which task of the data the policy does; default: the only one.")
    ] = None
    cameras: Annotated[
        list[str], doc("data: features that are images, in the order in which the model sees them; []: all.")
    ] = field(default_factory=list)
    fields: Annotated[
        dict[str, str],
        doc(
            "data: names of the features that are the state of the robot and its action, where they are not "
            "observation.state and action, such as {state: state, action: actions}."
        ),
    ] = field(default_factory=dict)
    image_deltas: Annotated[
        Annotated[list[Annotated[float, Meta(ge=-3600, le=0)]], Meta(min_length=1, max_length=16)],
        doc("data: times of the images that the model sees of each camera, relative to now (seconds)."),
    ] = field(default_factory=lambda: [0.0])
    action_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=3600)] | None,
        doc("data: time between two actions of a chunk (seconds); default: that of a frame."),
    ] = None
    hold_out: Annotated[
        Annotated[float, Meta(gt=0, lt=1)], doc("data: share of the episodes, the last ones, that only evaluate.")
    ] = 0.1
    augment: Annotated[
        Annotated[float, Meta(ge=0, le=1)],
        doc("data: largest change of brightness and contrast, and shift as a share of the image, in training."),
    ] = 0.0
    workers: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        doc("data: processes of each rank that decode images; default: one for each core of the rank, at most 8."),
    ] = None
    objects: Annotated[
        Annotated[int, Meta(ge=1, le=6)] | None, doc("Objects on the table, of different colours; one is named.")
    ] = None
    chunk: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None, doc("Actions that the model predicts at once (steps).")
    ] = None
    draws: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        doc("Times and noises for each demonstration of a step: images and instruction are read once for all of them."),
    ] = None
    normalization: Annotated[
        Literal["min-max", "quantile", "mean-std", "none"] | None,
        doc(
            "Scale state and actions by statistics of the demonstrations. min-max: to [-1, 1]; quantile: 98 % of the "
            "values (q01 to q99) to [-1, 1], so that a few outliers do not matter; mean-std: to mean 0 and standard "
            "deviation 1."
        ),
    ] = None
    batch: Annotated[
        Count | None, doc("Samples of an optimizer step over all ranks; parallelism.globalBatchSize overrides it.")
    ] = None
    lr: Annotated[Rate | None, doc("Learning rate after the warm-up.")] = None
    lr_final: Annotated[Rate | None, doc("Learning rate of the last step.")] = None
    schedule: Annotated[
        Literal["constant", "cosine", "linear", "wsd"] | None,
        doc("Fall of the learning rate after the warm-up; wsd: only in the last fifth of the steps."),
    ] = None
    warmup_steps: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc("Steps over which the learning rate rises from 0; by default at most a tenth of all steps."),
    ] = None
    expert_lr_scale: Annotated[
        Annotated[float, Meta(gt=0, le=1000)] | None,
        doc("Factor of the learning rate for the action expert and its projections."),
    ] = None
    weight_decay: Annotated[Rate | None, doc("Weight decay of AdamW; norms, biases and embeddings have none.")] = None
    max_grad_norm: Annotated[
        Annotated[float, Meta(gt=0)] | None, doc("Norm to which the gradient of a step is clipped.")
    ] = None
    ema: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        doc(
            "Decay of an exponential moving average of the weights, such as 0.999, which is then what is evaluated and "
            "exported; default: none."
        ),
    ] = None
    freeze_vision: Annotated[bool, doc("Do not train the vision tower.")] = False
    freeze_language: Annotated[bool, doc("Do not train the language model; the action expert still reads it.")] = False
    flow_steps: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None, doc("Euler steps from noise to actions, in evaluation.")
    ] = None
    execute: Annotated[
        Count | None, doc("Actions of a chunk that are carried out before the model looks again; default: all.")
    ] = None
    eval_episodes: Annotated[Count | None, doc("Closed-loop episodes of an evaluation.")] = None
    eval_samples: Annotated[Count | None, doc("Held-out demonstrations that the flow loss is measured on.")] = None
    eval_batch: Annotated[Count | None, doc("Episodes or demonstrations that a rank evaluates at once.")] = None
    eval_every: Annotated[Count | None, doc("Optimizer steps between evaluations.")] = None
    log_every: Annotated[Count, doc("Optimizer steps between log lines.")] = 20
