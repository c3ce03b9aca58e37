"""PPO fine-tuning of a vision-language model as the policy of a robot."""
