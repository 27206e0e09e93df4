"""Floor 0: formats, oracle, layouts, device facts, statistics, verdicts, reports. Never imports CUDA."""
