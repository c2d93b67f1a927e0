"""One directory per replicated paper, and the command line that runs them."""
