"""The parameters of the `lm` workload, as jobs give them. Imports no torch: the operator's schema is made from it."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from torchyard_trainers.core.parameters import Count, LoraAlpha, LoraRank, LoraTargets, Positive, Share, doc
from torchyard_trainers.core.schedules import Kind

# The geometries of lm/models.py, which needs torch.
Geometry = Literal["tiny-qwen3", "qwen3-0.6b", "qwen3-1.7b", "qwen3-8b", "qwen3-30b-a3b", "llama3-8b", "llama3-70b"]
Rate = Annotated[float, Meta(ge=0, le=1)]
Split = Annotated[str, Meta(min_length=1, max_length=200)]
Location = Annotated[str, Meta(min_length=1, max_length=4096)]
# Fields of a record.
FIELDS = ("text", "messages", "prompt", "completion", "chosen", "rejected", "label", "answer", "images")


FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
RewardName = Annotated[str, Meta(pattern=r"^(exact|shaped|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")]


class WeightedReward(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """One of several rewards."""

    reward: Annotated[RewardName, doc("exact, shaped or MODULE:FUNCTION, as trainer.params.reward.")]
    weight: Annotated[float, doc("Factor of this reward in the sum; a negative one makes it a penalty.")] = 1.0


class Params(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Fine-tuning of a causal language model of transformers. Fields that are not set come from the preset."""

    preset: Annotated[
        Literal["tiny", "large"],
        doc("Sizes to start from: tiny learns on a CPU in half a minute, large is for benchmarks on a GPU."),
    ] = "tiny"
    method: Annotated[
        Literal["sft", "dpo", "kto", "orpo", "simpo", "grpo", "ppo"],
        doc(
            "sft: supervised fine-tuning on right answers; dpo, orpo, simpo: preference of right answers to wrong "
            "ones, relative to a reference (dpo) or without one; kto: answers labelled as right or wrong; grpo, ppo: "
            "reinforcement learning on sampled completions, relative to their group or with a value head."
        ),
    ] = "sft"
    steps: Annotated[Count | None, doc("Optimizer steps, those of sftSteps included.")] = None
    epochs: Annotated[
        Annotated[float, Meta(gt=0, le=100_000)] | None,
        doc(
            "data: passes over the records that train, in place of steps; grpo, ppo: over the prompts; sftSteps added."
        ),
    ] = None
    sft_steps: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc("All but sft: first steps, of supervised fine-tuning on the right answers."),
    ] = None
    sft_lr: Annotated[Rate | None, doc("All but sft: learning rate of these steps.")] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)], doc("Seed of weights, samples and sampled completions.")
    ] = 1
    model: Annotated[
        Geometry | None, doc("Geometry of the model, with random weights and a tokenizer of characters.")
    ] = None
    pretrained: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        doc(
            "Folder of a Hugging Face causal language model: config, safetensors, tokenizer and chat template; "
            "default: random weights."
        ),
    ] = None
    tokenizer: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        doc("Folder of the tokenizer and chat template of pretrained; default: the folder of the model."),
    ] = None
    add_tokens: Annotated[
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(min_length=1, max_length=10_000)]
        | None,
        doc("pretrained: texts that become tokens; with loraRank, modulesToSave must train their embeddings."),
    ] = None
    lora_rank: LoraRank = None
    lora_alpha: LoraAlpha = None
    lora_dropout: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None, doc("sft: dropout of what the adapters read; 0.")
    ] = None
    lora_targets: LoraTargets = None
    quantize: Annotated[
        Literal["nf4"] | None,
        doc("Hold the frozen linear layers of pretrained in 4 bits while adapters are trained (QLoRA)."),
    ] = None
    modules_to_save: Annotated[
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(min_length=1, max_length=64)] | None,
        doc("Modules that are trained whole beside the adapters, such as embed_tokens and lm_head."),
    ] = None
    export_dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        doc("Type of the weights in exports hf and hf-merged; default: that of pretrained, without it float32."),
    ] = None
    task: Annotated[
        Literal["reverse", "sort", "arithmetic"],
        doc("Procedural task: reverse or sort a sequence of letters, or add two numbers."),
    ] = "reverse"
    length: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None, doc("Letters of a sequence; arithmetic: digits of a number, to 15.")
    ] = None
    symbols: Annotated[Annotated[int, Meta(ge=2, le=26)] | None, doc("Different letters of a sequence.")] = None
    data: Annotated[
        Annotated[list[Location], Meta(min_length=1, max_length=1000)] | None,
        doc(
            "Files of records (.jsonl, .json, .parquet, .csv, .txt, .arrow) or tokens (.bin, .npy): paths, folders, "
            "URLs of fsspec, also with wildcards; each is a set. Default: the procedural task."
        ),
    ] = None
    split: Annotated[
        Split | None,
        doc("data: files that train, of sets with several splits (train-00000-of-00002.parquet, data/test/...)."),
    ] = None
    data_weights: Annotated[
        list[Positive] | None,
        doc("data: share of each set in the samples, relative to the others; default: every record counts the same."),
    ] = None
    validation: Annotated[
        Annotated[list[Location], Meta(min_length=1, max_length=1000)] | None,
        doc("Files that only evaluate; default: a part of data. Without data, only mode eval is possible."),
    ] = None
    validation_split: Annotated[
        Split | None, doc("Files of validation, or of data, that only evaluate, such as those of the split test.")
    ] = None
    hold_out: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        doc("data: share of each set that only evaluates, if there is no validation; 0.05 by default."),
    ] = None
    format: Annotated[
        Literal["auto", "text", "prompt", "messages"],
        doc("data: what a record is, for records that could be several; auto: messages before prompt before text."),
    ] = "auto"
    fields: Annotated[
        dict[str, str],
        doc(
            "data: names of the fields of a record where they differ, such as {prompt: question, answer: solution}; "
            "instruction + input are the texts of two fields."
        ),
    ] = field(default_factory=dict)
    image_folder: Annotated[
        Location | None, doc("data: folder that paths of images are relative to; default: the working directory.")
    ] = None
    image_max_pixels: Annotated[
        Annotated[int, Meta(ge=64, le=2**26)] | None,
        doc("data: pixels of an image, above which it is made smaller; default: those of the model's processor."),
    ] = None
    freeze_vision: Annotated[bool, doc("pretrained: do not train the vision tower of a model that reads images.")] = (
        False
    )
    template_arguments: Annotated[
        Annotated[dict[str, bool | int | float | str], Meta(max_length=32)],
        doc("data: arguments of the chat template for all conversations, such as {enable_thinking: false}."),
    ] = field(default_factory=dict)
    max_length: Annotated[
        Annotated[int, Meta(ge=2, le=2**20)] | None,
        doc(
            "data: longest sample, prompt and completion together, in tokens; 1024; grpo, ppo: longest prompt, 512; or "
            "what the positions of the model allow, if that is less."
        ),
    ] = None
    truncation: Annotated[
        Literal["end", "start", "none"] | None,
        doc(
            "data: what a longer sample loses; none: it is a bad record. By default texts of sft become several "
            "samples, other samples lose their end, and prompts of grpo and ppo are skipped and counted."
        ),
    ] = None
    train_on: Annotated[
        Literal["completions", "last", "all"] | None,
        doc("data: tokens that count: completions and all turns of the assistant, its last turn only, or all tokens."),
    ] = None
    bad_records: Annotated[
        Literal["fail", "skip"] | None,
        doc("data: end the job with the place of a record that cannot be used, or skip and count such records."),
    ] = None
    check_records: Annotated[
        Literal["before", "background"] | None,
        doc(
            "data: check all records before the first step, or beside training. By default more than 1,000,000 "
            "records are checked in the background, unless microBatchTokens or texts need their lengths before."
        ),
    ] = None
    token_type: Annotated[Literal["uint16", "uint32"] | None, doc("data: numbers of .bin files; uint16.")] = None
    batch: Annotated[
        Count | None, doc("Samples of an optimizer step over all ranks; parallelism.globalBatchSize overrides it.")
    ] = None
    lr: Annotated[Rate | None, doc("Learning rate after the warm-up.")] = None
    lr_final: Annotated[Rate | None, doc("Learning rate of the last step.")] = None
    schedule: Annotated[
        Kind | None, doc("Fall of the learning rate after the warm-up; wsd: only in the last fifth of the steps.")
    ] = None
    warmup_steps: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc("Steps over which the learning rate rises from 0; by default at most a tenth of all after sftSteps."),
    ] = None
    optimizer: Annotated[
        Literal["adamw", "adamw8bit", "muon"],
        doc(
            "adamw8bit: state of 8 bits, a quarter of the memory (needs torchao); muon: Muon for matrices, AdamW for "
            "embeddings, output layer and vectors."
        ),
    ] = "adamw"
    weight_decay: Annotated[Rate | None, doc("Weight decay; norms, biases and embeddings have none.")] = None
    max_grad_norm: Annotated[
        Annotated[float, Meta(gt=0)] | None, doc("Norm to which the gradient of a step is clipped.")
    ] = None
    ema: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        doc("Decay of a moving average of the weights, which is evaluated and exported; rollouts use the weights."),
    ] = None
    max_new_tokens: Annotated[Count | None, doc("Tokens of a completion; a longer one is cut off.")] = None
    temperature: Annotated[
        Annotated[float, Meta(gt=0, le=100)], doc("Divides the logits that completions are sampled from.")
    ] = 1.0
    top_p: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        doc("Sample from the most probable tokens that have this share; 1: from all."),
    ] = 1.0
    top_k: Annotated[Annotated[int, Meta(ge=0)], doc("Sample from this many most probable tokens; 0: from all.")] = 0
    stop: Annotated[
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=16)],
        doc("Texts that end a completion, beside its end token; they are no part of what is judged."),
    ] = field(default_factory=list)
    reward: Annotated[
        RewardName,
        doc(
            "Of completions, in grpo, ppo and evaluations: exact: 1 for the right answer; shaped: also a part for each "
            "right character; or MODULE:FUNCTION(prompts, completions, rows), which returns a list of numbers."
        ),
    ] = "exact"
    rewards: Annotated[
        Annotated[list[WeightedReward], Meta(min_length=1, max_length=8)] | None,
        doc("Several rewards in place of reward, such as [{reward: exact}, {reward: m:f, weight: 0.2}]: their sum."),
    ] = None
    reward_seconds: Annotated[Annotated[float, Meta(gt=0)], doc("Time limit of a call of MODULE:FUNCTION.")] = 60.0
    reward_workers: Annotated[
        Count, doc("Processes of each rank that call MODULE:FUNCTION, each with a part of the completions.")
    ] = 1
    tools: Annotated[
        Annotated[list[FunctionName], Meta(min_length=1, max_length=64)] | None,
        doc(
            "grpo: functions that the model may call, MODULE:FUNCTION each, with types and a docstring; data are "
            "conversations, and the chat template describes the tools."
        ),
    ] = None
    tool_seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("tools: time limit of a call, 10; the model reads that there was no answer."),
    ] = None
    tool_workers: Annotated[Count | None, doc("tools: processes of each rank that calls are spread over; 1.")] = None
    max_turns: Annotated[
        Annotated[int, Meta(ge=2, le=1000)] | None,
        doc(
            "tools: turns of the model in a completion, 8; maxNewTokens limits all turns with the answers of tools. A "
            "completion that needs more is cut off."
        ),
    ] = None
    group: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        doc("grpo: completions of a prompt, which are compared; batch is a multiple."),
    ] = None
    minibatches: Annotated[
        Count | None, doc("grpo, ppo: optimizer steps that share the completions of a rollout, batch for each.")
    ] = None
    iterations: Annotated[Count | None, doc("grpo, ppo: passes over a rollout.")] = None
    rollout_batch: Annotated[
        Count | None, doc("grpo, ppo: completions that a rank generates at once; default: all of its rollout.")
    ] = None
    engine: Annotated[
        Literal["torch", "vllm"] | None,
        doc(
            "grpo, ppo: what generates the completions of rollouts. torch: the model in training itself, exactly; "
            "vllm: a copy of its weights in vLLM, which has to be installed."
        ),
    ] = None
    engine_cache_gib: Annotated[
        Positive | None,
        doc("engine vllm: memory of its keys and values on each rank in GiB; default: of a rolloutBatch, at most 8."),
    ] = None
    importance_cap: Annotated[
        Annotated[float, Meta(ge=1)] | None,
        doc("engine vllm: a token weighs as much more as training finds it more probable than vLLM, at most this; 2."),
    ] = None
    clip: Annotated[Positive | None, doc("grpo, ppo: the ratio of probabilities is clipped this far below 1.")] = None
    clip_high: Annotated[
        Positive | None, doc("grpo, ppo: and this far above 1, such as 0.28 (DAPO); default: clip.")
    ] = None
    loss_level: Annotated[
        Literal["token", "sequence", "constant"] | None,
        doc(
            "grpo, ppo: token: all tokens of a step count the same (DAPO); sequence: all completions do (GRPO); "
            "constant: the sum over tokens is divided by batch x maxNewTokens (Dr. GRPO)."
        ),
    ] = None
    ratio_level: Annotated[
        Literal["token", "sequence"] | None,
        doc(
            "grpo: the ratio of probabilities that is clipped, of each token, or the geometric mean over the tokens of "
            "a completion (GSPO)."
        ),
    ] = None
    mask_truncated: Annotated[
        bool | None, doc("grpo, ppo: completions that were cut off at maxNewTokens are no part of the loss.")
    ] = None
    normalize_groups: Annotated[bool | None, doc("grpo: divide rewards by the deviation of their group.")] = None
    kl_coefficient: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        doc("Weight of the divergence from the model after sftSteps; grpo: in the loss; ppo: in the reward."),
    ] = None
    gamma: Annotated[Share | None, doc("ppo: discount of a token.")] = None
    gae_lambda: Annotated[Share | None, doc("ppo: decay of generalised advantage estimation.")] = None
    value_coefficient: Annotated[Annotated[float, Meta(ge=0)] | None, doc("ppo: weight of the value loss.")] = None
    value_lr_scale: Annotated[
        Positive | None, doc("ppo: learning rate of the value head, relative to that of the model; 1.")
    ] = None
    beta: Annotated[
        Positive | None,
        doc(
            "dpo, kto: how strongly to keep to the model after sftSteps; simpo: scale of rewards; orpo: weight of the "
            "odds ratio."
        ),
    ] = None
    objective: Annotated[
        FunctionName | None,
        doc(
            "dpo: MODULE:FUNCTION that returns the loss of pairs in place of the sigmoid loss, from log-probabilities "
            "and numbers of tokens (docs/language-models.md)."
        ),
    ] = None
    desirable_weight: Annotated[Positive | None, doc("kto: weight of right answers; 1.")] = None
    undesirable_weight: Annotated[Positive | None, doc("kto: weight of wrong answers; 1.")] = None
    target_margin: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        doc("simpo: margin by which the reward of the right answer should be higher."),
    ] = None
    length_normalized: Annotated[
        bool | None, doc("dpo: divide the log-probability of an answer by its number of tokens.")
    ] = None
    eval_samples: Annotated[Count | None, doc("Samples of the fixed evaluation set.")] = None
    eval_completions: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc(
            "Held-out prompts that an evaluation completes, once greedily and once sampled, and judges by reward; "
            "default: with data 16, grpo and ppo those of evalSamples, else 0."
        ),
    ] = None
    eval_batch: Annotated[Count | None, doc("Samples of one forward pass of an evaluation.")] = None
    eval_every: Annotated[Count | None, doc("Optimizer steps between evaluations.")] = None
    log_every: Annotated[Count, doc("Optimizer steps between two lines of output.")] = 20
