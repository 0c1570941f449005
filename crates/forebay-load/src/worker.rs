//! Load thread: waits for events and passes each to its connection.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::backlog::{BacklogSample, BacklogSamples, BacklogWindow};
use crate::counts::StageTally;
use crate::pacer::{Pacer, RequestBudget};
use crate::ramp::ActiveTimes;
use crate::schedule::Mix;
use crate::series::Series;
use crate::tally::Tally;
use crate::template::Values;
use crate::transport::ServerAddresses;
use crate::{Control, Lifetime, Second, SlowPeers, Spec};

/// Connection that a load thread drives. The connection carries one request at a time or several.
pub(crate) trait Drive {
    /// Starts the first request of a turn. A load may run in several turns, and the connection may
    /// still be open from the previous one.
    fn begin(&mut self, now: Instant, state: &mut ThreadState);

    /// Handles an epoll event of the socket.
    fn ready(&mut self, flags: EventFlags, now: Instant, state: &mut ThreadState);

    /// Starts the next request after a reply. The worker calls this function for the connection in
    /// [`ThreadState::idle`].
    fn go_on(&mut self, now: Instant, state: &mut ThreadState);

    /// Stops taking requests, and drops a request that is not due yet.
    fn retire(&mut self, now: Instant, state: &mut ThreadState);

    /// Handles a wake-up that the connection has ordered. If the connection no longer needs the
    /// wake-up, does nothing.
    fn woken(&mut self, now: Instant, state: &mut ThreadState);

    /// Returns the active requests: those without a reply or failure.
    fn in_flight(&self) -> InFlight;

    /// Fails the active requests whose time limit is over. A connect whose time limit is over may
    /// continue with the server's next address.
    fn check_deadline(&mut self, now: Instant, state: &mut ThreadState);
}

/// Active requests: those without a reply or failure.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InFlight {
    pub count: u64,
    /// Due time of the oldest of these requests.
    pub oldest: Option<Instant>,
}

impl InFlight {
    /// Returns the record of one active request, which was due at `due`.
    pub fn one(due: Instant) -> Self {
        Self { count: 1, oldest: Some(due) }
    }

    /// Returns the sum of the counts, and the earlier due time.
    pub fn and(self, other: Self) -> Self {
        let oldest = self.oldest.into_iter().chain(other.oldest).min();
        Self { count: self.count + other.count, oldest }
    }
}

/// Connections of a load thread and their shared state.
#[derive(Debug)]
pub(crate) struct Worker<C> {
    connections: Vec<C>,
    state: ThreadState,
}

/// State that the connections of one thread share.
#[derive(Debug)]
pub(crate) struct ThreadState {
    pub epoll: OwnedFd,
    /// Buffer for the reads of all connections.
    pub buffer: Box<[u8]>,
    pub tally: Tally,
    pub budget: RequestBudget,
    pub pacer: Pacer,
    /// Times at which each connection is active, in a closed loop whose number of connections
    /// changes in stages. `None` if all connections are always active.
    pub active_times: Option<Box<ActiveTimes>>,
    pub alarm: Alarm,
    /// Index of the connection whose reply has just arrived, and the time of the reply. The
    /// connection has not started its next request yet.
    pub idle: Option<(usize, Instant)>,
    pub target: Arc<ServerAddresses>,
    pub timeout: Duration,
    pub lifetime: Lifetime,
    pub slow: SlowPeers,
    pub mix: Mix,
    pub values: Values,
    /// Share of the planned requests that this turn did not send in time.
    pub shortfall: f64,
    /// Number of connections that still have requests to send in this turn.
    pub active: usize,
    /// True if at least one connection stopped trying to connect.
    pub gave_up: bool,
    pub last_refusal: Option<io::Error>,
}

/// Part of a turn that one thread runs.
#[derive(Debug)]
pub(crate) struct Share {
    /// Index of the thread.
    pub thread: usize,
    pub budget: RequestBudget,
    pub pacer: Pacer,
    pub active_times: Option<Box<ActiveTimes>>,
    /// Ends of the stages of a ramp.
    pub stage_ends: Vec<Instant>,
    /// Windows in which the growth of the backlog is measured.
    pub windows: Vec<BacklogWindow>,
    pub start: Instant,
    /// Instant at which the turn ends; `None` if it ends after a number of requests.
    pub end: Option<Instant>,
    /// True if the thread waits at the end of the turn for the replies to active requests.
    pub drains: bool,
}

/// Results of a thread in one turn.
#[derive(Debug)]
pub(crate) struct Finished {
    pub tally: Tally,
    pub ended: Instant,
    pub cpu_user: Duration,
    pub cpu_system: Duration,
    pub gave_up: bool,
    pub last_refusal: Option<io::Error>,
    /// Age of the oldest active request at the end.
    pub oldest: Duration,
    /// Share of the planned requests that was not sent in time.
    pub shortfall: f64,
    pub backlog: BacklogSamples,
    /// Counts of each second; empty for a turn of `Turns`.
    pub series: Vec<Second>,
    /// Counts of each stage of a ramp.
    pub stages: Vec<StageTally>,
}

/// Timer that wakes the thread at the times that its connections have ordered.
#[derive(Debug)]
pub(crate) struct Alarm {
    orders: BinaryHeap<Reverse<(Instant, usize)>>,
    timer: OwnedFd,
    armed: Option<Instant>,
}

/// Size of the read buffer in bytes. Most replies fit; larger replies need several reads.
const BUFFER_SIZE: usize = 64 * 1024;

/// Maximum interval between two checks of time limits and cancellation. Also the maximum interval
/// between two updates of the counts.
const TICK: Duration = Duration::from_millis(50);

/// Event data of the timer. The event data of a connection is its index.
const TIMER: u64 = u64::MAX;

impl<C: Drive> Worker<C> {
    /// Creates a load thread's state. Events identify a connection by its index in `connections`.
    pub fn new(
        connections: Vec<C>,
        target: Arc<ServerAddresses>,
        (mix, values): (Mix, Values),
        spec: &Spec,
    ) -> io::Result<Self> {
        let state = ThreadState::new(target, (mix, values), spec)?;
        Ok(Self { connections, state })
    }

    /// Runs a turn until its requests are used up, its time is over or it is cancelled.
    pub fn run(&mut self, share: Share, control: &Control) -> io::Result<Finished> {
        let Share { thread, budget, pacer, start, end, drains, .. } = share;
        let cpu_before = thread_cpu()?;
        self.state.budget = budget;
        self.state.pacer = pacer;
        self.state.active_times = share.active_times;
        self.state.active = self.connections.len();
        self.state.gave_up = false;
        self.state.mix.begin(start);
        // With `drains`, the caller is `Turns`, which needs no series.
        let mut series = (!drains).then(|| Series::new(start).with_stages(&share.stage_ends));
        let mut backlog = BacklogSamples::new(share.windows, start);
        self.load((start, end), drains, (thread, &mut series, &mut backlog), control)?;
        backlog.finish(self.backlog(Instant::now()));
        let series = series.map(|series| series.finish(&mut self.state.tally));
        let (series, stages) = series.unwrap_or_default();
        let ended = Instant::now();
        if !drains || end.is_none() {
            self.close_plan(start, end.map(|end| end.min(ended)));
        }
        let active = self.connections.iter().map(Drive::in_flight);
        let active = active.fold(InFlight::default(), InFlight::and);
        self.state.tally.in_flight = active.count;
        let cpu = thread_cpu()?;
        Ok(Finished {
            ended,
            oldest: active
                .oldest
                .map_or(Duration::ZERO, |due| ended.saturating_duration_since(due)),
            shortfall: std::mem::take(&mut self.state.shortfall),
            backlog,
            cpu_user: cpu.0.saturating_sub(cpu_before.0),
            cpu_system: cpu.1.saturating_sub(cpu_before.1),
            gave_up: self.state.gave_up,
            last_refusal: self.state.last_refusal.take(),
            series,
            stages,
            tally: std::mem::replace(&mut self.state.tally, Tally::of(&self.state.target)),
        })
    }

    fn load(
        &mut self,
        (start, mut end): (Instant, Option<Instant>),
        drains: bool,
        (thread, series, backlog): (usize, &mut Option<Series>, &mut BacklogSamples),
        control: &Control,
    ) -> io::Result<()> {
        let tick = TICK.min(self.state.timeout / 4).max(Duration::from_millis(1));
        let mut now = Instant::now();
        let mut next_tick = now + tick;
        let mut published = (0, 0);
        self.state.alarm.orders.clear();
        for id in 0..self.connections.len() {
            self.connections[id].begin(now, &mut self.state);
            self.go_on();
        }
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; BATCH];
        while self.state.active > 0 {
            self.state.alarm.arm(now)?;
            let until = end.map_or(next_tick, |end| end.min(next_tick));
            let until = series.as_ref().map_or(until, |series| until.min(series.end()));
            let timeout = until.saturating_duration_since(now);
            let count = wait(&self.state.epoll, &mut events, timeout)?;
            now = Instant::now();
            if let Some(series) = series.as_mut().filter(|series| now >= series.end()) {
                let known = series.len();
                series.advance(now, &mut self.state.tally);
                if let Some(live) = control.live.as_ref().filter(|_| series.len() > known) {
                    live.post(self.state.tally.live(thread, known, series.since(known)));
                }
            }
            if let Some(ended) = end.filter(|&end| now >= end) {
                if !drains {
                    break;
                }
                end = None;
                while backlog.is_due(now) {
                    backlog.push(self.backlog(now));
                }
                // First count the planned requests that no connection took. Replies that arrive
                // later make connections take further due times, which would reduce the count.
                self.close_plan(start, Some(ended));
                self.retire(now);
            }
            for event in &events[..count] {
                let (data, flags) = (event.data, event.flags);
                // The timer's event data is no valid index. Its event only wakes the thread.
                if let Some(connection) = self.connections.get_mut(data.u64() as usize) {
                    connection.ready(flags, now, &mut self.state);
                    self.go_on();
                }
            }
            while let Some(id) = self.state.alarm.due(now) {
                self.connections[id].woken(now, &mut self.state);
                self.go_on();
            }
            if now >= next_tick {
                next_tick = now + tick;
                for id in 0..self.connections.len() {
                    self.connections[id].check_deadline(now, &mut self.state);
                    self.go_on();
                }
                while backlog.is_due(now) {
                    backlog.push(self.backlog(now));
                }
                published = self.publish(published, control);
                if control.cancelled.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
        self.publish(published, control);
        Ok(())
    }

    /// Counts the requests that have ended, and those that are due and have not ended. With
    /// scenarios, counts iterations.
    fn backlog(&self, now: Instant) -> BacklogSample {
        let ThreadState { tally, pacer, budget, mix, .. } = &self.state;
        let left = match mix.schedule() {
            _ if budget.is_empty() => 0,
            Some(schedule) => schedule.left(now),
            None => pacer.clone().left(now),
        };
        if !tally.iterations.is_empty() {
            let ended = tally.iterations.iter().map(|one| one.completed + one.failed).sum();
            let started: u64 = tally.iterations.iter().map(|one| one.started).sum();
            return BacklogSample { ended, backlog: started.saturating_sub(ended) + left };
        }
        let active = self.connections.iter().map(Drive::in_flight);
        let active = active.fold(InFlight::default(), InFlight::and);
        BacklogSample { ended: tally.completed + tally.failed, backlog: active.count + left }
    }

    /// Records the number of planned requests that were not sent, and the share of the plan that
    /// was missed.
    fn close_plan(&mut self, start: Instant, end: Option<Instant>) {
        self.state.shortfall = self.state.pacer.shortfall(start, end);
        self.state.tally.unsent = end.map_or(0, |end| self.state.pacer.left(end));
        if let Some(schedule) = self.state.mix.schedule() {
            self.state.shortfall = schedule.shortfall(end);
            self.state.tally.unsent = end.map_or(0, |end| schedule.left(end));
        }
    }

    /// Stops taking requests. Replies to active requests are still awaited.
    fn retire(&mut self, now: Instant) {
        self.state.budget.close();
        for connection in &mut self.connections {
            connection.retire(now, &mut self.state);
        }
    }

    /// Starts the next request on the connection whose reply has just arrived, before the next
    /// event is handled. If the thread first read all replies of a batch of events, the server
    /// would be idle in the meantime. In a measurement with 10 connections and a single core for
    /// nginx, this idle time cost 8 % of 102,000 requests/s.
    fn go_on(&mut self) {
        while let Some((id, now)) = self.state.idle.take() {
            self.connections[id].go_on(now, &mut self.state);
        }
    }

    /// Adds the requests since the previous call to the shared counters. `before` is the result of
    /// the previous call: the numbers of completed and failed requests.
    fn publish(&self, before: (u64, u64), control: &Control) -> (u64, u64) {
        let (completed, failed) = (self.state.tally.completed, self.state.tally.failed);
        control.completed.fetch_add(completed - before.0, Ordering::Relaxed);
        control.failed.fetch_add(failed - before.1, Ordering::Relaxed);
        (completed, failed)
    }
}

impl ThreadState {
    /// Creates the state of a thread whose turn has not begun.
    pub fn new(
        target: Arc<ServerAddresses>,
        (mix, values): (Mix, Values),
        spec: &Spec,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let alarm = Alarm::new(&epoll)?;
        Ok(Self {
            epoll,
            buffer: vec![0; BUFFER_SIZE].into_boxed_slice(),
            tally: Tally::of(&target),
            budget: RequestBudget::none(),
            pacer: Pacer::none(),
            active_times: None,
            alarm,
            idle: None,
            target,
            timeout: spec.timeout,
            lifetime: spec.lifetime,
            slow: spec.slow,
            mix,
            values,
            shortfall: 0.0,
            active: 0,
            gave_up: false,
            last_refusal: None,
        })
    }
}

impl Alarm {
    fn new(epoll: &OwnedFd) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // The timer is edge-triggered: each expiry is a new event, so the thread need not read the
        // timer.
        epoll::add(epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { orders: BinaryHeap::new(), timer, armed: None })
    }

    /// Makes the timer wake connection `id` at `at`.
    pub fn add(&mut self, at: Instant, id: usize) {
        self.orders.push(Reverse((at, id)));
    }

    /// Returns the time of the earliest ordered wake-up. Returns `None` if no wake-up is ordered.
    pub fn next(&self) -> Option<Instant> {
        self.orders.peek().map(|Reverse((at, _))| *at)
    }

    /// Sets the timer to the earliest wake-up. A timer is needed, because the time limit of
    /// `epoll_wait` has a resolution of only 1 ms.
    fn arm(&mut self, now: Instant) -> io::Result<()> {
        let Some(at) = self.next() else { return Ok(()) };
        if self.armed == Some(at) {
            return Ok(());
        }
        // A wait of zero would disarm the timer.
        let wait = at.saturating_duration_since(now).max(Duration::from_nanos(1));
        let value = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(wait) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
        self.armed = Some(at);
        Ok(())
    }

    /// Removes the earliest wake-up if it is due, and returns its connection. Returns `None` if no
    /// wake-up is due.
    pub fn due(&mut self, now: Instant) -> Option<usize> {
        let Reverse((at, id)) = *self.orders.peek()?;
        if at > now {
            return None;
        }
        self.orders.pop();
        Some(id)
    }
}

/// Returns the user and system CPU time of this thread.
fn thread_cpu() -> io::Result<(Duration, Duration)> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let micros = |time: nix::sys::time::TimeVal| time.num_microseconds().max(0) as u64;
    Ok((
        Duration::from_micros(micros(usage.user_time())),
        Duration::from_micros(micros(usage.system_time())),
    ))
}

/// Maximum number of events per call of `epoll_wait`.
const BATCH: usize = 256;

/// Waits until there are events, but at most for `timeout`. Returns the number of events. A signal
/// ends the wait without an event.
///
/// The thread sleeps at once. Polling before the sleep gave shorter latencies, but took 28 % more
/// CPU time in a measurement with one connection.
pub(crate) fn wait(
    epoll: &OwnedFd,
    events: &mut [Event; BATCH],
    timeout: Duration,
) -> io::Result<usize> {
    match epoll::wait(epoll, &mut events[..], Some(&timespec(timeout))) {
        Ok(count) => Ok(count),
        Err(Errno::INTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// Converts a duration to the type of the system calls. The number of seconds is limited to
/// `i64::MAX`.
fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
    use rustix::pipe::pipe;

    use super::*;

    #[test]
    fn a_wait_ends_with_an_event_or_at_its_limit() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let (reader, writer) = pipe().unwrap();
        epoll::add(&epoll, &reader, EventData::new_u64(7), EventFlags::IN).unwrap();
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; BATCH];
        for limit in [Duration::ZERO, Duration::from_millis(2)] {
            assert_eq!(wait(&epoll, &mut events, limit).unwrap(), 0);
        }
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(wait(&epoll, &mut events, Duration::MAX).unwrap(), 1);
        let data = events[0].data;
        assert_eq!(data.u64(), 7);
    }
}
