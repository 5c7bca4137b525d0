"""Who holds which KV block: the pool, and the prefix cache over it. Ids and counts only; the memory itself is the runner's."""
