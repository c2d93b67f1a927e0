"""Drawing Knights & Knaves puzzles and deciding what their statements say."""
