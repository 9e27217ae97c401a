"""What `scripts/bench peers` measures, each once and small: `scripts/test --peers`."""
