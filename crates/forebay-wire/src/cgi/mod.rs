//! CGI: the environment of a request and the head of a script's reply (RFC 3875).
