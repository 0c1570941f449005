//! Sends one request over a shared connection, and sends its reply to the client.

use std::cell::Cell;
use std::pin::pin;

use std::time::Duration;

use forebay_net::fault::{Fault, Retry};
use forebay_server::exchange::Exchange;
use forebay_server::spool::Spooled;
use forebay_wire::fastcgi::ProtocolStatus;

use super::mux_connection::{RequestStream, StreamEvent};
use super::{ConnectionSource, Fastcgi, check_end};
use crate::output::Output;
use crate::reply_pump::ReplyPump;
use crate::script_reply::{OutputLimit, ScriptReply};
use crate::upstream::{BodyEncoder, Source, send_and_read, upload};

/// One request over a shared connection.
pub struct Shared<'a> {
    origin: &'a Fastcgi,
    source: &'a ConnectionSource<'a>,
    stream: &'a RequestStream,
    /// True if the whole request was sent.
    is_sent: Cell<bool>,
}

impl<'a> Shared<'a> {
    /// Creates a request to `origin` on `stream`.
    pub fn new(
        origin: &'a Fastcgi,
        source: &'a ConnectionSource<'a>,
        stream: &'a RequestStream,
    ) -> Self {
        Self { origin, source, stream, is_sent: Cell::new(false) }
    }

    /// Sends the request, and sends its reply to the client. `head` contains the whole request,
    /// except a body that is in a file.
    pub async fn run(
        &self,
        exchange: &mut Exchange,
        head: Vec<u8>,
        body: &Spooled,
    ) -> Result<(), Fault> {
        let upload = pin!(self.send(head, body));
        send_and_read(upload, pin!(self.read_reply(exchange))).await.map(drop)
    }

    async fn send(&self, head: Vec<u8>, body: &Spooled) -> Result<(), Fault> {
        self.stream.send(head).await?;
        if matches!(body, Spooled::File(..)) {
            let encoder = BodyEncoder::Stdin(self.stream.id());
            upload(self.stream, encoder, Source::spooled(body)).await?;
        }
        self.is_sent.set(true);
        Ok(())
    }

    /// Sends the application's output to the client until the request ends. A fault after the first
    /// output does not allow a retry.
    async fn read_reply(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let (origin, name) = (self.origin, self.source.backend.name());
        let limit = OutputLimit::new(origin.settings.max_output, Fault::backend, &origin.thread);
        let limit = limit.strict(self.source.backend.is_strict());
        let output = Output::Parsed(ScriptReply::new(limit));
        let mut pump = ReplyPump::new(output, &mut exchange.reply);
        let mut inbox = Vec::new();
        loop {
            inbox.clear();
            let limit = pump.silence(self.source.backend);
            match pump.next(async || self.next(&mut inbox, limit).await).await? {
                Ok(StreamEvent::Output) => pump.feed(&inbox).await?,
                Ok(StreamEvent::End(status)) => {
                    self.learn(status);
                    check_end(name, status, pump.output().is_empty())?;
                    return pump.finish().await;
                }
                Err(fault) if pump.output().is_empty() => return Err(fault),
                Err(fault) => return Err(fault.retry(Retry::No)),
            }
        }
    }

    /// Returns the next part of the reply. The reply timeout applies only after the whole request
    /// was sent.
    async fn next(&self, inbox: &mut Vec<u8>, limit: Duration) -> Result<StreamEvent, Fault> {
        loop {
            match tokio::time::timeout(limit, self.stream.next(inbox)).await {
                Ok(event) => return event,
                Err(_) if !self.is_sent.get() => {}
                Err(_) => {
                    let name = self.source.backend.name();
                    return Err(Fault::backend(504, format!("{name} sent nothing for {limit:?}")));
                }
            }
        }
    }

    /// If the application has refused the request, stops multiplexing or lowers the limit of the
    /// connection.
    fn learn(&self, status: ProtocolStatus) {
        match (status, self.source.pool) {
            (ProtocolStatus::CantMultiplex, Some(pool)) => {
                let name = self.source.backend.name();
                self.origin.thread.errors.warn(&format!("{name} refuses to multiplex requests"));
                pool.give_up();
            }
            (ProtocolStatus::Overloaded, _) => self.stream.lower_limit(),
            _ => {}
        }
    }
}
