"""The race: the same client, model, prompts, lengths and cores; other servers beside ours, in turn, again and again."""
