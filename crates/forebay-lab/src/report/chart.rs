//! Charts as inline SVG. Colours are CSS variables of the page and follow its theme. A label
//! identifies each series, so that readers do not depend on colour.

mod course;
mod flame;
mod latency;
mod rate;
mod svg;
mod timeline;

pub use course::{cpu, memory};
pub use flame::{Unit, flame, flame_difference};
pub use latency::latency;

pub use rate::rate;
pub use timeline::{HeatMap, TimeLine, distribution, heat_map, over_time};

use super::label::labels as short_names;
use svg::Scale;
use svg::Svg;

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
