//! The page of `forebay compare` in Chromium: it loads nothing, causes no messages, and is readable
//! at any width, in light and dark.

mod compare_support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;

use compare_support::Experiment;
use forebay_testkit::chromium::{self, brightness};
use forebay_testkit::peer;
use serde_json::Value;

/// Shows the page in a frame with the width of a telephone and the same origin, and records the
/// result.
const HARNESS: &str = r#"<!DOCTYPE html>
<iframe id="page" style="width: 400px; height: 800px; border: 0" srcdoc="PAGE"></iframe>
<script>
onload = () => {
  const frame = document.getElementById("page").contentWindow, page = frame.document;
  const all = selector => [...page.querySelectorAll(selector)];
  const shown = all("h1, h2, p, li, dd, .results td").filter(e => e.getClientRects().length);
  const style = frame.getComputedStyle(page.body);
  document.title = JSON.stringify({
    loaded: frame.performance.getEntriesByType("resource").map(entry => entry.name),
    width: page.documentElement.scrollWidth,
    beyond: shown.filter(e => e.getBoundingClientRect().right > 400.5 && !e.closest("details"))
      .map(e => e.textContent.slice(0, 40)),
    smallest: Math.min(...shown.map(e => parseFloat(frame.getComputedStyle(e).fontSize))),
    cells: all(".results td").length,
    charts: all("svg").filter(e => e.getClientRects().length).length,
    scrolled: all(".chart").filter(e => e.scrollWidth > e.clientWidth).map(e => e.scrollWidth),
    // As displayed, because a drawing is scaled to its width.
    lettering: Math.min(...all("svg").filter(e => e.getClientRects().length).flatMap(svg =>
      [...svg.querySelectorAll("text")].map(e => parseFloat(frame.getComputedStyle(e).fontSize)
        * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))),
    cut: all("svg text").filter(e => e.getClientRects().length)
      .filter(e => e.getBoundingClientRect().left < 0 || e.getBoundingClientRect().right > 400.5)
      .map(e => e.textContent),
    paper: style.backgroundColor, ink: style.color,
  });
};
</script>"#;

/// Returns the observations of the harness, and the console messages. `scheme`: 0 is dark, 1 is
/// light.
fn show(experiment: &Experiment, page: &str, scheme: u8) -> (Value, Vec<String>) {
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    fs::write(experiment.path("harness.html"), HARNESS.replace("PAGE", &escaped)).unwrap();
    let url = format!("file://{}", experiment.path("harness.html"));
    let profile = experiment.path("profile");
    let (seen, console) = chromium::show(profile.as_ref(), &url, 10_000, scheme);
    (serde_json::from_str(&seen).unwrap(), console)
}

#[test]
fn the_page_is_readable_on_a_telephone_in_light_and_dark_and_loads_nothing() {
    if !peer::has(&["chromium"]) {
        return;
    }
    let experiment = Experiment::new("requests = 200\nwarmup = 0\nrounds = 2")
        .server("one", "")
        .server_with("another one with quite a long name", "", "notes = \"a note\"");
    assert_eq!(experiment.run(&["--quiet"]).code, Some(0));
    let page = experiment.read("forebay-report/report.html");
    for (scheme, is_dark) in [(0, true), (1, false)] {
        let (seen, console) = show(&experiment, &page, scheme);
        assert_eq!(console, [""; 0]);
        assert_eq!(
            (&seen["loaded"], &seen["beyond"]),
            (&Value::Array(vec![]), &Value::Array(vec![]))
        );
        // The width may be smaller by that of a scroll bar.
        assert!(seen["width"].as_u64() <= Some(400) && seen["cells"] == 24, "{seen}");
        assert!(seen["charts"].as_u64() >= Some(3), "{seen}");
        assert_eq!((&seen["scrolled"], &seen["cut"]), (&seen["loaded"], &seen["loaded"]), "none");
        assert!(seen["lettering"].as_f64() >= Some(10.5), "{seen}");
        assert!(seen["smallest"].as_f64() >= Some(12.0), "{seen}");
        let [paper, ink] = ["paper", "ink"].map(|name| brightness(seen[name].as_str().unwrap()));
        assert!(if is_dark { ink > paper + 450 } else { paper > ink + 450 }, "{seen}");
    }
}

#[test]
fn the_page_of_a_bench_run_is_readable_on_a_telephone_and_loads_nothing() {
    if !peer::has(&["chromium"]) {
        return;
    }
    let experiment = Experiment::new("requests = 1");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/a?<b>&c", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                if stream.write_all(reply).is_err() {
                    break;
                }
            }
        }
    });
    let status = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["bench", &url, "-n", "3000", "-c", "1", "--quiet", "--html"])
        .arg(experiment.path("page.html"))
        .status();
    assert!(status.unwrap().success());
    let page = experiment.read("page.html");
    for (scheme, is_dark) in [(0, true), (1, false)] {
        let (seen, console) = show(&experiment, &page, scheme);
        assert_eq!(console, [""; 0]);
        let none = Value::Array(vec![]);
        assert_eq!((&seen["loaded"], &seen["beyond"]), (&none, &none));
        assert_eq!((&seen["scrolled"], &seen["cut"]), (&none, &none));
        assert!(seen["width"].as_u64() <= Some(400) && seen["charts"] == 4, "{seen}");
        assert!(seen["lettering"].as_f64() >= Some(10.5), "{seen}");
        assert!(seen["smallest"].as_f64() >= Some(12.0), "{seen}");
        let [paper, ink] = ["paper", "ink"].map(|name| brightness(seen[name].as_str().unwrap()));
        assert!(if is_dark { ink > paper + 450 } else { paper > ink + 450 }, "{seen}");
    }
}

#[test]
fn the_page_refuses_loads_that_the_test_detects() {
    if !peer::has(&["chromium"]) {
        return;
    }
    let experiment = Experiment::new("requests = 5\nwarmup = 0\nrounds = 1").server("one", "");
    assert_eq!(experiment.run(&["--quiet"]).code, Some(0));
    let page = experiment.read("forebay-report/report.html");
    let page = page.replace("</main>", "<img alt=\"\" src=\"http://127.0.0.1:9/x.png\"></main>");
    let (_, console) = show(&experiment, &page, 1);
    assert!(console.iter().any(|line| line.contains("Content Security Policy")), "{console:?}");
}

#[test]
fn flame_graphs_are_readable_on_a_telephone_too() {
    if !peer::has(&["chromium"]) {
        return;
    }
    let experiment = Experiment::new("duration = \"300ms\"\nwarmup = 0\nrounds = 1")
        .server("one", "")
        .server("two", "");
    let mut samples = String::new();
    for number in 0..400 {
        let name =
            ["wide_WWWWWWWWWWWWWWWW", "日本語日本語日本語日本語", "<&\"'>", "narrow"][number % 4];
        samples += &format!("perl 7 \n\t1 leaf{} (/x)\n\t2 {name} (/x)\n", number % 40);
        samples += "\t3 main (/usr/bin/perl)\n\n";
    }
    let path = experiment.fake_perf(samples.as_bytes());
    let mut command = experiment.compare(&["--quiet", "--profile"]);
    command.env("PATH", path);
    assert_eq!(experiment.finish(command).code, Some(0));
    let page = experiment.read("forebay-report/report.html");
    for (scheme, is_dark) in [(0, true), (1, false)] {
        let (seen, console) = show(&experiment, &page, scheme);
        assert_eq!(console, [""; 0]);
        assert_eq!(&seen["loaded"], &Value::Array(vec![]));
        assert_eq!((&seen["scrolled"], &seen["cut"]), (&seen["loaded"], &seen["loaded"]), "none");
        assert!(seen["width"].as_u64() <= Some(400), "{seen}");
        assert!(seen["charts"].as_u64() >= Some(6), "{seen}");
        assert!(seen["lettering"].as_f64() >= Some(10.5), "{seen}");
        let [paper, ink] = ["paper", "ink"].map(|name| brightness(seen[name].as_str().unwrap()));
        assert!(if is_dark { ink > paper + 450 } else { paper > ink + 450 }, "{seen}");
    }
}
