//! Charts as inline SVG. Colours are CSS variables of the page, so that they follow its theme;
//! series are labelled where they end, so that colour is never the only key.

mod course;
mod flame;
mod latency;
mod rate;
mod scale;
mod svg;

pub use course::{cpu, memory};
pub use flame::{Unit, flame, flame_difference};
pub use latency::latency;

pub use rate::rate;

use scale::Scale;
use svg::Svg;

/// What a chart is drawn for: the page has it twice, and shows the one that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Screen {
    /// Names stand beside the lines.
    Wide,
    /// A telephone, of 400 px or so: names stand above or below, where they have room.
    Narrow,
}

impl Screen {
    /// Width of a chart in its own units; the page scales it.
    fn width(self) -> f64 {
        match self {
            Self::Wide => 940.0,
            Self::Narrow => 380.0,
        }
    }

    /// The class of the element, by which the page shows or hides it.
    fn class(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }

    /// About how many ticks an axis across has.
    fn steps(self) -> usize {
        match self {
            Self::Wide => 5,
            Self::Narrow => 3,
        }
    }

    /// The area of a chart of lines, with room for what is beside it.
    fn area(self, bottom: f64) -> Area {
        match self {
            Self::Wide => Area { left: 78.0, right: 630.0, top: 10.0, bottom },
            Self::Narrow => Area { left: 66.0, right: 364.0, top: 10.0, bottom },
        }
    }
}

/// A chart for each kind of screen.
fn both(draw: impl Fn(Screen) -> Option<String>) -> Option<String> {
    Some(draw(Screen::Wide)? + &draw(Screen::Narrow)?)
}

/// What fits beside an axis; longer names are cut on a chart (the table has them whole).
const LONGEST_NAME: usize = 28;
/// What fits with a figure at the end of a line.
const LONGEST_END: usize = 24;

/// The area between the axes.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// The CSS colour of the series at `index`; the baseline is neutral.
fn colour(index: usize, baseline: bool) -> String {
    if baseline { "var(--base)".to_owned() } else { format!("var(--s{})", index % 7) }
}

/// Colours in the order of the rows: the baseline takes none from the others.
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

fn short(name: &str, longest: usize) -> String {
    if name.chars().count() <= longest {
        return name.to_owned();
    }
    let kept: String = name.chars().take(longest - 1).collect();
    format!("{}…", kept.trim_end())
}

/// Horizontal grid lines with their labels on the left.
fn value_axis(svg: &mut Svg, area: Area, scale: &Scale, label: impl Fn(f64) -> String) {
    for &tick in scale.ticks() {
        let y = scale.at(tick);
        svg.line("grid", (area.left, y), (area.right, y));
        svg.text("tick end", (area.left - 8.0, y + 4.0), &label(tick));
    }
}

/// A series' name and last figure at its end.
struct EndLabel<'a> {
    y: f64,
    name: &'a str,
    figure: String,
    colour: String,
}

/// Writes names beside the ends of their lines, moved apart where they would overlap; on a narrow
/// screen one below the other under the axis.
fn end_labels(svg: &mut Svg, screen: Screen, area: Area, mut labels: Vec<EndLabel<'_>>) {
    const LINE: f64 = 17.0;
    if screen == Screen::Narrow {
        for label in &labels {
            let text = format!("{}  {}", short(label.name, LONGEST_NAME), label.figure);
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
        let text = format!("{}  {}", short(label.name, LONGEST_END), label.figure);
        svg.coloured_text("name", (area.right + 14.0, label.y + 4.0), &text, &label.colour);
    }
}
