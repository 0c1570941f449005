#!/bin/sh
# Makes the certificate and key (ECDSA, P-256) of the servers of tls*.toml and http2.toml.
set -eu
cd "$(dirname "$0")"
umask 077
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 \
    -subj /CN=localhost -keyout tls-key.pem -out tls-cert.pem
