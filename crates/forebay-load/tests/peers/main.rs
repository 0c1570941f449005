//! Load on real servers. If a server is not installed, its tests are skipped with a message that
//! names it.

mod applications;
mod caddy;
mod nghttpd;
mod nginx;
