"""A plan as `plan --json` gives it, for tests of what is done with one."""

from __future__ import annotations

from typing import Any

PLAN: dict[str, Any] = {
    "id": "ab" * 32,
    "shape": {"replicas": 1, "stages": 2},
    "stages": [
        {
            "pipeline": 0,
            "node": f"host-{index}",
            "target": "host",
            "backend": "onnxruntime",
            "graph_nodes": 200 + index,
            "weight_bytes": 50 * 2**20,
            "kv_bytes": 2**20,
            "cut_bytes": 4608 * (1 - index),
            "predicted_ms": 5.25 + index,
            "predicted_rss_bytes": 2**27,
        }
        for index in range(2)
    ],
    "bottleneck_ms": 6.25,
    "lower_bound_ms": 6.0,
    "gap": 0.04,
    "predicted_tokens_per_s": 160.0,
    "predicted_tokens_per_s_one": 86.0,
    "predicted_ttft_ms": 300.0,
    "cost_source": "measured",
    "alternatives": [
        {"shape": {"replicas": 1, "stages": 1}, "fits": True, "tokens_per_s": 90.0, "why": "slower: 90 tokens/s"}
    ],
    "rejected": [{"node": "host-2", "rule": "memory", "wanted": "3 GiB", "has": "1 GiB"}],
    "verdict": "two stages are faster",
}
