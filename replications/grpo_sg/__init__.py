"""GRPO-SG: sharpness-guided token weights (Le, Ngo Van & Le, arXiv:2511.00066)."""
