//! Real servers under load. One that is not installed is reported as skipped, by name.

mod applications;
mod nghttpd;
mod nginx;
