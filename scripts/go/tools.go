//go:build tools

// Package tools names the programs in Go that tests run, so that go.mod and go.sum pin them and all they are made of.
package tools

import (
	_ "github.com/fullstorydev/grpcurl/cmd/grpcurl"
	_ "github.com/summerwind/h2spec/cmd/h2spec"
)
