"""Sullivan & Koller, "GRPO is Secretly a Process Reward Model" (arXiv:2509.21154): lambda-GRPO and its prefix trees."""
