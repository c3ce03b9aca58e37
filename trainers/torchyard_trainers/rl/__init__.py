"""Parts of reinforcement learning that workloads share: environments, rollouts, advantages, losses and evaluation."""
