//! Applications that Forebay runs: a request goes to an idle worker.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_conf::{self as conf, AppKind};
use forebay_engine::{Exchange, Fault, Origin, Serving, Spooled, Step, Thread};
use forebay_wire::cgi::{self, Block, Sink};
use forebay_workers::{App, Body, EndKind, Event, Lease, WorkerFault};

use crate::app_fault::{unavailable, worker_fault};
use crate::cgi::no_script;
use crate::definition::env_of_requests;
use crate::mount::{self, Mount};
use crate::output::Output;
use crate::reply_pump::ReplyPump;
use crate::script::{Script, Scripts, scripts_of};
use crate::script_reply::{OutputLimit, ScriptReply};
use crate::takeover;
use crate::upstream::{Attempts, BodyAtHand};

/// Workers that one request may be offered: a worker may die before it has read anything.
const OFFERS: usize = 3;
/// The status that a host gives for a script that was ended by a signal.
const KILLED: u16 = 502;

/// What the workers of an application run.
pub enum Target {
    /// The script that the path names.
    Scripts(Scripts),
    /// One application for all paths.
    Mount(Mount),
}

impl Target {
    /// What requests of `route` for `app` are looked up as.
    pub fn of(app: &conf::App, route: &conf::Route) -> Self {
        let mount = |file: &Path, takes_over| Mount {
            dir: app.dir.clone(),
            file: file.to_owned(),
            takes_over,
        };
        match &app.kind {
            AppKind::CgiBin { dir, .. }
            | AppKind::PerlCgi { dir, .. }
            | AppKind::PythonCgi { dir, .. } => Self::Scripts(scripts_of(dir, route)),
            AppKind::Psgi { file } => Self::Mount(mount(file, true)),
            _ => Self::Mount(mount(&app.dir, false)),
        }
    }
}

/// An application that workers run, as one thread knows it.
pub struct WorkerApp {
    thread: Rc<Thread>,
    app: App,
    target: Target,
    /// Bytes of one reply at the most.
    max_output: u64,
    /// What the configuration says in place of requests.
    instead: BTreeMap<String, String>,
}

impl WorkerApp {
    /// Passes requests for `target` to the workers of `app`, by what `plan` says.
    pub fn new(thread: Rc<Thread>, app: App, target: Target, plan: &conf::App) -> Self {
        let (max_output, instead) = (plan.max_output, env_of_requests(plan));
        Self { thread, app, target, max_output, instead }
    }

    /// The same for the scripts in `dir`, by what `plan` says.
    pub fn of_scripts(thread: Rc<Thread>, app: App, dir: PathBuf, plan: &conf::App) -> Self {
        Self::new(thread, app, Target::Scripts(Scripts::new(dir)), plan)
    }

    /// Has a worker run `script`.
    pub async fn run_script(&self, exchange: &mut Exchange, script: &Script) -> Result<(), Fault> {
        self.run(exchange, Some(script)).await
    }

    async fn run(&self, exchange: &mut Exchange, script: Option<&Script>) -> Result<(), Fault> {
        let takes_over = matches!(&self.target, Target::Mount(mount) if mount.takes_over)
            && takeover::is_possible(exchange);
        let body = exchange.body.spool().await?;
        let block = self.block(exchange, script, body.length(), takes_over)?;
        let mut attempts = Attempts::default();
        for _ in 0..OFFERS {
            let run = Run { script, block: &block, body: &body, takes_over };
            match self.offer(exchange, run).await {
                Ok(()) => return Ok(()),
                Err(fault) => attempts.failed(fault, exchange, BodyAtHand::Whole)?,
            }
        }
        Err(attempts.last().unwrap_or_else(|| Fault::us(500, "no worker was offered the request")))
    }

    /// The variables that a worker is given.
    fn block(
        &self,
        exchange: &Exchange,
        script: Option<&Script>,
        length: Option<u64>,
        takes_over: bool,
    ) -> Result<Vec<u8>, Fault> {
        let path = mount::path_of(&exchange.request);
        let request = match (&self.target, script) {
            (Target::Scripts(scripts), Some(script)) => {
                script.describe(&exchange.request, scripts.dir(), length)
            }
            (Target::Mount(mount), _) => mount.describe(&exchange.request, &path, length),
            (Target::Scripts(_), None) => return Err(Fault::us(500, "no script was looked up")),
        };
        let mut block = Block(Vec::with_capacity(2048));
        variables(&request, &self.instead, &mut block);
        if takes_over {
            block.variable(takeover::VARIABLE, b"1");
        }
        Ok(block.0)
    }

    /// One request on one worker.
    async fn offer(&self, exchange: &mut Exchange, run: Run<'_>) -> Result<(), Fault> {
        exchange.enter(Step::Connect);
        let body = match run.body {
            Spooled::Empty => Body::Empty,
            Spooled::Memory(memory) => Body::Bytes(memory),
            Spooled::File(file, length) => Body::File(file, *length),
        };
        let mut lease = self.app.checkout_for(run.block, body).await.map_err(unavailable)?;
        exchange.enter(Step::Origin);
        lease.send(run.block, body).await.map_err(worker_fault)?;
        let limit = OutputLimit::new(self.max_output, Fault::app);
        let reading = match run.script {
            Some(script) => Output::of(script, &exchange.request, limit),
            None => Output::Parsed(ScriptReply::new(limit)),
        };
        self.relay_reply(exchange, LeaseGuard(Some(lease)), reading, run.takes_over).await
    }

    /// Passes on what the worker answers, or the connection if the application takes that over.
    async fn relay_reply(
        &self,
        exchange: &mut Exchange,
        mut running: LeaseGuard,
        reading: Output,
        mut may_take_over: bool,
    ) -> Result<(), Fault> {
        let lease = running.0.as_mut().expect("it was put in");
        let mut output = Vec::with_capacity(16 * 1024);
        let mut pump = ReplyPump::new(reading, &mut exchange.reply);
        loop {
            let before = output.len();
            let event = pump.next(async || match output.len() - before {
                0 => lease.read(&mut output).await,
                // It came while that waited for more.
                more => Ok(Event::Output(more)),
            });
            let event = match event.await? {
                Ok(event) => event,
                // The script has taken its worker along.
                Err(fault @ WorkerFault::Died { .. }) => {
                    return pump.cut_off(worker_fault(fault)).await;
                }
                Err(fault) => return Err(worker_fault(fault)),
            };
            if may_take_over {
                match (takeover::has_begun(&output), &event) {
                    (Some(true), Event::Output(_)) => {
                        let lease = running.0.take().expect("only this and drop take it");
                        return takeover::complete(lease, output, exchange, &self.thread).await;
                    }
                    (None, Event::Output(_)) => continue,
                    _ => may_take_over = false,
                }
            }
            // Also what was too short to tell, at the end.
            if !output.is_empty() {
                pump.feed(&output).await?;
                output.clear();
            }
            if let Event::End(kind) = event {
                return finish(kind, pump).await;
            }
        }
    }
}

/// Passes the variables of `request` to `sink`, but for those that `instead` has.
fn variables(request: &cgi::Request<'_>, instead: &BTreeMap<String, String>, sink: &mut impl Sink) {
    if instead.is_empty() {
        return cgi::variables(request, sink);
    }
    cgi::variables(request, &mut Instead { sink: &mut *sink, of: instead });
    for (name, value) in instead {
        sink.variable(name.as_bytes(), value.as_bytes());
    }
}

/// Leaves out what is said otherwise: a name that comes twice costs hosts a second look.
struct Instead<'a, S> {
    sink: &'a mut S,
    of: &'a BTreeMap<String, String>,
}

impl<S: Sink> Sink for Instead<'_, S> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        let is_replaced = str::from_utf8(name).is_ok_and(|name| self.of.contains_key(name));
        if !is_replaced {
            self.sink.variable(name, value);
        }
    }
}

/// The reply of a script that has ended. What it printed before it died counts, as with CGI; the
/// log has the rest.
async fn finish(kind: EndKind, mut pump: ReplyPump<'_>) -> Result<(), Fault> {
    match kind {
        EndKind::Ok => pump.finish().await,
        EndKind::Status(KILLED) => {
            pump.cut_off(Fault::app(KILLED, "the script was ended by a signal")).await
        }
        EndKind::Status(_) if pump.output().has_head() => pump.finish().await,
        EndKind::Status(status) => Err(Fault::app(status, "the script failed")),
        EndKind::Aborted => {
            Err(Fault::app(500, "the application failed in the middle of its reply"))
        }
    }
}

/// What a worker is given.
struct Run<'a> {
    /// The script, where there is one for each path.
    script: Option<&'a Script>,
    /// The variables.
    block: &'a [u8],
    body: &'a Spooled,
    /// Whether the application may take the connection over.
    takes_over: bool,
}

impl Origin for WorkerApp {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Serving::new(&exchange.blocks(), || async move {
            match &self.target {
                Target::Scripts(scripts) => {
                    let found = scripts.find(exchange.request.rest(), self.thread.second());
                    let script = found.map_err(no_script)?;
                    self.run(exchange, Some(&script)).await
                }
                Target::Mount(_) => self.run(exchange, None).await,
            }
        })
    }
}

/// A script that runs. When nobody wants its reply any more it has a moment to end, as clients that
/// leave early could ask for a new worker each time.
struct LeaseGuard(Option<Lease>);

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if let Some(lease) = self.0.take().filter(|lease| lease.pid().is_some()) {
            tokio::task::spawn_local(lease.abandon());
        }
    }
}
