//! FastCGI records (FastCGI specification 1.0).
