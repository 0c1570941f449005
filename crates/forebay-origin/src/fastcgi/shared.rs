//! One request over a connection that it shares.

use std::cell::Cell;
use std::pin::pin;

use forebay_engine::{Exchange, Fault, Retry, Spooled};
use forebay_wire::fastcgi::{self, ProtocolStatus};

use super::line::{Came, Stream};
use super::{Fastcgi, PIECE, Ways, check_end, unreadable};
use crate::script_reply::{OutputLimit, PAUSE, ScriptReply};
use crate::upstream::send_and_read;

/// One request over a connection that it shares.
pub struct Shared<'a> {
    origin: &'a Fastcgi,
    ways: &'a Ways<'a>,
    stream: &'a Stream,
    /// Whether all of the request has been sent.
    is_sent: Cell<bool>,
}

impl<'a> Shared<'a> {
    /// One request to `origin` in its place on a connection.
    pub fn new(origin: &'a Fastcgi, ways: &'a Ways<'a>, stream: &'a Stream) -> Self {
        Self { origin, ways, stream, is_sent: Cell::new(false) }
    }

    /// Sends the request, of which `head` is all but a body in a file, and passes its reply on.
    pub async fn converse(
        &self,
        exchange: &mut Exchange,
        head: Vec<u8>,
        body: &Spooled,
        inbox: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let upload = pin!(self.send(head, body));
        send_and_read(upload, pin!(self.read_reply(exchange, inbox))).await.map(drop)
    }

    async fn send(&self, head: Vec<u8>, body: &Spooled) -> Result<(), Fault> {
        self.stream.send(head).await?;
        if matches!(body, Spooled::File(..)) {
            let id = self.stream.id();
            let mut buffer = vec![0; PIECE];
            let mut offset = 0;
            loop {
                let n = body.read_at(offset, &mut buffer).map_err(unreadable)?;
                let mut out = Vec::with_capacity(n + fastcgi::HEADER);
                if n == 0 {
                    fastcgi::end_of_stdin(&mut out, id);
                    self.stream.send(out).await?;
                    break;
                }
                fastcgi::stdin(&mut out, id, &buffer[..n]);
                self.stream.send(out).await?;
                offset += n as u64;
            }
        }
        self.is_sent.set(true);
        Ok(())
    }

    async fn read_reply(&self, exchange: &mut Exchange, inbox: &mut Vec<u8>) -> Result<(), Fault> {
        let (origin, name) = (self.origin, self.ways.backend.name());
        let reply = &mut exchange.reply;
        let limit = OutputLimit::new(origin.settings.max_output, Fault::backend);
        let mut script = ScriptReply::new(limit);
        loop {
            inbox.clear();
            let came = {
                let next = self.next(inbox);
                tokio::select! {
                    biased;
                    came = next => Some(came),
                    () = tokio::time::sleep(PAUSE), if script.has_output() => None,
                }
            };
            match came {
                None => script.flush(reply).await?,
                Some(Ok(Came::Output)) => script.feed(inbox, reply).await?,
                Some(Ok(Came::End(status))) => {
                    self.learn(status);
                    check_end(name, status, script.is_empty())?;
                    return script.finish(reply).await;
                }
                Some(Err(fault)) if script.is_empty() => return Err(fault),
                Some(Err(fault)) => return Err(fault.retry(Retry::No)),
            }
        }
    }

    /// What comes next, within the time for it once the request has been sent.
    async fn next(&self, inbox: &mut Vec<u8>) -> Result<Came, Fault> {
        let limit = self.ways.backend.reply_timeout();
        loop {
            match tokio::time::timeout(limit, self.stream.next(inbox)).await {
                Ok(came) => return came,
                Err(_) if !self.is_sent.get() => {}
                Err(_) => {
                    let name = self.ways.backend.name();
                    return Err(Fault::backend(504, format!("{name} sent nothing for {limit:?}")));
                }
            }
        }
    }

    /// A refusal says what not to try again.
    fn learn(&self, status: ProtocolStatus) {
        match (status, self.ways.lines) {
            (ProtocolStatus::CantMultiplex, Some(lines)) => {
                let name = self.ways.backend.name();
                self.origin.thread.errors.log(&format!("{name} refuses to multiplex requests"));
                lines.give_up();
            }
            (ProtocolStatus::Overloaded, _) => self.stream.lower_limit(),
            _ => {}
        }
    }
}
