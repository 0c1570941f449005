//! Headless Chromium, which shows pages in tests.

use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the command that runs Chromium without a display, with this directory for its profile.
/// Chromium prints console messages on standard error.
pub fn command(profile: &Path) -> Command {
    let mut command = Command::new("chromium");
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--disable-background-networking", "--no-first-run", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.display()));
    command
}

/// Shows the page at `url` for `milliseconds` of Chromium's virtual clock. Returns the page's
/// title, which a script can set to its result, and the console messages. `scheme` is the preferred
/// colour scheme: 0 is dark, 1 is light.
///
/// # Panics
/// Panics if Chromium does not start, or if the page has no title.
pub fn show(profile: &Path, url: &str, milliseconds: u32, scheme: u8) -> (String, Vec<String>) {
    let output = command(profile)
        .args([&format!("--virtual-time-budget={milliseconds}"), "--dump-dom"])
        .args([&format!("--blink-settings=preferredColorScheme={scheme}"), url])
        .stdin(Stdio::null())
        .output()
        .expect("Chromium starts");
    let dom = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let title = dom.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
    let title = title.unwrap_or_else(|| panic!("the page has no title: {dom} {errors}")).0;
    let title = title.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let console = errors.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned);
    (title, console.collect())
}

/// Returns the sum of red, green and blue in a colour as `getComputedStyle` writes it, such as
/// `rgb(10, 20, 30)`.
pub fn brightness(colour: &str) -> u32 {
    let numbers = colour.split(|c: char| !c.is_ascii_digit());
    numbers.filter_map(|number| number.parse::<u32>().ok()).take(3).sum()
}
