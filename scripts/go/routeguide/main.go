// Routeguide is a gRPC service and its client, made with grpc-go. Tests connect the two through Forebay.
//
//	routeguide serve PORT [PIDFILE]        serves on 127.0.0.1
//	routeguide call [-ca FILE] [-messages N] ADDRESS
//	                                       makes every kind of call
//	routeguide code [-ca FILE] ADDRESS METHOD...
//	                                       prints the status of a call of each method
//
// The service is that of the examples of gRPC (routeguide.proto), written anew. Its messages are encoded by
// hand, so that building it needs no protoc.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "routeguide:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return fmt.Errorf("serve, call or code?")
	}
	options := flag.NewFlagSet(arguments[0], flag.ExitOnError)
	authorities := options.String("ca", "", "connect over TLS, and trust the authorities in this `file`")
	messages := options.Int("messages", 20_000, "messages each way of calls that stream")
	if err := options.Parse(arguments[1:]); err != nil {
		return err
	}
	rest := options.Args()
	if len(rest) == 0 {
		return fmt.Errorf("%s what?", arguments[0])
	}
	if arguments[0] == "serve" {
		return serve(rest[0], options.Arg(1))
	}
	connection, err := dial(rest[0], *authorities)
	if err != nil {
		return err
	}
	defer connection.Close()
	switch arguments[0] {
	case "call":
		if err := call(connection, int32(*messages)); err != nil {
			return err
		}
		fmt.Println("all calls went well")
	case "code":
		for _, method := range rest[1:] {
			code(connection, method)
		}
	default:
		return fmt.Errorf("no command %q", arguments[0])
	}
	return nil
}
