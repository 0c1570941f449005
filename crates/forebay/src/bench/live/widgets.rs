//! Frame of the live view: charts of rate and latency, distribution, replies and failures.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph, Wrap};

use super::view::{PERCENTILES, View};
use crate::bench::report::{figure, grouped, time};
use forebay_load::Stop;

/// Colours of the 50th, 90th and 99th percentile.
const COLOURS: [Color; 3] = [Color::Green, Color::Yellow, Color::Magenta];

/// Maximum number of rows of the distribution.
const MOST_ROWS: usize = 12;

/// Columns that a row of the distribution needs besides its bar.
const BESIDE_BAR: u16 = 32;

/// Minimum number of latencies above a percentile. With fewer, the percentile is not shown.
const SAMPLES_BEYOND: u64 = 10;

/// Draws the view. Uses no colours if the environment variable NO_COLOR has a value that is not
/// empty (no-color.org).
pub fn draw(frame: &mut Frame<'_>, view: &View) {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let ink = Ink { is_plain };
    let rows =
        [Constraint::Length(3), Constraint::Fill(1), Constraint::Fill(1), Constraint::Length(1)];
    let [head, charts, details, foot] = Layout::vertical(rows).areas(frame.area());
    let halves = [Constraint::Percentage(50), Constraint::Percentage(50)];
    let [rate, latency] = Layout::horizontal(halves).areas(charts);
    let [distribution, replies] = Layout::horizontal(halves).areas(details);
    draw_head(frame, head, view, ink);
    draw_rate(frame, rate, view, ink);
    draw_latency(frame, latency, view, ink);
    draw_distribution(frame, distribution, view, ink);
    draw_replies(frame, replies, view, ink);
    let hint = "Ctrl-C ends the run and prints the report so far";
    frame.render_widget(Line::styled(hint, Style::new().add_modifier(Modifier::DIM)), foot);
}

/// Choice of colours.
#[derive(Clone, Copy)]
struct Ink {
    is_plain: bool,
}

impl Ink {
    fn of(self, colour: Color) -> Style {
        if self.is_plain { Style::new() } else { Style::new().fg(colour) }
    }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &View, ink: Ink) {
    let elapsed = view.elapsed.as_secs_f64();
    let progress = match view.stop {
        Stop::Duration(whole) => format!("{elapsed:.1} s of {:.1} s", whole.as_secs_f64()),
        Stop::Requests(n) => {
            format!("{} of {} requests", grouped(view.completed + view.failed), grouped(n))
        }
    };
    let failed = format!("{} failed", grouped(view.failed));
    let alarm = if view.failed > 0 { ink.of(Color::Red) } else { Style::new() };
    let alarm = if view.failed > 0 { alarm.add_modifier(Modifier::BOLD) } else { alarm };
    // The terminal cuts off the end of a long line, so the counts are at the beginning of the line.
    let lines = vec![
        Line::styled(view.title.as_str(), Style::new().add_modifier(Modifier::BOLD)),
        Line::from(vec![
            Span::raw(format!("{} completed, ", grouped(view.completed))),
            Span::styled(failed, alarm),
            Span::raw(format!(" | {}", view.load)),
        ]),
        bar(view.progress(), &progress, area.width, ink),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

/// Returns a progress bar with a text.
fn bar(progress: f64, text: &str, width: u16, ink: Ink) -> Line<'static> {
    let room = usize::from(width).saturating_sub(text.len() + 4);
    let full = (room as f64 * progress) as usize;
    Line::from(vec![
        Span::raw("["),
        Span::styled("=".repeat(full), ink.of(Color::Cyan)),
        Span::raw(format!("{}] {text}", " ".repeat(room - full))),
    ])
}

fn draw_rate(frame: &mut Frame<'_>, area: Rect, view: &View, ink: Ink) {
    let completed: Vec<_> =
        view.points().map(|(x, point)| (x as f64, point.second.completed as f64)).collect();
    let failed: Vec<_> =
        view.points().map(|(x, point)| (x as f64, point.second.failed as f64)).collect();
    let now = completed.last().map_or(String::new(), |(_, rate)| format!(": {}", figure(*rate)));
    let mut lines = vec![("completed", Color::Cyan, completed)];
    if view.failed > 0 {
        lines.push(("failed", Color::Red, failed));
    }
    draw_chart(
        frame,
        area,
        (format!(" Requests/s{now} ").into(), &lines),
        &|rate| figure(rate),
        ink,
    );
}

fn draw_latency(frame: &mut Frame<'_>, area: Rect, view: &View, ink: Ink) {
    let line = |index: usize| {
        let (name, _) = PERCENTILES[index];
        let value = |(x, point): (usize, &super::view::Point)| {
            Some((x as f64, point.percentiles?[index] as f64))
        };
        (name, COLOURS[index], view.points().filter_map(value).collect::<Vec<_>>())
    };
    let now = view.points().next_back().and_then(|(_, point)| point.percentiles);
    let mut title = vec![Span::raw(" Latency: ")];
    for (index, (name, _)) in PERCENTILES.iter().enumerate() {
        let value = now.map_or(String::new(), |now| time(now[index] as f64));
        title.push(Span::styled(format!("{name} {value} "), ink.of(COLOURS[index])));
    }
    let lines = [line(0), line(1), line(2)];
    draw_chart(frame, area, (title.into(), &lines), &time, ink);
}

type Curve = (&'static str, Color, Vec<(f64, f64)>);

fn draw_chart(
    frame: &mut Frame<'_>,
    area: Rect,
    (title, lines): (Line<'_>, &[Curve]),
    label: &dyn Fn(f64) -> String,
    ink: Ink,
) {
    let block = Block::bordered().title(title);
    let points = || lines.iter().flat_map(|(_, _, points)| points);
    let first = points().map(|(x, _)| *x).fold(f64::INFINITY, f64::min);
    if !first.is_finite() {
        frame.render_widget(Paragraph::new("no second is over yet").block(block), area);
        return;
    }
    let last = points().map(|(x, _)| *x).fold(first + 1.0, f64::max);
    let top = points().map(|(_, y)| *y).fold(0.0, f64::max).max(1.0) * 1.05;
    let sets = lines.iter().map(|(name, colour, points)| {
        let set = Dataset::default().name(*name).data(points).style(ink.of(*colour));
        set.graph_type(GraphType::Line).marker(Marker::Braille)
    });
    let axis =
        |bounds: [f64; 2], labels: Vec<String>| Axis::default().bounds(bounds).labels(labels);
    let chart = Chart::new(sets.collect())
        .block(block)
        .x_axis(axis([first, last], vec![format!("{first:.0} s"), format!("{last:.0} s")]))
        .y_axis(axis([0.0, top], vec!["0".to_owned(), label(top / 2.0), label(top)]));
    frame.render_widget(chart, area);
}

fn draw_distribution(frame: &mut Frame<'_>, area: Rect, view: &View, ink: Ink) {
    let block = Block::bordered().title(" Distribution ");
    let inner = block.inner(area);
    let latency = &view.latency;
    let mut lines = Vec::new();
    if !latency.is_empty() {
        let all = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)];
        let shown = all.iter().filter(|(_, p)| latency.samples_beyond(*p) >= SAMPLES_BEYOND);
        let text = |(name, percent): &(&str, f64)| {
            format!("{name} {}", time(latency.percentile_us(*percent) as f64))
        };
        lines.push(Line::raw(shown.map(text).collect::<Vec<_>>().join(" ")));
        let rows = usize::from(inner.height).saturating_sub(1).min(MOST_ROWS);
        let ranges = ranges(latency.min_us() as f64, latency.max_us() as f64, rows);
        let shares: Vec<_> =
            ranges.iter().map(|[low, high]| latency.share_between(*low, *high)).collect();
        let most = shares.iter().copied().fold(1e-9, f64::max);
        let room = f64::from(inner.width.saturating_sub(BESIDE_BAR));
        for ([low, high], share) in ranges.iter().zip(shares) {
            let bar = "\u{2588}".repeat((room * share / most).ceil() as usize);
            lines.push(Line::from(vec![
                Span::raw(format!(
                    "{:>9} -{:>9} {:>6.2} % ",
                    time(*low),
                    time(*high),
                    share * 100.0
                )),
                Span::styled(bar, ink.of(Color::Cyan)),
            ]));
        }
    }
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Divides the whole numbers from `low` to `high` into at most `rows` ranges, which have about
/// equal widths on a logarithmic scale.
fn ranges(low: f64, high: f64, rows: usize) -> Vec<[f64; 2]> {
    let low = low.max(1.0);
    let rows = rows.min((high - low) as usize + 1);
    let factor = ((high + 1.0) / low).powf(1.0 / rows.max(1) as f64);
    let end = |row: usize| (low * factor.powi(row as i32)).round();
    // Both ends belong to the range, so a range ends one below the beginning of the next range.
    let range = |row| [end(row), (end(row + 1) - 1.0).max(end(row))];
    (0..rows).map(range).collect()
}

fn draw_replies(frame: &mut Frame<'_>, area: Rect, view: &View, ink: Ink) {
    let row = |name: &str, count: u64, style: Style| {
        Line::from(vec![Span::raw(format!("{name:<10}")), Span::styled(grouped(count), style)])
    };
    let requests = view.requests();
    let kinds = requests.failures.by_kind();
    let mut lines: Vec<_> = kinds
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| row(kind, count, ink.of(Color::Red)))
        .collect();
    if let Some(why) = &view.first_failure {
        lines.push(Line::raw(format!("first failure: {why}")));
    }
    for (status, count) in requests.status {
        let style = if status >= 400 { ink.of(Color::Red) } else { Style::new() };
        lines.push(row(&status.to_string(), count, style));
    }
    let block = Block::bordered().title(" Replies and failures ");
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all_latencies_once() {
        for (low, high, rows) in
            [(1.0, 1.0, 8), (100.0, 2000.0, 8), (5.0, 6.0, 12), (1.0, 3.6e9, 3)]
        {
            let ranges = ranges(low, high, rows);
            assert_eq!(ranges[0][0], low);
            assert!(ranges.last().unwrap()[1] >= high, "{ranges:?}");
            assert!(ranges.windows(2).all(|pair| pair[0][1] < pair[1][0]), "{ranges:?}");
        }
        assert!(ranges(1.0, 100.0, 0).is_empty());
    }
}
