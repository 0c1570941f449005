//! Starts all applications of a plan at once, so that a slow or broken application delays no other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_conf::{App, AppKind, Plan};
use forebay_net::log::ErrorLog;
use forebay_origin::apps::definition::{Definition, definition};
use forebay_origin::apps::running::RunningApp;
use forebay_workers::{FirstStart, Severity, StartError};

/// Maximum time that `serve` waits for applications at its start.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum time that a new configuration or gateway process waits, before the takeover, for the
/// second and later processes of all applications. Until the takeover, the old processes serve.
const OTHERS: Duration = Duration::from_secs(10);

/// Starts the applications of `plan`, except those that the previous configuration already runs
/// with equal definitions.
///
/// If `must_succeed` is true, all applications must start, except those of one directory alone, whose
/// owner could otherwise keep all others from a new configuration. The function then waits for the first
/// process of each application. Afterwards, the function waits for the other processes, for at most
/// [`OTHERS`] in total. The first requests then need not wait for a process.
///
/// If `must_succeed` is false, the function logs each application that fails to start, or takes
/// longer than [`PATIENCE`]. The supervisor of such an application tries further starts.
pub fn start_all(
    plan: &Plan,
    errors: &ErrorLog,
    must_succeed: bool,
    running: impl Fn(&str, &Definition) -> Option<RunningApp>,
) -> Result<BTreeMap<String, RunningApp>, StartError> {
    let mut apps = BTreeMap::new();
    let (mut starts, mut own) = (Vec::new(), Vec::new());
    for (name, app_plan) in &plan.apps {
        let definition = definition(name, app_plan)?;
        let app = match running(name, &definition) {
            Some(app) => app,
            None => {
                let log = errors.clone();
                let (app, first) =
                    RunningApp::begin(definition, move |level, line| log.output(level, line))?;
                let starts = if plan.own_apps.contains(name) { &mut own } else { &mut starts };
                starts.extend(first.into_iter().map(|first| (name, first)));
                if let Some(note) = environment_note(app_plan) {
                    errors.info(&format!("app {name}: {note}"));
                }
                app
            }
        };
        apps.insert(name.clone(), app);
    }
    if must_succeed {
        wait_for_all(starts.into_iter().map(|(_, first)| first).collect())?;
    } else {
        own.extend(starts);
    }
    let until = Instant::now() + PATIENCE;
    for (name, first) in own {
        match first.wait(until.saturating_duration_since(Instant::now())) {
            Some(Ok(())) => {}
            Some(Err(error)) => errors.error(&format!(
                "cannot start {error}; its requests are answered with 503 until a later attempt \
                 succeeds, all else is served"
            )),
            None => errors.warn(&format!(
                "app {name} has not started within {PATIENCE:?}; its requests wait, all else is \
                 served"
            )),
        }
    }
    Ok(apps)
}

/// Returns the value of the variable by which frameworks of the application's language tell
/// development from production, because a wrong one shows only in behaviour: pages with stack
/// traces, or code that is compiled for each request.
fn environment_note(app: &App) -> Option<String> {
    let (name, default) = match &app.kind {
        AppKind::Psgi { .. } => ("PLACK_ENV", Some("deployment")),
        AppKind::Rack { .. } => ("RACK_ENV", Some("production")),
        AppKind::Command { run, .. } if runs_node(run.first()?) => ("NODE_ENV", None),
        _ => return None,
    };
    Some(match (app.env.get(name), default) {
        (Some(value), _) => format!("{name} is \"{value}\""),
        (None, Some(default)) => format!("{name} is \"{default}\", as `env` does not set it"),
        (None, None) => {
            format!("{name} is not set; for production, write env.{name} = \"production\"")
        }
    })
}

fn runs_node(program: &str) -> bool {
    let name = program.rsplit('/').next().unwrap_or_default();
    matches!(name, "node" | "nodejs" | "npm" | "npx" | "pnpm" | "yarn")
        || program.contains("node_modules/")
}

/// Waits for the first process of each application. Then waits for the other processes, for at most
/// [`OTHERS`] in total. Fails only if the first process of an application fails.
fn wait_for_all(starts: Vec<FirstStart>) -> Result<(), StartError> {
    starts.iter().try_for_each(FirstStart::wait_for_end)?;
    let until = Instant::now() + OTHERS;
    for first in starts {
        first.wait_for_others(until.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// Result of one application in [`try_starts`].
pub struct AppStart {
    /// Name of the application.
    pub name: String,
    /// Result of the start.
    pub outcome: Result<(), StartError>,
}

/// Starts and ends one process of each application of `plan`. Includes applications that `serve`
/// starts only when their first request arrives. `log` receives the output of the processes.
/// Blocks.
pub fn try_starts(
    plan: &Plan,
    log: impl Fn(Severity, &str) + Clone + Send + Sync + 'static,
) -> Vec<AppStart> {
    let begun = plan.apps.iter().map(|(name, app)| {
        let mut app = app.clone();
        (app.workers.min, app.workers.max) = (1, 1);
        let begun = definition(name, &app)
            .and_then(|definition| RunningApp::begin(definition, log.clone()));
        (name, begun)
    });
    // Start all applications before waiting for the first one.
    let begun: Vec<_> = begun.collect();
    let ended = begun.into_iter().map(|(name, begun)| {
        let outcome = begun.and_then(|(app, first)| {
            let outcome = first.iter().try_for_each(FirstStart::wait_for_end);
            app.end();
            outcome
        });
        AppStart { name: name.clone(), outcome }
    });
    ended.collect()
}
