# A module that outlives the scripts: what they put here stays in their worker.
kept = []
