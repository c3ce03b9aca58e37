"""Training on a file: padded or packed, by any strategy, with bad records named or skipped."""

import json
from types import SimpleNamespace

import pytest
import torch
from tests.support.trainers.gangs import config

from torchyard_trainers.core.data.packing import packing_of
from torchyard_trainers.core.data.source import check_same_data
from torchyard_trainers.core.exits import ConfigError, DataError
from torchyard_trainers.core.step import _out_of_memory


def source(*lengths):
    return SimpleNamespace(lengths=lambda: list(lengths) or None)


@pytest.mark.parametrize(
    ("data", "divisible", "words"),
    [
        (None, True, "parallelism.microBatchTokens: 8, but the samples of this workload have no lengths"),
        (source(), True, "have no lengths; set microBatchSize instead"),
        (source(3), False, "losses of this workload depend on other samples"),
        (source(3, 9), True, "the longest sample has 9 tokens; raise it, or shorten the samples"),
    ],
)
def test_what_cannot_be_packed_is_an_error_of_the_configuration(data, divisible, words):
    with pytest.raises(ConfigError, match=words):
        packing_of(data, 8, divisible=divisible)
    assert packing_of(data, None, divisible=divisible) is None


def test_out_of_memory_advises_half_the_tokens_while_the_longest_sample_fits():
    session = SimpleNamespace(packing=packing_of(source(3, 9), 20, divisible=True))
    error = _out_of_memory(session, [])
    assert (error.next_micro_batch, str(error)) == (
        10,
        "GPU out of memory with micro-batches of 20 tokens; set parallelism.microBatchTokens: 10",
    )
    session = SimpleNamespace(packing=packing_of(source(3, 9), 16, divisible=True))
    assert _out_of_memory(session, []).next_micro_batch == 0


def test_ranks_with_different_files_end_before_the_first_step():
    world = SimpleNamespace(gather=lambda value: [value, value, "other"])
    with pytest.raises(
        DataError, match="rank 2 reads other data than rank 0; check that all nodes have the same files"
    ):
        check_same_data(SimpleNamespace(fingerprint="one"), world)
    check_same_data(None, SimpleNamespace(gather=lambda value: [value] * 3))


def texts(path, *, bad):
    generator = torch.Generator().manual_seed(5)
    rows = [
        {"text": "".join(chr(97 + (start + 3 * at) % 26) for at in range(size))}
        for start, size in torch.randint(2, 24, (40, 2), generator=generator).tolist()
    ]
    if bad:
        rows[7] = {"txt": "no text"}
        rows[20] = {"text": 3}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def given(path, steps, *, skip=False, **parallelism):
    sections = config(parallelism=parallelism)
    return sections | {
        "trainer": {"name": "packed_lm:PackedLm", "params": {"data": path, "steps": steps, "skip": skip}}
    }


@pytest.mark.e2e
def test_packing_strategy_and_world_size_do_not_change_a_step_nor_do_skipped_records(yard, calm, tmp_path):
    path = texts(tmp_path / "train.jsonl", bad=True)
    calm.train(given(path, 10, skip=True, microBatchSize=3))
    yard.train(given(path, 3, skip=True, microBatchTokens=40))
    yard.train(given(path, 6, skip=True, microBatchTokens=32, strategy="fsdp"), world=3)
    yard.train(given(path, 10, skip=True, microBatchTokens=70), world=2)
    assert yard.losses() == pytest.approx(calm.losses(), abs=1e-5)
    assert yard.losses().keys() == set(range(1, 11))
    assert {row["skippedRecords"] for row in yard.metrics()} == {2.0}


@pytest.mark.e2e
def test_a_bad_record_ends_the_job_with_65_and_its_place(yard, tmp_path):
    gang = yard.start(given(texts(tmp_path / "train.jsonl", bad=True), 3))
    assert gang.wait() == [65]
    assert "train.jsonl, line 8: field 'text' is missing; the record has 'txt'" in gang.output()
