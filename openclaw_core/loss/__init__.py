"""Room 1: the objective of docs/method.md. Pure torch; knows no megatron, no rollout and no teacher.

The order of a step, per micro-batch:

    rows    = rows.pack_rows(samples, ...)               host: ids, masks, weights
    teacher = teacher_rows.pack_teacher(rows, scores, ...)  host: what the teacher said
    stats   = logprobs.row_stats(old_logits, shard, ...)    old pass, no gradient
    targets = targets.build_targets(cfg, rows, stats, teacher)
    out     = objective.objective(logits, rows, targets, cfg, shard)   training forward

needs.needs(cfg) says which of these inputs the objective reads at all; it imports no torch. On a GPU the old pass and the
objective run on the Triton kernels of kernels/; fused_linear.linear_objective takes hidden states instead of logits.
"""
