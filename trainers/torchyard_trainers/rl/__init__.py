"""Parts of reinforcement learning that workloads share: advantages, clipped losses, divergences and sampling."""
