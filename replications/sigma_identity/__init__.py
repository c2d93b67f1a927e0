"""Bay & Yearick, "GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number" (arXiv:2607.00152): sigma identity."""
