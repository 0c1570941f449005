package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// patience limits the time of all messages of one call.
const patience = 2 * time.Minute

// dial connects over TLS if a file of authorities is named. The certificate is for localhost.
func dial(address, authorities string) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if authorities != "" {
		var err error
		if transport, err = credentials.NewClientTLSFromFile(authorities, "localhost"); err != nil {
			return nil, err
		}
	}
	return grpc.Dial(address, grpc.WithTransportCredentials(transport))
}

// open begins a call of one of the methods that stream.
func open(ctx context.Context, connection *grpc.ClientConn, method string) (grpc.ClientStream, error) {
	for _, stream := range description.Streams {
		if stream.StreamName == method {
			return connection.NewStream(ctx, &stream, service+method)
		}
	}
	return nil, fmt.Errorf("no method %s", method)
}

// call makes every kind of call. Streaming calls carry this many messages in each direction.
func call(connection *grpc.ClientConn, messages int32) error {
	for _, step := range []struct {
		name string
		run  func(context.Context, *grpc.ClientConn, int32) error
	}{
		{"unary", unary},
		{"server stream", serverStream},
		{"client stream", clientStream},
		{"both streams, in turns", chatInTurns},
		{"both streams at once", chatAtOnce},
		{"deadline", deadline},
		{"cancel", cancel},
	} {
		ctx, done := context.WithTimeout(context.Background(), patience)
		begun := time.Now()
		err := step.run(ctx, connection, messages)
		done()
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("%s: %.1f s\n", step.name, time.Since(begun).Seconds())
	}
	return nil
}

func unary(ctx context.Context, connection *grpc.ClientConn, _ int32) error {
	var found feature
	if err := connection.Invoke(ctx, service+"GetFeature", &point{20, 30}, &found); err != nil {
		return err
	}
	if found.name != "Stone 2/3" || found.location != (point{20, 30}) {
		return fmt.Errorf("found %v", found)
	}
	err := connection.Invoke(ctx, service+"GetFeature", &point{-1, 0}, &found)
	if code := status.Convert(err); code.Code() != codes.NotFound || code.Message() != "south of the plain" {
		return fmt.Errorf("the error is %v", err)
	}
	return nil
}

func serverStream(ctx context.Context, connection *grpc.ClientConn, messages int32) error {
	stream, err := open(ctx, connection, "ListFeatures")
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&rectangle{point{1, 1}, point{1, messages}}); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for at := int32(1); at <= messages; at++ {
		var found feature
		if err := stream.RecvMsg(&found); err != nil {
			return fmt.Errorf("message %d: %w", at, err)
		}
		if found.location != (point{1, at}) {
			return fmt.Errorf("message %d is %v", at, found)
		}
	}
	return expectEnd(stream)
}

func clientStream(ctx context.Context, connection *grpc.ClientConn, messages int32) error {
	stream, err := open(ctx, connection, "RecordRoute")
	if err != nil {
		return err
	}
	for at := int32(1); at <= messages; at++ {
		if err := stream.SendMsg(&point{10, at}); err != nil {
			return fmt.Errorf("message %d: %w", at, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	var seen routeSummary
	if err := stream.RecvMsg(&seen); err != nil {
		return err
	}
	if expected := (routeSummary{messages, messages / 10}); seen != expected {
		return fmt.Errorf("%v, not %v", seen, expected)
	}
	return nil
}

// chatInTurns waits for the answer to each note, so that each note has its own frame, and a PING may
// follow.
func chatInTurns(ctx context.Context, connection *grpc.ClientConn, messages int32) error {
	stream, err := open(ctx, connection, "RouteChat")
	if err != nil {
		return err
	}
	for at := int32(1); at <= messages; at++ {
		if err := say(stream, at); err != nil {
			return fmt.Errorf("note %d: %w", at, err)
		}
		if err := hear(stream, at); err != nil {
			return fmt.Errorf("answer %d: %w", at, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return expectEnd(stream)
}

// chatAtOnce sends without waiting for answers.
func chatAtOnce(ctx context.Context, connection *grpc.ClientConn, messages int32) error {
	stream, err := open(ctx, connection, "RouteChat")
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		for at := int32(1); at <= messages; at++ {
			if err := say(stream, at); err != nil {
				sent <- fmt.Errorf("note %d: %w", at, err)
				return
			}
		}
		sent <- stream.CloseSend()
	}()
	for at := int32(1); at <= messages; at++ {
		if err := hear(stream, at); err != nil {
			return fmt.Errorf("answer %d: %w", at, err)
		}
	}
	if err := <-sent; err != nil {
		return err
	}
	return expectEnd(stream)
}

// deadline makes a call whose deadline ends while the server waits.
func deadline(ctx context.Context, connection *grpc.ClientConn, _ int32) error {
	ctx, done := context.WithTimeout(ctx, 300*time.Millisecond)
	defer done()
	return expectCode(ctx, connection, codes.DeadlineExceeded, func() {})
}

// cancel cancels a call without a deadline. The server learns this only from the RST_STREAM.
func cancel(_ context.Context, connection *grpc.ClientConn, _ int32) error {
	ctx, done := context.WithCancel(context.Background())
	return expectCode(ctx, connection, codes.Canceled, done)
}

// expectCode makes a call that the server answers once. Then it calls end, and expects code.
func expectCode(ctx context.Context, connection *grpc.ClientConn, code codes.Code, end func()) error {
	stream, err := open(ctx, connection, "RouteChat")
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&routeNote{message: wait}); err != nil {
		return err
	}
	if err := stream.RecvMsg(&routeNote{}); err != nil {
		return err
	}
	// The server waits from now on.
	end()
	err = stream.RecvMsg(&routeNote{})
	if status.Code(err) != code {
		return fmt.Errorf("%v, not %v", err, code)
	}
	return nil
}

func say(stream grpc.ClientStream, at int32) error {
	return stream.SendMsg(&routeNote{point{at, at}, "a note"})
}

func hear(stream grpc.ClientStream, at int32) error {
	var answer routeNote
	if err := stream.RecvMsg(&answer); err != nil {
		return err
	}
	if expected := (routeNote{point{at, at}, "heard a note"}); answer != expected {
		return fmt.Errorf("heard %v", answer)
	}
	return nil
}

func expectEnd(stream grpc.ClientStream) error {
	if err := stream.RecvMsg(&routeNote{}); err != io.EOF {
		return fmt.Errorf("%v in place of the end", err)
	}
	return nil
}

// code prints the status of a unary call of any method.
func code(connection *grpc.ClientConn, method string) {
	ctx, done := context.WithTimeout(context.Background(), patience)
	defer done()
	outcome := status.Convert(connection.Invoke(ctx, method, &point{20, 30}, &feature{}))
	fmt.Printf("%s: %s\n", outcome.Code(), outcome.Message())
}
