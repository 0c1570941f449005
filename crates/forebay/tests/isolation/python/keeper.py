# A module that outlives the scripts. Its contents stay in the worker.
kept = []
