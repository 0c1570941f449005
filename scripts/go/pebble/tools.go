//go:build tools

// Package tools names the ACME authority that tests use beside that of Debian, which has no profiles, no renewal
// information and no addresses.
package tools

import (
	_ "github.com/letsencrypt/pebble/v2/cmd/pebble"
	_ "github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv"
)
