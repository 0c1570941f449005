package main

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/encoding/protowire"
)

// A point names a place by degrees times ten million.
type point struct{ latitude, longitude int32 }

// A rectangle is the area between two corners.
type rectangle struct{ low, high point }

// A feature is a place, with a name if something is there.
type feature struct {
	name     string
	location point
}

// A routeNote is a message at a place.
type routeNote struct {
	location point
	message  string
}

// A routeSummary has the numbers of points and features on a route.
type routeSummary struct{ points, features int32 }

// A message is encoded by the rules of Protocol Buffers, by hand, so that no generator is needed.
// Field numbers are those of routeguide.proto.
type message interface {
	append(out []byte) []byte
	set(number protowire.Number, value uint64, bytes []byte) error
}

func (p *point) append(out []byte) []byte {
	out = appendNumber(out, 1, p.latitude)
	return appendNumber(out, 2, p.longitude)
}

func (p *point) set(number protowire.Number, value uint64, _ []byte) error {
	switch number {
	case 1:
		p.latitude = int32(value)
	case 2:
		p.longitude = int32(value)
	}
	return nil
}

func (r *rectangle) append(out []byte) []byte {
	out = appendMessage(out, 1, &r.low)
	return appendMessage(out, 2, &r.high)
}

func (r *rectangle) set(number protowire.Number, _ uint64, bytes []byte) error {
	switch number {
	case 1:
		return parse(bytes, &r.low)
	case 2:
		return parse(bytes, &r.high)
	}
	return nil
}

func (f *feature) append(out []byte) []byte {
	out = appendText(out, 1, f.name)
	return appendMessage(out, 2, &f.location)
}

func (f *feature) set(number protowire.Number, _ uint64, bytes []byte) error {
	switch number {
	case 1:
		f.name = string(bytes)
	case 2:
		return parse(bytes, &f.location)
	}
	return nil
}

func (n *routeNote) append(out []byte) []byte {
	out = appendMessage(out, 1, &n.location)
	return appendText(out, 2, n.message)
}

func (n *routeNote) set(number protowire.Number, _ uint64, bytes []byte) error {
	switch number {
	case 1:
		return parse(bytes, &n.location)
	case 2:
		n.message = string(bytes)
	}
	return nil
}

func (s *routeSummary) append(out []byte) []byte {
	out = appendNumber(out, 1, s.points)
	return appendNumber(out, 2, s.features)
}

func (s *routeSummary) set(number protowire.Number, value uint64, _ []byte) error {
	switch number {
	case 1:
		s.points = int32(value)
	case 2:
		s.features = int32(value)
	}
	return nil
}

func appendNumber(out []byte, number protowire.Number, value int32) []byte {
	if value == 0 {
		return out
	}
	out = protowire.AppendTag(out, number, protowire.VarintType)
	return protowire.AppendVarint(out, uint64(int64(value)))
}

func appendText(out []byte, number protowire.Number, text string) []byte {
	if text == "" {
		return out
	}
	out = protowire.AppendTag(out, number, protowire.BytesType)
	return protowire.AppendString(out, text)
}

func appendMessage(out []byte, number protowire.Number, part message) []byte {
	out = protowire.AppendTag(out, number, protowire.BytesType)
	return protowire.AppendBytes(out, part.append(nil))
}

// parse sets the fields of m that are in bytes.
func parse(bytes []byte, m message) error {
	for len(bytes) > 0 {
		number, kind, n := protowire.ConsumeTag(bytes)
		if n < 0 {
			return protowire.ParseError(n)
		}
		bytes = bytes[n:]
		var value uint64
		var content []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(bytes)
		case protowire.BytesType:
			content, n = protowire.ConsumeBytes(bytes)
		default:
			n = protowire.ConsumeFieldValue(number, kind, bytes)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := m.set(number, value, content); err != nil {
			return err
		}
		bytes = bytes[n:]
	}
	return nil
}

// codec takes the place of the codec for generated messages.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v interface{}) ([]byte, error) {
	m, ok := v.(message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return m.append(nil), nil
}

func (codec) Unmarshal(bytes []byte, v interface{}) error {
	m, ok := v.(message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	return parse(bytes, m)
}

func init() { encoding.RegisterCodec(codec{}) }
