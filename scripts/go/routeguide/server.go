package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// service is the path of the service.
const service = "/routeguide.RouteGuide/"

// wait is the last note that RouteChat answers. It then waits for the call's end.
const wait = "wait"

// routeGuide has a feature at each point whose latitude and longitude are multiples of ten.
type routeGuide struct{}

func nameOf(p *point) string {
	if p.latitude%10 != 0 || p.longitude%10 != 0 {
		return ""
	}
	return fmt.Sprintf("Stone %d/%d", p.latitude/10, p.longitude/10)
}

func (routeGuide) getFeature(_ context.Context, p *point) (*feature, error) {
	if p.latitude < 0 {
		return nil, status.Error(codes.NotFound, "south of the plain")
	}
	return &feature{nameOf(p), *p}, nil
}

func (routeGuide) listFeatures(within *rectangle, stream grpc.ServerStream) error {
	for latitude := within.low.latitude; latitude <= within.high.latitude; latitude++ {
		for longitude := within.low.longitude; longitude <= within.high.longitude; longitude++ {
			at := point{latitude, longitude}
			if err := stream.SendMsg(&feature{nameOf(&at), at}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (routeGuide) recordRoute(stream grpc.ServerStream) error {
	var seen routeSummary
	for {
		var at point
		switch err := stream.RecvMsg(&at); {
		case err == io.EOF:
			return stream.SendMsg(&seen)
		case err != nil:
			return err
		}
		seen.points++
		if nameOf(&at) != "" {
			seen.features++
		}
	}
}

// routeChat answers each note at once. After the note "wait", it waits, and prints why the call ended.
func (routeGuide) routeChat(stream grpc.ServerStream) error {
	for {
		var note routeNote
		switch err := stream.RecvMsg(&note); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		isLast := note.message == wait
		note.message = "heard " + note.message
		if err := stream.SendMsg(&note); err != nil {
			return err
		}
		if isLast {
			<-stream.Context().Done()
			fmt.Println("a call that waits ends:", stream.Context().Err())
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

var description = grpc.ServiceDesc{
	ServiceName: "routeguide.RouteGuide",
	HandlerType: (*interface{})(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "GetFeature",
		Handler: func(guide interface{}, ctx context.Context, decode func(interface{}) error, _ grpc.UnaryServerInterceptor) (interface{}, error) {
			var p point
			if err := decode(&p); err != nil {
				return nil, err
			}
			return guide.(routeGuide).getFeature(ctx, &p)
		},
	}},
	Streams: []grpc.StreamDesc{
		{
			StreamName: "ListFeatures",
			Handler: func(guide interface{}, stream grpc.ServerStream) error {
				var within rectangle
				if err := stream.RecvMsg(&within); err != nil {
					return err
				}
				return guide.(routeGuide).listFeatures(&within, stream)
			},
			ServerStreams: true,
		},
		{
			StreamName: "RecordRoute",
			Handler: func(guide interface{}, stream grpc.ServerStream) error {
				return guide.(routeGuide).recordRoute(stream)
			},
			ClientStreams: true,
		},
		{
			StreamName: "RouteChat",
			Handler: func(guide interface{}, stream grpc.ServerStream) error {
				return guide.(routeGuide).routeChat(stream)
			},
			ServerStreams: true,
			ClientStreams: true,
		},
	},
}

// serve listens on a port of the loopback interface, and then writes its process id to a file, if named.
func serve(port, pidFile string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	server.RegisterService(&description, routeGuide{})
	if pidFile != "" {
		if err := os.WriteFile(pidFile, []byte(fmt.Sprint(os.Getpid())), 0o644); err != nil {
			return err
		}
	}
	return server.Serve(listener)
}
