"""Host memory of each rank while pretrained weights become FSDP shards, beside `from_pretrained` in each rank.

    python benchmarks/trainers/lm_load.py [--ranks 2] [--width 1024] [--layers 12]

Both sides read the same folder (Qwen3, bf16 safetensors) into fp32 shards of as many CPU processes: ours by the command
line of `lm`, up to its first step; the peer as users of transformers do: the whole model by `from_pretrained`, then
`fully_shard` of each layer. Memory is anonymous and shared memory above that of the imported program, sampled every
millisecond; pages of the file, which the kernel may drop, do not count.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from sides import Side, say

MIB = 2**20
_COUNTED = ("RssAnon", "RssShmem")


def resident() -> int:
    """Return the bytes of this process in memory that belong to no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines if line.startswith(_COUNTED))
    return sum(int(each.split()[0]) for each in found.values()) * 1024


class Peak:
    """The most memory since the start of a thread that looks every millisecond."""

    def __init__(self) -> None:
        self._before, self._most, self._ended = resident(), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.001):
            self._most = max(self._most, resident())

    def stop(self) -> tuple[int, int]:
        """Return peak and present memory above that of the start."""
        self._ended.set()
        self._thread.join()
        now = resident()
        return max(self._most, now) - self._before, now - self._before


def ours(folder: Path) -> None:
    """Load by our command line, up to the first evaluation."""
    import torch.distributed.fsdp  # noqa: F401 - imported with the model otherwise
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401 - the same

    from torchyard_trainers import registry
    from torchyard_trainers.core.command import main
    from torchyard_trainers.lm.params import resolve_params
    from torchyard_trainers.lm.task import LanguageModeling

    class Loads(LanguageModeling):
        def begin(self, session: Any) -> dict[str, float]:
            report(peak, session.parallel.module.parameters())
            return {}

    params = {
        "pretrained": str(folder),
        "data": [str(folder / "rows.jsonl")],
        "validation": [str(folder / "rows.jsonl")],
    }
    config = {
        "trainer": {"name": "lm", "params": params | {"steps": 1, "batch": 2, "warmupSteps": 0, "maxLength": 32}},
        "device": "cpu",
        "parallelism": {"strategy": "fsdp"},
        "logging": {"tensorboard": False},
    }
    file = folder / f"config-{os.environ['RANK']}.json"
    file.write_text(json.dumps(config))
    registry.build = lambda config: Loads(resolve_params(config.trainer.params, config.parallelism))
    peak = Peak()
    main(["--config", str(file), "--checkpoint-dir", str(folder / "checkpoints")])


def peer(folder: Path) -> None:
    """Load the whole model in each process, and shard it."""
    import torch
    import torch.distributed.fsdp
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401 - imported with the model otherwise
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    peak = Peak()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    report(peak, model.parameters())


def report(peak: Peak, parameters: Any) -> None:
    """Answer with the memory of this rank, and the sum of its shards, which both sides must agree on."""
    import torch
    from torch.distributed import all_reduce, barrier

    most, now = peak.stop()
    shards = [each.to_local() for each in {id(each): each for each in parameters}.values()]
    total = sum((each.double().abs().sum() for each in shards), torch.zeros((), dtype=torch.float64))
    all_reduce(total)
    say({"peak": most, "after": now, "shards": sum(4 * each.numel() for each in shards), "sum": total.item()})
    barrier()
    os._exit(0)


def prepare(folder: Path, options: argparse.Namespace) -> int:
    """Write the model and a few records; return the bytes of its weights in fp32."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from torchyard_trainers.lm.tokens import character_tokenizer

    tokenizer = character_tokenizer()
    config = Qwen3Config(
        vocab_size=32_768,
        hidden_size=options.width,
        intermediate_size=3 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 64,
        num_key_value_heads=options.width // 128,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen3ForCausalLM(config).bfloat16()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    return 4 * sum(each.numel() for each in model.parameters())


def measure(name: str, folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Return what the ranks of a side report."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    sides = []
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        os.environ |= {key: str(value) for key, value in place.items()}
        sides.append(Started([sys.executable, "-W", "ignore", __file__, "--side", name, "--folder", str(folder)]))
    return [side.answer() for side in sides]


class Started(Side):
    """A rank, which answers once."""

    def _hear(self) -> dict[str, Any]:
        return {}

    def answer(self) -> dict[str, Any]:
        """Wait for the answer."""
        found = super()._hear()
        self.close()
        return found


def main() -> None:
    """Measure both sides and print what each rank needed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=1024, help="a multiple of 128")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--side", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        {"ours": ours, "peer": peer}[options.side](options.folder)
        return
    os.environ |= {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "trainers"), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        size = prepare(Path(folder), options)
        print(f"{size / 4e6:.0f} million weights, {size / MIB:.0f} MiB in fp32; {options.ranks} ranks")
        found = {name: measure(name, Path(folder), options.ranks) for name in ("ours", "peer")}
    for name, ranks in found.items():
        peak, after, shards = (max(each[kind] for each in ranks) for kind in ("peak", "after", "shards"))
        text = f"peak {peak / MIB:.0f} MiB, afterwards {after / MIB:.0f}, shards {shards / MIB:.0f}"
        print(f"  {name:<5}{text}; peak / shards {peak / shards:.2f}")
    ours_most, peer_most = (max(each["peak"] for each in found[name]) for name in ("ours", "peer"))
    print(f"  ours / peer {ours_most / peer_most:.2f}")
    sums = {name: found[name][0]["sum"] for name in found}
    assert abs(sums["ours"] / sums["peer"] - 1) < 1e-9, f"the sides hold other weights: {sums}"


if __name__ == "__main__":
    main()
