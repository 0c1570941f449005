//! Real servers under load. A server that is not installed is reported as skipped, by name.

mod applications;
mod nghttpd;
mod nginx;
