"""PPO of a vision-language model really learns: preset tiny, a Qwen2-VL of 0.22 million parameters, from pictures.

After 40,960 steps of the environments half of the greedy episodes must succeed, after 61,440 steps 85 %.
"""


def test_a_policy_that_sees_a_can_learns_to_reach_it_with_every_seed(reach):
    summaries = reach("vlm", logEvery=80, evalEvery=20)
    for summary in summaries:
        assert summary["environmentSteps"] == 61_440
        (halfway,) = (line["successRate"] for line in summary["curve"] if line["step"] == 160)
        assert halfway >= 0.5, summaries
