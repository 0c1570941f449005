//! What answers a request: files, CGI, FastCGI, HTTP backends and applications.
#![forbid(unsafe_code)]
