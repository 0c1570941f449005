//! Unchanged applications of Debian's packages. The tests request each URL thirty times,
//! interleaved over several workers. Every reply must equal the one of plain CGI (for PHP: nginx
//! with php-fpm; for PSGI: Starlet). This finds workers that keep parts of a request.

mod cgi_bin;
mod harness;
mod larger;
mod node;
mod ocs;
mod packages;
mod perl;
mod perl_traps;
mod php;
mod psgi;
mod python;
#[path = "../support/mod.rs"]
mod support;
