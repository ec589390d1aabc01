"""Names of inputs and outputs that stages of several forms have."""

from __future__ import annotations

IDS, EMBEDDED = "input_ids", "inputs_embeds"
"""What comes in: tokens on the first stage, and else what the stage before gave."""

POSITIONS = "position_ids"
BEAMS = "beam_idx"
"""The order of what is kept; it stays as it is."""

LOGITS, ROWS = "logits", "logit_rows"
"""What the last stage gives, and of which tokens."""
