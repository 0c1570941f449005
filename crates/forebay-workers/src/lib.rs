//! Application processes: spawned, watched, recycled and drained, with the language hosts they run.
