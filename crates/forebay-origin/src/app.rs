//! Applications that Forebay runs: a request goes to an idle worker.

use std::rc::Rc;
use std::time::Duration;

use forebay_engine::{Exchange, Fault, Origin, Retry, Serving, Thread};
use forebay_wire::cgi::{self, Block};
use forebay_workers::{App, Body, EndKind, Event, Lease, Unavailable, WorkerFault};

use crate::cgi::no_script;
use crate::script::{Script, Scripts};
use crate::script_reply::{OutputLimit, PAUSE, ScriptReply};
use crate::spool::Spooled;

/// Workers that one request may be offered: a worker may die before it has read anything.
const OFFERS: usize = 3;

/// How long a script may go on when its client has gone.
const MOMENT: Duration = Duration::from_secs(1);

/// An application of scripts, as one thread knows it.
pub struct ScriptApp {
    thread: Rc<Thread>,
    app: App,
    scripts: Scripts,
    /// Bytes of one reply at the most.
    max_output: u64,
}

impl ScriptApp {
    /// Passes requests for scripts below `scripts` to the workers of `app`; one that prints more than
    /// `max_output` bytes is cut off.
    pub fn new(thread: Rc<Thread>, app: App, scripts: Scripts, max_output: u64) -> Self {
        Self { thread, app, scripts, max_output }
    }

    async fn run(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let found = self.scripts.find(exchange.request.rest(), self.thread.second());
        let script = found.map_err(no_script)?;
        let body = Spooled::take(&mut exchange.body).await?;
        let block = self.variables(exchange, &script, &body);
        let mut fault = None;
        for _ in 0..OFFERS {
            match self.offer(exchange, &block, &body).await {
                Err(error) if error.retry == Retry::Yes && !exchange.reply.has_begun() => {
                    fault = Some(error);
                }
                outcome => return outcome,
            }
        }
        Err(fault.unwrap_or_else(|| Fault::us(500, "no worker was offered the request")))
    }

    fn variables(&self, exchange: &Exchange, script: &Script, body: &Spooled) -> Vec<u8> {
        let mut block = Block(Vec::with_capacity(2048));
        let request = script.describe(&exchange.request, self.scripts.dir(), body.len());
        cgi::variables(&request, &mut block);
        block.0
    }

    /// One request on one worker.
    async fn offer(
        &self,
        exchange: &mut Exchange,
        block: &[u8],
        body: &Spooled,
    ) -> Result<(), Fault> {
        let mut lease = self.app.checkout().await.map_err(unavailable)?;
        let body = match body {
            Spooled::Empty => Body::Empty,
            Spooled::Memory(memory) => Body::Bytes(memory),
            Spooled::File(file, length) => Body::File(file, *length),
        };
        lease.send(block, body).await.map_err(worker_fault)?;
        let mut running = Running(Some(lease));
        let lease = running.0.as_mut().expect("it is taken out by drop alone");
        let mut script = ScriptReply::new(OutputLimit::new(self.max_output, Fault::app));
        let mut output = Vec::with_capacity(16 * 1024);
        loop {
            output.clear();
            match next(lease, &mut output, &mut script, exchange).await? {
                Event::Output(_) => script.feed(&output, &mut exchange.reply).await?,
                Event::End(EndKind::Ok) => return script.finish(&mut exchange.reply).await,
                // What a script printed before it died counts, as with CGI; the log has the rest.
                Event::End(EndKind::Status(_)) if script.has_head() => {
                    return script.finish(&mut exchange.reply).await;
                }
                Event::End(EndKind::Status(status)) => {
                    return Err(Fault::app(status, "the script failed"));
                }
            }
        }
    }
}

impl Origin for ScriptApp {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Box::pin(self.run(exchange))
    }
}

/// A script that runs. When nobody wants its reply any more it has a moment to end: to start a
/// worker costs more than most scripts, and clients that leave early could ask for one each time.
struct Running(Option<Lease>);

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut lease) = self.0.take().filter(|lease| lease.pid().is_some()) else { return };
        tokio::task::spawn_local(tokio::time::timeout(MOMENT, async move {
            let mut output = Vec::new();
            while let Ok(Event::Output(_)) = lease.read(&mut output).await {
                output.clear();
            }
        }));
    }
}

/// The next event; when nothing comes for a moment, what has come goes to the client.
async fn next(
    lease: &mut Lease,
    output: &mut Vec<u8>,
    script: &mut ScriptReply,
    exchange: &mut Exchange,
) -> Result<Event, Fault> {
    tokio::select! {
        biased;
        event = lease.read(output) => return event.map_err(worker_fault),
        () = tokio::time::sleep(PAUSE), if script.has_output() => {}
    }
    script.flush(&mut exchange.reply).await?;
    lease.read(output).await.map_err(worker_fault)
}

fn unavailable(reason: Unavailable) -> Fault {
    Fault::app(503, reason.to_string())
}

fn worker_fault(fault: WorkerFault) -> Fault {
    let retry = if fault.may_retry() { Retry::Yes } else { Retry::No };
    let status = match fault {
        WorkerFault::Timeout { .. } => 504,
        WorkerFault::Body(_) => 500,
        _ => 502,
    };
    Fault::app(status, fault.to_string()).retry(retry)
}
