"""One peer of `vecrl.py`, in an environment of its own: PPO on CartPole-v1, and how fast it trains.

    vecrl_peers.py cleanrl|sb3 ENVIRONMENTS HORIZON STEPS cpu|cuda

`cleanrl` is PPO as CleanRL's single file does it (Huang 2022): a loop over gymnasium's synchronous vector environment
and minibatches drawn from the flattened batch, with its defaults otherwise. Prints {"steps", "seconds", "cpuSeconds"}
of training, after one rollout to warm up.
"""

import json
import sys
import time

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

EPOCHS, MINIBATCHES, GAMMA, DECAY, CLIP, RATE = 4, 4, 0.99, 0.95, 0.2, 2.5e-4


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        self.actor = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 2, 0.01))

    def act_and_value(self, observation: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
        choice = Categorical(logits=self.actor(observation))
        action = choice.sample() if action is None else action
        return action, choice.log_prob(action), choice.entropy(), self.critic(observation)


def cleanrl(copies: int, horizon: int, steps: int, device: str) -> None:
    torch.manual_seed(1)
    made = [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))] * copies
    envs = gymnasium.vector.SyncVectorEnv(made)
    agent = Agent().to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=RATE, eps=1e-5)
    observations = torch.zeros(horizon, copies, 4, device=device)
    actions, log_probabilities, rewards, dones, values = (torch.zeros(horizon, copies, device=device) for _ in range(5))
    following = torch.tensor(envs.reset(seed=1)[0], device=device)
    ended = torch.zeros(copies, device=device)
    for _ in range(steps // (copies * horizon)):
        for time_step in range(horizon):
            observations[time_step], dones[time_step] = following, ended
            with torch.no_grad():
                action, log_probability, _, value = agent.act_and_value(following)
            values[time_step], actions[time_step], log_probabilities[time_step] = (
                value.flatten(),
                action,
                log_probability,
            )
            seen, reward, terminated, truncated, _ = envs.step(action.cpu().numpy())
            rewards[time_step] = torch.tensor(reward, device=device)
            following, ended = (
                torch.tensor(seen, device=device),
                torch.tensor(np.logical_or(terminated, truncated), dtype=torch.float32, device=device),
            )
        with torch.no_grad():
            next_value = agent.critic(following).flatten()
            advantages = torch.zeros_like(rewards)
            running = 0
            for time_step in reversed(range(horizon)):
                last = time_step == horizon - 1
                goes_on = 1.0 - (ended if last else dones[time_step + 1])
                later = next_value if last else values[time_step + 1]
                delta = rewards[time_step] + GAMMA * later * goes_on - values[time_step]
                advantages[time_step] = running = delta + GAMMA * DECAY * goes_on * running
            returns = advantages + values
        flat = [each.flatten(0, 1) for each in (observations, actions, log_probabilities, advantages, returns, values)]
        for _ in range(EPOCHS):
            for rows in np.array_split(np.random.permutation(copies * horizon), MINIBATCHES):  # noqa: NPY002 - as there
                observation, action, old, advantage, target, value_then = (each[rows] for each in flat)
                _, new, entropy, value = agent.act_and_value(observation, action.long())
                ratio = (new - old).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)).mean()
                value = value.view(-1)
                near = value_then + torch.clamp(value - value_then, -CLIP, CLIP)
                error = 0.5 * torch.max((value - target) ** 2, (near - target) ** 2).mean()
                loss = policy - 0.01 * entropy.mean() + 0.5 * error
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()


def sb3(copies: int, horizon: int, steps: int, device: str) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env("CartPole-v1", n_envs=copies, seed=1)
    size = copies * horizon // MINIBATCHES
    PPO(
        "MlpPolicy", envs, n_steps=horizon, batch_size=size, n_epochs=EPOCHS, ent_coef=0.01, seed=1, device=device
    ).learn(steps)


def main() -> None:
    torch.set_num_threads(1)
    name, copies, horizon, steps, device = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
    steps -= steps % (copies * horizon)
    train = {"cleanrl": cleanrl, "sb3": sb3}[name]
    train(copies, horizon, copies * horizon, device)
    started, worked = time.perf_counter(), time.process_time()
    train(copies, horizon, steps, device)
    facts = {"steps": steps, "seconds": time.perf_counter() - started, "cpuSeconds": time.process_time() - worked}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
