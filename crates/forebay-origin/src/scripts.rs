//! CGI scripts: `cgi` starts a process for each request, `interpreter` reads the first line of a
//! script, and `warm` decides which scripts run in workers.

pub mod cgi;
mod child;
pub mod interpreter;
pub mod reaper;
pub mod warm;
