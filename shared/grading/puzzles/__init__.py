"""Reading the answer to a Knights & Knaves puzzle."""
