//! The thread that sends spans to the collector.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use forebay_conf::Traces;

use super::encode::encode;
use super::{BATCH_DELAY, ExportMessage, ExportResult, RequestSpans};
use crate::collector::{Collector, Report};

/// Maximum number of requests in one export.
const BATCH: usize = 512;

/// Exports spans.
pub(super) struct Exporter {
    collector: Collector,
}

impl Exporter {
    /// Creates an exporter. Fails if a file of the collector's TLS settings cannot be used.
    pub(super) fn new(traces: &Traces, report: Report) -> io::Result<Self> {
        Ok(Self { collector: Collector::new(&traces.collector, "traces", report)? })
    }

    /// Exports spans until all tracers have been dropped.
    pub(super) fn run(mut self, received: &Receiver<ExportMessage>) {
        let mut batch = Vec::new();
        while let Ok(ExportMessage::Spans(first)) = received.recv() {
            batch.push(first);
            let deadline = Instant::now() + BATCH_DELAY;
            let has_ended = loop {
                if batch.len() >= BATCH {
                    break false;
                }
                let left = deadline.saturating_duration_since(Instant::now());
                match received.recv_timeout(left) {
                    Ok(ExportMessage::Spans(next)) => batch.push(next),
                    Err(RecvTimeoutError::Timeout) => break false,
                    Ok(ExportMessage::End) | Err(RecvTimeoutError::Disconnected) => break true,
                }
            };
            self.export(&batch);
            batch.clear();
            if has_ended {
                return;
            }
        }
    }

    fn export(&mut self, batch: &[Box<RequestSpans>]) {
        let body = encode(&self.collector, batch);
        let result =
            if self.collector.post(&body) { ExportResult::Exported } else { ExportResult::Failed };
        result.count(batch.len());
    }
}
