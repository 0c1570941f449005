//! Measures how long one request takes, with one worker and a script that prints the time.
//!
//! `cargo run --release -p forebay-workers --example microseconds [REQUESTS]`. Prints the time per
//! request as the caller sees it and the processor time that the caller and the worker spend.

use forebay_workers::{App, AppSpec, Body, EndKind, Kind, LeaseEvent, PerlMode, Workers};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

const SCRIPT: &str = "#!/usr/bin/perl\n\
    print \"Content-Type: text/plain\\n\\n\", scalar localtime, \"\\n\";\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let requests: u32 = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let script = dir.path().join("time.pl");
    std::fs::write(&script, SCRIPT)?;
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755))?;
    let kind =
        Kind::PerlCgi { dir: dir.path().into(), mode: PerlMode::Registry, preload: Vec::new() };
    let mut spec = AppSpec::new("time", kind);
    spec.workers = Workers { min: 1, max: 1 };
    let app = App::start(spec, |_, line| eprintln!("{line}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let script = script.to_str().ok_or("the path is not UTF-8")?;
        run(&app, script, requests / 10 + 1, false).await?;
        for varied in [false, true] {
            let pid = app.status()[0].pid;
            let before = (cpu("self".into()), cpu(pid.to_string()), Instant::now());
            run(&app, script, requests, varied).await?;
            let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(requests);
            println!(
                "{}: {:.1} us per request; processor time: {:.1} us caller, {:.1} us worker",
                if varied { "ten clients' ports in turn" } else { "the same environment  " },
                each(before.2.elapsed()),
                each(cpu("self".into()) - before.0),
                each(cpu(pid.to_string()) - before.1),
            );
        }
        app.shutdown(Duration::from_secs(1)).await;
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    saturate(&dir, &script, requests)
}

/// Two threads with five requests at a time each, for two workers: most requests wait for one.
fn saturate(
    dir: &tempfile::TempDir,
    script: &std::path::Path,
    requests: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let kind =
        Kind::PerlCgi { dir: dir.path().into(), mode: PerlMode::Registry, preload: Vec::new() };
    let mut spec = AppSpec::new("time", kind);
    spec.workers = Workers { min: 2, max: 2 };
    let app = App::start(spec, |_, line| eprintln!("{line}"))?;
    let (begun, before) = (Instant::now(), cpu("self".into()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let local = tokio::task::LocalSet::new();
                for _ in 0..5 {
                    let (app, script) = (app.clone(), script.to_str().unwrap_or("").to_string());
                    local.spawn_local(async move {
                        if let Err(error) = run(&app, &script, requests / 10, true).await {
                            eprintln!("{error}");
                        }
                    });
                }
                if let Ok(runtime) = runtime {
                    runtime.block_on(local);
                }
            });
        }
    });
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(requests);
    println!(
        "two threads, two workers, ten at a time: {:.1} us per request; {:.1} us caller",
        each(begun.elapsed()),
        each(cpu("self".into()) - before)
    );
    Ok(())
}

async fn run(
    app: &App,
    script: &str,
    requests: u32,
    varied: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let blocks: Vec<Vec<u8>> =
        (0..if varied { 10 } else { 1 }).map(|i| block(script, 40_000 + i)).collect();
    let mut output = Vec::with_capacity(64 * 1024);
    for block in blocks.iter().cycle().take(requests as usize) {
        output.clear();
        let mut lease = app.checkout().await?;
        lease.send(block, Body::Empty).await?;
        loop {
            match lease.read(&mut output).await? {
                LeaseEvent::Output(_) => {}
                LeaseEvent::End(EndKind::Ok) => break,
                LeaseEvent::End(EndKind::Status(status)) => return Err(format!("{status}").into()),
                LeaseEvent::End(EndKind::Aborted) => return Err("aborted".into()),
            }
        }
    }
    Ok(())
}

/// Returns the CGI variables of a browser's request for `script`.
fn block(script: &str, port: u32) -> Vec<u8> {
    let port = port.to_string();
    let pairs = [
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("SERVER_SOFTWARE", "Forebay"),
        ("SERVER_NAME", "127.0.0.1"),
        ("SERVER_PORT", "8080"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("REQUEST_METHOD", "GET"),
        ("REQUEST_URI", "/scripts/time.pl"),
        ("SCRIPT_NAME", "/scripts/time.pl"),
        ("SCRIPT_FILENAME", script),
        ("QUERY_STRING", ""),
        ("REMOTE_ADDR", "127.0.0.1"),
        ("REMOTE_PORT", &port),
        ("HTTP_HOST", "127.0.0.1:8080"),
        ("HTTP_USER_AGENT", "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101"),
        ("HTTP_ACCEPT", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
        ("HTTP_ACCEPT_LANGUAGE", "en-US,en;q=0.5"),
        ("HTTP_ACCEPT_ENCODING", "gzip, deflate, br, zstd"),
        ("HTTP_CONNECTION", "keep-alive"),
    ];
    pairs
        .iter()
        .flat_map(|(name, value)| [*name, "\0", *value, "\0"])
        .flat_map(str::bytes)
        .collect()
}

/// Processor time of a process so far, user and system, in steps of 10 ms.
fn cpu(process: String) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let ticks = stat.rsplit(')').next().unwrap_or("").split(' ').skip(12).take(2);
    Duration::from_millis(ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10)
}
