"""Reward functions as users write them, good and bad."""

import asyncio
import os
import sys
import threading


def length(prompts, completions, rows):
    print("a function may print")  # noqa: T201
    return [len(completion) + row["bonus"] for completion, row in zip(completions, rows, strict=True)]


def process(prompts, completions, rows):
    return [os.getpid()] * len(completions)


def hang(prompts, completions, rows):
    threading.Event().wait()


def fail(prompts, completions, rows):
    raise KeyError("answer")


def crash(prompts, completions, rows):
    os.abort()


def too_few(prompts, completions, rows):
    return [1.0]


def not_finite(prompts, completions, rows):
    return [1.0] * (len(completions) - 1) + [float("nan")]


def nothing(prompts, completions, rows):
    return None


def beyond_floats(prompts, completions, rows):
    return [10**400] * len(completions)


def leave(prompts, completions, rows):
    sys.exit(0)


def leave_a_child_behind(prompts, completions, rows):
    if os.fork() == 0:
        threading.Event().wait()
    os._exit(3)


def return_twice(prompts, completions, rows):
    os.fork()
    return [os.getpid()] * len(completions)


def start_a_child(prompts, completions, rows):
    os.open(rows[0]["pipe"], os.O_WRONLY)
    if os.fork() == 0:
        threading.Event().wait()
    return [1.0] * len(completions)


def too_many(prompts, completions, rows):
    return [0.5] * 100_000


def write_a_length(prompts, completions, rows):
    os.write(int(sys.argv[3]), b"\x00\x00\x01" + bytes(5))
    return [1.0] * len(completions)


def write_a_number(prompts, completions, rows):
    os.write(int(sys.argv[3]), (1).to_bytes(8, "big") + b"3")
    return [1.0] * len(completions)


def say_much(prompts, completions, rows):
    raise ValueError("x" * 1_000_000)


def of_another_trainer(completions, **kwargs):
    return [1.0 for _ in completions]


def of_a_column(prompts, completions, bonus, scale=1.0, **kwargs):
    return [scale * (len(each) + extra) for each, extra in zip(completions, bonus, strict=True)]


def of_all_columns(**kwargs):
    assert sorted(kwargs) == ["bonus", "completions", "level", "prompts"]
    assert all(len(each) == len(kwargs["completions"]) for each in kwargs.values())
    return [float("level" in kwargs) + 1.0 for _ in kwargs["completions"]]


def of_an_unused_prompt(_prompts, completions, rows):
    return [float(len(each)) for each in completions]


def by_position(text, reply, record):
    return [each["bonus"] for each in record]


def of_two(text, reply):
    return [0.0 for _ in reply]


def of_no_column(prompts, completions, solution):
    return [0.0 for _ in completions]


def of_trl_only(prompts, completions, completion_ids):
    return [0.0 for _ in completions]


async def at_the_same_time(prompts, completions, **columns):
    """Return 1 for each completion, once the calls for all of them have begun."""
    barrier = asyncio.Barrier(len(completions))

    async def judge():
        await barrier.wait()
        return 1.0

    return await asyncio.gather(*(judge() for _ in completions))


async def wait(prompts, completions, **columns):
    await asyncio.Event().wait()
