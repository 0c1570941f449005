//! Applications that Forebay runs: a request goes to an idle worker.

use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::{Exchange, Fault, Origin, Retry, Serving, Thread};
use forebay_wire::cgi::{self, Block};
use forebay_workers::{App, Body, EndKind, Event, Lease, Unavailable, WorkerFault};

use crate::cgi::no_script;
use crate::script::{Script, Scripts};
use crate::script_reply::{PAUSE, ScriptReply};
use crate::spool::Spooled;

/// Workers that one request may be offered: a worker may die before it has read anything.
const OFFERS: usize = 3;
/// How long, and for how many bytes of output, a script may go on whose reply nobody wants.
const UNWANTED_TIME: Duration = Duration::from_secs(2);
const UNWANTED_BYTES: usize = 4 << 20;

/// An application of scripts, as one thread knows it.
pub struct ScriptApp {
    thread: Rc<Thread>,
    app: App,
    scripts: Scripts,
}

impl ScriptApp {
    /// Passes requests for scripts below `scripts` to the workers of `app`.
    pub fn new(thread: Rc<Thread>, app: App, scripts: Scripts) -> Self {
        Self { thread, app, scripts }
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
        let request = &exchange.request;
        let (script_name, path_info) = request.path.split_at(request.path.len() - script.path_info);
        let mut block = Block(Vec::with_capacity(2048));
        let variables = cgi::Request {
            head: &request.head,
            bytes: &request.bytes,
            script_name,
            script_filename: script.file.as_os_str().as_bytes(),
            path_info,
            document_root: self.scripts.dir().as_os_str().as_bytes(),
            document_uri: &request.path,
            content_length: body.len(),
            client: request.client,
            server: request.server,
            https: request.https,
        };
        cgi::variables(&variables, &mut block);
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
        let mut lease = Running(Some(lease));
        let mut script = ScriptReply::new(Fault::app);
        let mut output = Vec::with_capacity(16 * 1024);
        loop {
            output.clear();
            match next(&mut lease, &mut output, &mut script, exchange).await? {
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

/// A script that runs. When its reply is not wanted any more, because the client has gone or the
/// output is no reply, the script still may end by itself: a warm process is worth more than what is
/// left of most requests, and a script in the middle of its work is not to be killed for a client
/// that closed. One that does not end soon is ended with its worker.
struct Running(Option<Lease>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(lease) = self.0.take().filter(|lease| lease.pid().is_some()) {
            tokio::task::spawn_local(async move {
                let _ = tokio::time::timeout(UNWANTED_TIME, let_end(lease)).await;
            });
        }
    }
}

impl Deref for Running {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        self.0.as_ref().expect("a lease until it is dropped")
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Lease {
        self.0.as_mut().expect("a lease until it is dropped")
    }
}

async fn let_end(mut lease: Lease) {
    let mut output = Vec::new();
    let mut left = UNWANTED_BYTES;
    while let Ok(Event::Output(read)) = lease.read(&mut output).await {
        output.clear();
        left = left.saturating_sub(read);
        if left == 0 {
            return;
        }
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
