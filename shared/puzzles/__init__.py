"""Logic puzzles: their statements, solutions, drawing and wording. Tasks pose them; nothing here knows a trainer."""
