"""One peer of `vecrl.py`, in an environment of its own: PPO on CartPole-v1, and how fast it trains.

    vecrl_peers.py cleanrl|sb3 ENVIRONMENTS HORIZON STEPS cpu|cuda
    vecrl_peers.py continuous ENVIRONMENTS HORIZON STEPS cpu|cuda ID MINIBATCHES GAMMA RATE SEED

`cleanrl` is PPO as CleanRL's single file does it (Huang 2022): a loop over gymnasium's synchronous vector environment
and minibatches drawn from the flattened batch, with its defaults otherwise. `continuous` is its
ppo_continuous_action.py in the same way, with the wrappers of that file; it also prints `return`, the mean of the
episodes that ended in the last tenth of training. Prints {"steps", "seconds", "cpuSeconds"}
of training, after one rollout to warm up.
"""

import json
import sys
import time

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

EPOCHS, MINIBATCHES, GAMMA, DECAY, CLIP, RATE = 4, 4, 0.99, 0.95, 0.2, 2.5e-4


def _advantages(rewards: Tensor, values: Tensor, dones: Tensor, after: tuple[Tensor, Tensor], gamma: float) -> Tensor:
    """Return generalized advantages [T, n].

    Args:
        rewards: [T, n].
        values: [T, n].
        dones: [T, n], whether an episode ended before a step.
        after: dones and values of the step that follows, [n] each.
        gamma: discount.
    """
    ended, next_value = after
    advantages = torch.zeros_like(rewards)
    running, horizon = torch.zeros_like(after[1]), len(rewards)
    for time_step in reversed(range(horizon)):
        last = time_step == horizon - 1
        continues = 1.0 - (ended if last else dones[time_step + 1])
        later = next_value if last else values[time_step + 1]
        delta = rewards[time_step] + gamma * later * continues - values[time_step]
        advantages[time_step] = running = delta + gamma * DECAY * continues * running
    return advantages


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
            advantages = _advantages(rewards, values, dones, (ended, next_value), GAMMA)
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


class Continuous(nn.Module):
    def __init__(self, inputs: int, numbers: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        self.actor = nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, numbers, 0.01))
        self.log_deviation = nn.Parameter(torch.zeros(1, numbers))

    def act_and_value(self, observation: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
        mean = self.actor(observation)
        choice = Normal(mean, self.log_deviation.expand_as(mean).exp())
        action = choice.sample() if action is None else action
        return action, choice.log_prob(action).sum(1), choice.entropy().sum(1), self.critic(observation)


def wrapped(name: str, gamma: float) -> gymnasium.Env:
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(name))
    env = gymnasium.wrappers.NormalizeObservation(gymnasium.wrappers.ClipAction(env))
    env = gymnasium.wrappers.TransformObservation(env, lambda seen: np.clip(seen, -10, 10), env.observation_space)
    env = gymnasium.wrappers.NormalizeReward(env, gamma=gamma)
    return gymnasium.wrappers.TransformReward(env, lambda reward: np.clip(reward, -10, 10))


def continuous(copies: int, horizon: int, steps: int, device: str, *more: str) -> float:
    name, parts, gamma, rate, seed = more[0], int(more[1]), float(more[2]), float(more[3]), int(more[4])
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - as there
    envs = gymnasium.vector.SyncVectorEnv([lambda: wrapped(name, gamma)] * copies)
    inputs, numbers = envs.single_observation_space.shape[0], envs.single_action_space.shape[0]
    agent = Continuous(inputs, numbers).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=rate, eps=1e-5)
    observations = torch.zeros(horizon, copies, inputs, device=device)
    actions = torch.zeros(horizon, copies, numbers, device=device)
    log_probabilities, rewards, dones, values = (torch.zeros(horizon, copies, device=device) for _ in range(4))
    following = torch.tensor(envs.reset(seed=seed)[0], dtype=torch.float32, device=device)
    ended, returns_seen = torch.zeros(copies, device=device), []
    updates = steps // (copies * horizon)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = (1.0 - update / updates) * rate
        for time_step in range(horizon):
            observations[time_step], dones[time_step] = following, ended
            with torch.no_grad():
                action, log_probability, _, value = agent.act_and_value(following)
            values[time_step], actions[time_step], log_probabilities[time_step] = (
                value.flatten(),
                action,
                log_probability,
            )
            seen, reward, terminated, truncated, infos = envs.step(action.cpu().numpy())
            if "episode" in infos:
                returns_seen += [(update, float(each)) for each in infos["episode"]["r"][infos["_episode"]]]
            rewards[time_step] = torch.tensor(reward, dtype=torch.float32, device=device)
            following = torch.tensor(seen, dtype=torch.float32, device=device)
            ended = torch.tensor(np.logical_or(terminated, truncated), dtype=torch.float32, device=device)
        with torch.no_grad():
            next_value = agent.critic(following).flatten()
            advantages = _advantages(rewards, values, dones, (ended, next_value), gamma)
            returns = advantages + values
        flat = [each.flatten(0, 1) for each in (observations, actions, log_probabilities, advantages, returns, values)]
        for _ in range(10):
            for rows in np.array_split(np.random.permutation(copies * horizon), parts):  # noqa: NPY002 - as there
                observation, action, old, advantage, target, value_then = (each[rows] for each in flat)
                _, new, _, value = agent.act_and_value(observation, action)
                ratio = (new - old).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)).mean()
                value = value.view(-1)
                near = value_then + torch.clamp(value - value_then, -CLIP, CLIP)
                error = 0.5 * torch.max((value - target) ** 2, (near - target) ** 2).mean()
                optimizer.zero_grad()
                (policy + 0.5 * error).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
    late = [total for update, total in returns_seen if update >= updates - max(1, updates // 10)]
    return float(np.mean(late)) if late else float("nan")


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
    train = {"cleanrl": cleanrl, "sb3": sb3, "continuous": continuous}[name]
    more = sys.argv[6:]
    train(copies, horizon, copies * horizon, device, *more)
    started, worked = time.perf_counter(), time.process_time()
    found = train(copies, horizon, steps, device, *more)
    facts = {"steps": steps, "seconds": time.perf_counter() - started, "cpuSeconds": time.process_time() - worked}
    print(json.dumps(facts | ({"return": found} if found is not None else {})))


if __name__ == "__main__":
    main()
