//! Tests the supervisor under random schedules, with simulated processes and a paused clock.
//! Between any two steps, processes become ready or fail to start, get requests, hang, leave and
//! die. Some ignore orders.
//!
//! The test checks these rules:
//! - no more processes run than allowed, apart from replacements and processes that are about to
//!   end;
//! - a process with requests is asked to end only after `drain_timeout`, or if it has failed;
//! - a process is killed only `stop_timeout` after it was asked to end, or for a fault;
//! - without disturbances, the minimum number of processes serves and no other is left;
//! - a shutdown ends all processes.
//!
//! The test prints the seed of a failed run; `FOREBAY_SEED` repeats that run.

use super::*;
use forebay_process::descendants::Usage;
use rustix::pipe::{PipeFlags, pipe_with};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use tokio::task::LocalSet;
use tokio::time::sleep;

const SEEDS: u64 = 100;
const STEPS: usize = 150;
const START: Duration = Duration::from_secs(5);
const STOP: Duration = Duration::from_secs(2);
const DRAIN: Duration = Duration::from_secs(8);
const IDLE: Duration = Duration::from_secs(20);

struct Played {
    seen: Snapshot,
    ready: Option<oneshot::Sender<()>>,
    reaped: Option<oneshot::Sender<Exit>>,
    started: Instant,
    retired: Option<Instant>,
    /// Time when the process was asked to end, or was killed.
    stopped_at: Option<Instant>,
    forced: bool,
    /// True if the supervisor may end the process at any time.
    has_failed: bool,
    ignores_stop: bool,
}

#[derive(Default)]
struct World {
    processes: BTreeMap<u64, Played>,
    waiting: usize,
    /// True while all starts fail.
    is_broken: bool,
    is_closed: bool,
    /// True after the last disturbance.
    is_quiet: bool,
}

struct ModelKind {
    rules: Rules,
    world: Rc<RefCell<World>>,
}

impl ModelKind {
    fn with<T>(&self, id: u64, act: impl FnOnce(&mut Played) -> T) -> T {
        act(self.world.borrow_mut().processes.get_mut(&id).expect("a process that is there"))
    }
}

impl ProcessKind for ModelKind {
    type Process = u64;
    type Ready = ();
    const NOUN: (&'static str, &'static str) = ("process", "processes");

    fn rules(&self) -> &Rules {
        &self.rules
    }

    fn start(&mut self, new: New<()>) -> io::Result<Started<ModelKind>> {
        if self.world.borrow().is_broken {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (stderr, _its_end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let ((ready, is_ready), (reaped, is_reaped)) = (oneshot::channel(), oneshot::channel());
        let now = Instant::now();
        let played = Played {
            seen: Snapshot::of_new(new.id, now),
            ready: Some(ready),
            reaped: Some(reaped),
            started: now,
            retired: None,
            stopped_at: None,
            forced: false,
            has_failed: false,
            ignores_stop: fastrand::u8(..6) == 0,
        };
        assert!(self.world.borrow_mut().processes.insert(new.id, played).is_none());
        Ok(Started {
            process: new.id,
            stderr,
            stderr_name: new.id as u32,
            ready: Box::pin(async move { is_ready.await.ok() }),
            reaped: Box::pin(async move {
                match is_reaped.await {
                    Ok(exit) => exit,
                    Err(_) => pending().await,
                }
            }),
        })
    }

    fn add(&self, _: &u64) {}

    fn pid(&self, id: &u64) -> u32 {
        *id as u32
    }

    fn usage(&self, _: &u64) -> Usage {
        let much = || u32::from(!self.world.borrow().is_quiet && fastrand::u8(..20) == 0) * 2;
        Usage { rss: much().into(), cpu: Duration::from_secs(1) * much() }
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        self.world.borrow().processes.values().map(|played| played.seen).collect()
    }

    fn missing(&self) -> usize {
        self.world.borrow().waiting
    }

    fn serve(&self, id: &u64, (): ()) {
        self.with(*id, |played| {
            assert_eq!(played.seen.stage, Stage::Starting);
            (played.seen.stage, played.seen.idle_since) = (Stage::Serving, Instant::now());
        });
    }

    fn retire(&self, id: &u64) {
        self.with(*id, |played| {
            played.seen.stage = Stage::Retired;
            played.retired.get_or_insert(Instant::now());
        });
    }

    fn request_stop(&self, id: &u64) -> bool {
        let is_closed = self.world.borrow().is_closed;
        self.with(*id, |played| {
            let is_drained = played.retired.is_some_and(|at| at + DRAIN <= Instant::now());
            let may = played.has_failed || is_drained || is_closed || played.seen.under_way == 0;
            assert!(may, "process {id} has {} requests", played.seen.under_way);
            played.stopped_at = Some(Instant::now());
        });
        true
    }

    fn force(&self, id: &u64, _: Option<Fault>) {
        let is_over = self.world.borrow().is_closed && !self.rules.stop_outlasts_grace;
        self.with(*id, |played| {
            let now = Instant::now();
            let is_late = played.seen.stage == Stage::Starting && played.started + START <= now;
            let ignores_stop = played.stopped_at.is_some_and(|at| at + STOP <= now);
            assert!(
                is_over || is_late || ignores_stop || played.has_failed,
                "force against process {id}"
            );
            (played.stopped_at, played.forced) = (Some(now), true);
        });
    }

    fn force_again(&self, id: &u64) {
        self.with(*id, |played| assert!(played.forced));
    }

    fn program_ended(&mut self, id: &mut u64, _: Exit, _: bool) {
        self.retire(id);
    }

    fn may_end(&self, _: &u64, _: Exit) -> bool {
        false
    }

    fn describe_end(&self, id: &u64, reaped: Exit, _: Option<Fault>) -> End {
        End { text: format!("process {id} ended, {reaped}"), was_killed: reaped.was_killed() }
    }

    fn remove(&mut self, id: u64, _: Exit, _: bool) {
        assert!(self.world.borrow_mut().processes.remove(&id).is_some(), "{id} ends twice");
    }

    fn begin_crash_loop(&self, _: String) {
        self.world.borrow_mut().waiting = 0;
    }

    fn let_wait(&self) {}

    fn close(&self) {
        self.world.borrow_mut().is_closed = true;
    }
}

#[test]
fn in_any_schedule_the_number_of_processes_is_right() {
    let given = std::env::var("FOREBAY_SEED").map(|seed| seed.parse().expect("a number"));
    for seed in given.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("FOREBAY_SEED={seed} repeats it");
            std::panic::resume_unwind(panic);
        }
    }
}

fn run(seed: u64) {
    fastrand::seed(seed);
    let min = fastrand::usize(..=3);
    let max = (min + fastrand::usize(..=3)).max(1);
    let rules = Rules {
        name: "a".to_owned(),
        workers: Workers { min, max },
        first_alone: fastrand::bool(),
        max_requests: fastrand::bool().then_some(20),
        max_age: fastrand::bool().then_some(3 * IDLE),
        max_memory: fastrand::bool().then_some(1),
        max_cpu: fastrand::bool().then_some(Duration::from_secs(1)),
        idle_timeout: IDLE,
        start_timeout: START,
        stop_timeout: STOP,
        stop_outlasts_grace: fastrand::bool(),
        drain_timeout: Some(DRAIN),
        request_timeout: None,
        watch: Vec::new(),
        watch_at_reload: Vec::new(),
    };
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let world = Rc::new(RefCell::new(World::default()));
        let kind = ModelKind { rules, world: world.clone() };
        let (commands, inbox) = mpsc::unbounded_channel();
        let (first, _started) = std::sync::mpsc::channel();
        let supervisor =
            Supervisor::new(kind, Arc::new(|_: forebay_process::Severity, _: &str| {}), first);
        let events = supervisor.events.clone();
        let running = tokio::task::spawn_local(supervisor.run(inbox));
        for _ in 0..STEPS {
            disturb(&world, &commands, &events);
            sleep(Duration::from_millis(fastrand::u64(1..400))).await;
            check(&world.borrow(), max);
        }
        (world.borrow_mut().is_broken, world.borrow_mut().is_quiet) = (false, true);
        let rounds = if fastrand::bool() { 0 } else { 800 };
        for _ in 0..rounds {
            go_on(&world);
            sleep(Duration::from_millis(200)).await;
            check(&world.borrow(), max);
        }
        if rounds > 0 {
            let world = world.borrow();
            let of =
                |stage| world.processes.values().filter(move |p| p.seen.stage == stage).count();
            // If a process has reached its maximum age, this process and its replacement may both
            // serve.
            let serving = of(Stage::Serving);
            assert!((min..=min + 1).contains(&serving), "{serving} of {min}");
        }
        let (done, all_ended) = oneshot::channel();
        let grace = Duration::from_secs(fastrand::u64(..5));
        commands.send(Command::Shutdown { grace, done }).unwrap();
        for _ in 0..200 {
            go_on(&world);
            sleep(Duration::from_millis(200)).await;
        }
        all_ended.await.expect("the end is reported");
        running.await.unwrap();
        assert!(world.borrow().processes.is_empty());
    });
}

/// Makes one random event happen.
fn disturb(
    world: &Rc<RefCell<World>>,
    commands: &mpsc::UnboundedSender<Command>,
    events: &mpsc::UnboundedSender<Event<()>>,
) {
    let mut world = world.borrow_mut();
    world.waiting = if fastrand::u8(..4) == 0 { fastrand::usize(..4) } else { 0 };
    world.is_broken = fastrand::u8(..12) == 0;
    if world.waiting > 0 {
        commands.send(Command::RequestWaits).unwrap();
    }
    let count = world.processes.len().max(1);
    let Some((&id, played)) = world.processes.iter_mut().nth(fastrand::usize(..count)) else {
        return;
    };
    let is_serving = played.seen.stage == Stage::Serving;
    match fastrand::u8(..20) {
        0..5 => played.become_ready(),
        5..9 if is_serving => {
            played.seen.requests += 1;
            played.seen.under_way += 1;
        }
        9..13 if played.seen.under_way > 0 => {
            (played.seen.under_way, played.seen.idle_since) = (0, Instant::now());
            commands.send(Command::Drained).unwrap();
        }
        13 if is_serving => commands.send(Command::Replace(id)).unwrap(),
        14 if is_serving => {
            played.has_failed = true;
            let has_others = fastrand::bool();
            commands.send(Command::Hung { id, has_others }).unwrap();
        }
        15 if is_serving => {
            played.has_failed = true;
            commands.send(Command::Refused(id)).unwrap();
        }
        16 if is_serving => {
            (played.seen.stage, played.retired) = (Stage::Retired, Some(Instant::now()));
            commands.send(Command::Leaves(id)).unwrap();
        }
        17 => commands.send(Command::Restart).unwrap(),
        18 => {
            played.has_failed = true;
            events.send(Event::ProgramEnded(id, Exit::Code(fastrand::i32(..2)))).unwrap();
        }
        19 => played.end(),
        _ => {}
    }
}

/// Lets all starting processes become ready, ends requests, and ends processes that were asked to
/// end or killed.
fn go_on(world: &Rc<RefCell<World>>) {
    let mut world = world.borrow_mut();
    world.waiting = 0;
    for played in world.processes.values_mut() {
        played.become_ready();
        if played.seen.under_way > 0 {
            (played.seen.under_way, played.seen.idle_since) = (0, Instant::now());
        }
        if played.forced || played.stopped_at.is_some() && !played.ignores_stop {
            played.end();
        }
    }
}

fn check(world: &World, max: usize) {
    let live = |played: &&Played| {
        matches!(played.seen.stage, Stage::Starting | Stage::Serving)
            && !played.has_failed
            && played.stopped_at.is_none()
    };
    let live = world.processes.values().filter(live).count();
    assert!(live <= 2 * max, "{live} of {max}");
}

impl Played {
    fn become_ready(&mut self) {
        if let Some(ready) = self.ready.take() {
            let _ = ready.send(());
        }
    }

    fn end(&mut self) {
        if let Some(reaped) = self.reaped.take() {
            let _ = reaped.send(Exit::Code(fastrand::i32(..2)));
        }
    }
}
