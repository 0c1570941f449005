// Runs the receiver of the OpenTelemetry Collector (OTLP over HTTP) on an address, and writes its process ID to a file
// when it listens. Prints each export as a line of JSON, which is made from what the receiver has decoded, so a field
// that it does not know is missing.
package main

import (
	"context"
	"log"
	"os"
	"strconv"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: collector ADDRESS:PORT PIDFILE")
	}
	var turn sync.Mutex
	write := func(document []byte, err error) error {
		if err != nil {
			return err
		}
		turn.Lock()
		defer turn.Unlock()
		_, err = os.Stdout.Write(append(document, '\n'))
		return err
	}
	traces, err := consumer.NewTraces(func(_ context.Context, received ptrace.Traces) error {
		return write((&ptrace.JSONMarshaler{}).MarshalTraces(received))
	})
	check(err)
	metrics, err := consumer.NewMetrics(func(_ context.Context, received pmetric.Metrics) error {
		return write((&pmetric.JSONMarshaler{}).MarshalMetrics(received))
	})
	check(err)

	factory := otlpreceiver.NewFactory()
	settings := receiver.Settings{
		ID:                component.NewID(factory.Type()),
		TelemetrySettings: componenttest.NewNopTelemetrySettings(),
	}
	config := factory.CreateDefaultConfig()
	protocols := map[string]any{"http": map[string]any{"endpoint": os.Args[1]}}
	check(confmap.NewFromStringMap(map[string]any{"protocols": protocols}).Unmarshal(config))
	ctx := context.Background()
	ofTraces, err := factory.CreateTraces(ctx, settings, config, traces)
	check(err)
	ofMetrics, err := factory.CreateMetrics(ctx, settings, config, metrics)
	check(err)
	for _, each := range []component.Component{ofTraces, ofMetrics} {
		check(each.Start(ctx, componenttest.NewNopHost()))
	}
	check(os.WriteFile(os.Args[2], []byte(strconv.Itoa(os.Getpid())), 0o644))
	select {}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
