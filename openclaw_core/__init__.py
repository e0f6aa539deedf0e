"""The parts of OpenClaw that compute: objective, rollout, teacher, checkpoints, runs. No terminal code."""
