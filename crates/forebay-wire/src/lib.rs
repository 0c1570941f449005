//! Sans-I/O codecs for HTTP/1, FastCGI and CGI: bytes to heads, body frames and records.
#![forbid(unsafe_code)]
