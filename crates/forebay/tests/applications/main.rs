//! Applications of Debian's packages, as they are: each of their URLs is asked for thirty times, all of
//! them interleaved over several workers, and every reply is what plain CGI gives (for PHP: nginx with
//! php-fpm; for PSGI: Starlet). So a worker that keeps something of a request shows.

mod cgi_bin;
mod harness;
mod larger;
mod node;
mod packages;
mod perl;
mod perl_traps;
mod php;
mod psgi;
mod python;
#[path = "../support/mod.rs"]
mod support;
