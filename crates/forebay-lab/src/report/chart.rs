//! Charts as inline SVG. Colours are CSS variables of the page and follow its theme. A label
//! identifies each series, so that readers do not depend on colour.

mod comparison;
mod flame;
mod timeline;

pub use comparison::{cpu, latency, memory, rate};
pub use flame::{Unit, flame, flame_difference};
pub use timeline::{HeatMap, TimeLine, distribution, heat_map, over_time};

use std::fmt::Write;

use minijinja::HtmlEscape;

use super::labels as short_names;

/// Type of screen. The page contains each chart for both types and shows the suitable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Screen {
    /// A computer's screen. Names are next to the ends of the lines.
    Wide,
    /// A telephone's screen, about 400 px wide. Names are above or below the lines.
    Narrow,
}

impl Screen {
    /// Returns the width of a chart in the chart's own units. The page scales the chart.
    fn width(self) -> f64 {
        match self {
            Self::Wide => 940.0,
            Self::Narrow => 380.0,
        }
    }

    /// Returns the CSS class that shows a chart on this screen only.
    fn class(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }

    /// Returns the approximate number of ticks of a horizontal axis.
    fn steps(self) -> usize {
        match self {
            Self::Wide => 5,
            Self::Narrow => 3,
        }
    }

    /// Returns the area between the axes of a line chart. The labels are outside of this area.
    fn area(self, bottom: f64) -> Area {
        match self {
            Self::Wide => Area { left: 78.0, right: 630.0, top: 10.0, bottom },
            Self::Narrow => Area { left: 66.0, right: 364.0, top: 10.0, bottom },
        }
    }
}

/// Draws a chart for both screens. Returns `None` if `draw` returns `None` for one of them.
fn both(draw: impl Fn(Screen) -> Option<String>) -> Option<String> {
    Some(draw(Screen::Wide)? + &draw(Screen::Narrow)?)
}

/// Maximum number of characters of a name next to an axis. Charts shorten longer names; the table
/// does not.
const LONGEST_NAME: usize = 28;
/// Maximum number of characters of a name that has a figure next to it at the end of a line.
const LONGEST_END: usize = 24;

/// Area between the axes.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// Returns the CSS colour of series `index`. The baseline has a neutral colour.
fn colour(index: usize, baseline: bool) -> String {
    if baseline { "var(--base)".to_owned() } else { format!("var(--s{})", index % 7) }
}

/// Returns the colours in the order of the rows. A baseline gets the neutral colour. The other rows
/// get colours 0, 1, 2 and so on.
fn colours<'a>(baselines: impl Iterator<Item = &'a bool>) -> Vec<String> {
    let mut next = 0;
    baselines
        .map(|&baseline| {
            let own = colour(next, baseline);
            next += usize::from(!baseline);
            own
        })
        .collect()
}

/// Draws horizontal grid lines with labels on the left.
fn value_axis(svg: &mut Svg, area: Area, scale: &Scale, label: impl Fn(f64) -> String) {
    for &tick in scale.ticks() {
        let y = scale.at(tick);
        svg.line("grid", (area.left, y), (area.right, y));
        svg.text("tick end", (area.left - 8.0, y + 4.0), &label(tick));
    }
}

/// Name and last figure at the end of a line.
struct EndLabel<'a> {
    y: f64,
    name: &'a str,
    /// The name as it is drawn, set by [`end_labels`].
    short: String,
    figure: String,
    colour: String,
}

/// Draws the names next to the ends of their lines. Moves names apart that would overlap. On a
/// narrow screen, the names are listed below the axis.
fn end_labels(svg: &mut Svg, screen: Screen, area: Area, mut labels: Vec<EndLabel<'_>>) {
    const LINE: f64 = 17.0;
    let longest = if screen == Screen::Narrow { LONGEST_NAME } else { LONGEST_END };
    let names = short_names(labels.iter().map(|label| label.name), longest);
    labels.iter_mut().zip(names).for_each(|(label, name)| label.short = name);
    if screen == Screen::Narrow {
        for label in &labels {
            let text = format!("{}  {}", label.short, label.figure);
            let y = svg.grow(LINE) - 6.0;
            svg.coloured_text("name", (4.0, y), &text, &label.colour);
        }
        return;
    }
    labels.sort_by(|left, right| left.y.total_cmp(&right.y));
    let mut lowest = f64::NEG_INFINITY;
    for label in &mut labels {
        label.y = label.y.max(lowest + LINE);
        lowest = label.y;
    }
    let mut highest = area.bottom + 4.0;
    for label in labels.iter_mut().rev() {
        label.y = label.y.min(highest);
        highest = label.y - LINE;
    }
    for label in &labels {
        let text = format!("{}  {}", label.short, label.figure);
        svg.coloured_text("name", (area.right + 14.0, label.y + 4.0), &text, &label.colour);
    }
}

/// SVG element under construction.
struct Svg {
    screen: Screen,
    height: f64,
    label: String,
    body: String,
}

/// Point in the chart's own units.
type At = (f64, f64);

impl Svg {
    /// Creates an empty drawing. `label` describes the drawing for screen readers.
    pub fn new(screen: Screen, height: f64, label: &str) -> Self {
        Self { screen, height, label: label.to_owned(), body: String::new() }
    }

    /// Adds `by` to the height, at the bottom. Returns the new height.
    pub fn grow(&mut self, by: f64) -> f64 {
        self.height += by;
        self.height
    }

    pub fn line(&mut self, class: &str, from: At, to: At) {
        self.add(format_args!(
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    pub fn coloured_line(&mut self, class: &str, from: At, to: At, colour: &str) {
        self.add(format_args!(
            r#"<line class="{class}" style="stroke:{colour}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    /// Draws a line through points, in a colour.
    pub fn path(&mut self, class: &str, points: &[At], colour: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!(
            r#"<polyline class="{class}" style="stroke:{colour}" points="{}"/>"#,
            points.join(" ")
        ));
    }

    pub fn dot(&mut self, class: &str, at: At, radius: f64, colour: &str, tooltip: &str) {
        self.add(format_args!(
            r#"<circle class="{class}" style="fill:{colour}" cx="{:.1}" cy="{:.1}" r="{radius}"><title>{}</title></circle>"#,
            at.0,
            at.1,
            HtmlEscape(tooltip)
        ));
    }

    pub fn bar(&mut self, class: &str, at: At, size: At, colour: &str) {
        self.add(format_args!(
            r#"<rect class="{class}" style="fill:{colour}" x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}"/>"#,
            at.0, at.1, size.0, size.1
        ));
    }

    /// Draws a filled rectangle with an opacity and a tooltip.
    pub fn cell(&mut self, at: At, size: At, opacity: f64, tooltip: &str) {
        self.add(format_args!(
            r#"<rect class="cell" fill-opacity="{opacity:.2}" x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}"><title>{}</title></rect>"#,
            at.0, at.1, size.0, size.1, HtmlEscape(tooltip)
        ));
    }

    /// Draws text. The class determines the alignment.
    pub fn text(&mut self, class: &str, at: At, text: &str) {
        self.add(format_args!(
            r#"<text class="{class}" x="{:.1}" y="{:.1}">{}</text>"#,
            at.0,
            at.1,
            HtmlEscape(text)
        ));
    }

    pub fn coloured_text(&mut self, class: &str, at: At, text: &str, colour: &str) {
        self.add(format_args!(
            r#"<text class="{class}" style="fill:{colour}" x="{:.1}" y="{:.1}">{}</text>"#,
            at.0,
            at.1,
            HtmlEscape(text)
        ));
    }

    /// Draws a box with a tooltip and a label, which may be empty.
    pub fn frame(&mut self, class: &str, at: At, size: At, tooltip: &str, label: &str) {
        self.add(format_args!(
            r#"<g><title>{}</title><rect class="{class}" x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}"/>"#,
            HtmlEscape(tooltip),
            at.0,
            at.1,
            size.0,
            size.1
        ));
        if !label.is_empty() {
            self.text("frame", (at.0 + 3.0, at.1 + size.1 - 4.5), label);
        }
        self.add(format_args!("</g>"));
    }

    pub fn finish(self) -> String {
        format!(
            "<svg class=\"{}\" viewBox=\"0 0 {} {:.0}\" role=\"img\" aria-label=\"{}\">\n{}</svg>",
            self.screen.class(),
            self.screen.width(),
            self.height,
            HtmlEscape(&self.label),
            self.body
        )
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        self.body.write_fmt(element).expect("writing to a string does not fail");
        self.body.push('\n');
    }
}

/// Linear or logarithmic axis of a chart.
struct Scale {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    logarithmic: bool,
    ticks: Vec<f64>,
}

impl Scale {
    /// Creates an axis from 0 to a round number of at least `highest`, with about `steps` ticks.
    /// `start` and `end` are the positions of the axis's ends.
    pub fn linear(highest: f64, steps: usize, start: f64, end: f64) -> Self {
        let highest = if highest.is_finite() && highest > 0.0 { highest } else { 1.0 };
        let step = round_step(highest / steps.max(1) as f64);
        let count = (highest / step - 1e-9).ceil().max(1.0);
        let ticks = (0..=count as usize).map(|index| index as f64 * step).collect();
        Self { low: 0.0, high: count * step, start, end, logarithmic: false, ticks }
    }

    /// Creates a logarithmic axis from a round number of at most `lowest` to a round number of at
    /// least `highest`. `lowest` and `highest` must be greater than 0.
    pub fn logarithmic(lowest: f64, highest: f64, start: f64, end: f64) -> Self {
        let lowest = lowest.max(f64::MIN_POSITIVE);
        let decades = (highest / lowest).log10();
        let factors: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let first = lowest.log10().floor() as i32;
        let last = highest.log10().ceil() as i32;
        let marks: Vec<f64> = (first..=last)
            .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
            .collect();
        let low = marks.iter().rev().find(|mark| **mark <= lowest * 1.000_001).copied();
        let high = marks.iter().find(|mark| **mark >= highest * 0.999_999).copied();
        let (low, high) = (low.unwrap_or(lowest), high.unwrap_or(highest).max(lowest * 1.1));
        let inside = |mark: &f64| (low * 0.999..=high * 1.001).contains(mark);
        let ticks = marks.into_iter().filter(inside).collect();
        Self { low, high, start, end, logarithmic: true, ticks }
    }

    pub fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.start + share * (self.end - self.start)
    }

    pub fn ticks(&self) -> &[f64] {
        &self.ticks
    }
}

/// Returns the smallest number of the series 1, 2, 2.5, 5, 10, 20, 25 and so on that is at least
/// `step`. The series also continues below 1: 0.5, 0.25, 0.2, 0.1.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let rounded = [1.0, 2.0, 2.5, 5.0, 10.0].iter().find(|&&factor| factor * power >= step * 0.999);
    rounded.unwrap_or(&10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_ticks() {
        let scale = Scale::linear(873.0, 5, 0.0, 100.0);
        assert_eq!(scale.ticks(), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(scale.at(500.0), 50.0);
        assert_eq!(Scale::linear(0.0, 5, 0.0, 1.0).ticks().first(), Some(&0.0));
    }

    #[test]
    fn a_logarithmic_axis_holds_all_values() {
        let scale = Scale::logarithmic(130.0, 4100.0, 100.0, 0.0);
        assert_eq!(scale.ticks(), [100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0]);
        assert_eq!(scale.at(100.0), 100.0);
        assert!(scale.at(5000.0).abs() < 1e-9);
        let single = Scale::logarithmic(100.0, 100.0, 0.0, 1.0);
        assert!(single.at(100.0).is_finite());
    }
}
