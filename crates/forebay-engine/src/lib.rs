//! Threads, listeners, conversations, timers and limits of the gateway.
