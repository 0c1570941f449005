//! Flame graphs. Each call level is a row of boxes, with callers below the functions that they
//! call. The width of a box is its CPU time.
//!
//! The design follows Brendan Gregg, "The Flame Graph", Communications of the ACM 59(6), 2016. In a
//! graph of two profiles, each box has the larger of its two widths. Functions that one of the
//! profiles lacks therefore stay visible.

use super::{Screen, Svg, both};
use crate::number;
use crate::profile::{KERNEL, Stacks};

const ROW: f64 = 17.0;
/// Width of a character in a label, for a monospaced font of 12 pixels.
const CHARACTER: f64 = 7.3;
/// Minimum width of a box: about a tenth of a percent of the chart's width. Narrower boxes are not
/// drawn.
const NARROWEST: f64 = 1.0;
/// Number of standard errors below which a difference may be due to chance. Counts of samples have
/// a Poisson distribution.
const CERTAIN: f64 = 2.0;

/// Conversion from samples to the unit of a graph, such as microseconds per request.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Value of one sample: in this profile, and in the profile merged with it.
    pub worth: [f64; 2],
    /// Unit, printed after a figure.
    pub name: &'static str,
}

/// Draws the graph of a profile. Returns `None` if the graph would be empty.
pub fn flame(stacks: &Stacks, unit: Unit, label: &str) -> Option<String> {
    let unit = Unit { worth: [unit.worth[0], 0.0], ..unit };
    both(|screen| Graph::new(stacks, unit, screen)?.draw(label, false))
}

/// Draws the graph of two profiles merged with [`beside`](Stacks::beside). Colours show the change.
/// Returns `None` if the graph would be empty.
pub fn flame_difference(stacks: &Stacks, unit: Unit, label: &str) -> Option<String> {
    both(|screen| Graph::new(stacks, unit, screen)?.draw(label, true))
}

/// Boxes and their positions.
struct Graph<'a> {
    stacks: &'a Stacks,
    unit: Unit,
    screen: Screen,
    totals: Vec<[u64; 2]>,
    /// Position of each node's box; `None` if the box is too narrow.
    boxes: Vec<Option<BoxPosition>>,
    levels: usize,
}

#[derive(Clone, Copy)]
struct BoxPosition {
    left: f64,
    width: f64,
    level: usize,
}

impl<'a> Graph<'a> {
    fn new(stacks: &'a Stacks, unit: Unit, screen: Screen) -> Option<Self> {
        let widths = widths(stacks, unit);
        let all = Some(widths[0]).filter(|&all| all > 0.0)?;
        let margin = 4.0;
        let scale = (screen.width() - 2.0 * margin) / all;
        let nodes = stacks.nodes();
        let drawn = widest(&widths, NARROWEST / scale, most(screen));
        let mut callees: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        for &index in drawn.iter().filter(|&&index| index > 0) {
            callees[nodes[index].caller].push(index);
        }
        let mut boxes = vec![None; nodes.len()];
        boxes[0] = Some(BoxPosition { left: margin, width: all * scale, level: 0 });
        let mut levels = 1;
        // Callers precede their callees in `nodes`.
        for caller in 0..nodes.len() {
            let Some(BoxPosition { mut left, level, .. }) = boxes[caller] else { continue };
            levels = levels.max(level + 1);
            callees[caller].sort_unstable_by_key(|&index| stacks.name(index));
            for &index in &callees[caller] {
                let width = widths[index] * scale;
                boxes[index] = Some(BoxPosition { left, width, level: level + 1 });
                left += width;
            }
        }
        Some(Self { stacks, unit, screen, totals: stacks.totals(), boxes, levels })
    }

    fn draw(&self, label: &str, is_difference: bool) -> Option<String> {
        let height = ROW * self.levels as f64 + 4.0;
        let mut svg = Svg::new(self.screen, height, label);
        let drawn = self.boxes.iter().enumerate();
        let mut drawn: Vec<(usize, BoxPosition)> =
            drawn.filter_map(|(index, place)| Some((index, (*place)?))).collect();
        // The order of the input must not affect the drawing.
        drawn.sort_by(|(_, a), (_, b)| a.level.cmp(&b.level).then(a.left.total_cmp(&b.left)));
        for (index, place) in drawn {
            let (name, is_kernel) = self.name(index);
            let class = match (is_difference, is_kernel) {
                (true, _) => self.change(index),
                (false, true) => "kernel",
                (false, false) => "user",
            };
            let tooltip =
                format!("{}: {}", self.full_name(index), self.figures(index, is_difference));
            let top = height - 2.0 - ROW * (place.level + 1) as f64;
            svg.frame(
                class,
                (place.left, top),
                (place.width, ROW),
                &tooltip,
                &fit(name, place.width),
            );
        }
        Some(svg.finish())
    }

    fn name(&self, index: usize) -> (&str, bool) {
        if index == 0 {
            return ("all", false);
        }
        let name = self.stacks.name(index);
        name.strip_suffix(KERNEL).map_or((name, false), |name| (name, true))
    }

    fn full_name(&self, index: usize) -> String {
        let (name, is_kernel) = self.name(index);
        format!("{name}{}", if is_kernel { " (kernel)" } else { "" })
    }

    fn figures(&self, index: usize, is_difference: bool) -> String {
        let [ours, theirs] = self.worth(index);
        let unit = self.unit.name;
        if is_difference {
            let (ours_text, theirs_text) = (number::significant(ours), number::significant(theirs));
            let by = number::significant((ours - theirs).abs());
            let sign = if ours < theirs { "\u{2212}" } else { "+" };
            return format!("{ours_text} {unit}, baseline {theirs_text}, {sign}{by}");
        }
        let share = self.totals[index][0] as f64 / self.totals[0][0].max(1) as f64 * 100.0;
        if unit == "%" {
            return format!("{share:.1} %");
        }
        format!("{share:.1} %, {} {unit}", number::significant(ours))
    }

    fn worth(&self, index: usize) -> [f64; 2] {
        [0, 1].map(|side| self.totals[index][side] as f64 * self.unit.worth[side])
    }

    /// Returns the CSS class of a box. The class depends on the change of the box's time, as a
    /// share of the reference's total time. The class is `same` if the change may be chance.
    fn change(&self, index: usize) -> &'static str {
        let [ours, theirs] = self.worth(index);
        let variance =
            |side: usize| self.totals[index][side] as f64 * self.unit.worth[side].powi(2);
        let change = ours - theirs;
        if change.abs() < CERTAIN * (variance(0) + variance(1)).sqrt() {
            return "same";
        }
        let share = change / self.worth(0)[1].max(f64::MIN_POSITIVE);
        match share {
            share if share > 0.05 => "more3",
            share if share > 0.01 => "more2",
            share if share > 0.0 => "more1",
            share if share > -0.01 => "less1",
            share if share > -0.05 => "less2",
            _ => "less3",
        }
    }
}

/// Returns the maximum number of boxes of a drawing. Without this limit, a program with very many
/// functions would make the page too large for browsers.
fn most(screen: Screen) -> usize {
    match screen {
        Screen::Wide => 3000,
        Screen::Narrow => 1000,
    }
}

/// Returns the widths of all nodes. A node's own time is the time in its function, without the
/// functions that it calls. If two profiles are merged, the longer own time counts. The width of a
/// node is its own time plus the widths of all called functions.
fn widths(stacks: &Stacks, unit: Unit) -> Vec<f64> {
    let nodes = stacks.nodes();
    let own = |side: usize, index: usize| nodes[index].own[side] as f64 * unit.worth[side];
    let mut widths: Vec<f64> =
        (0..nodes.len()).map(|index| own(0, index).max(own(1, index))).collect();
    for index in (1..nodes.len()).rev() {
        widths[nodes[index].caller] += widths[index];
    }
    widths
}

/// Returns at most `most` nodes, the widest first, and only nodes that are at least `narrowest`
/// wide. The callers of a returned node are also returned, because a caller is at least as wide as
/// each function that it calls.
fn widest(widths: &[f64], narrowest: f64, most: usize) -> Vec<usize> {
    let mut found: Vec<usize> =
        (0..widths.len()).filter(|&index| index == 0 || widths[index] >= narrowest).collect();
    found.sort_by(|&a, &b| widths[b].total_cmp(&widths[a]).then(a.cmp(&b)));
    found.truncate(most);
    found
}

/// Shortens a name to the width of its box. Returns an empty name if fewer than four characters
/// fit.
fn fit(name: &str, width: f64) -> String {
    let cost = |c: char| if c.is_ascii() { 1 } else { 2 };
    let room = ((width - 5.0) / CHARACTER).max(0.0) as usize;
    if name.chars().map(cost).sum::<usize>() <= room {
        return name.to_owned();
    }
    if room < 4 {
        return String::new();
    }
    let mut left = room - 2;
    let kept: String = name
        .chars()
        .take_while(|&c| {
            let has_room = cost(c) <= left;
            left -= cost(c).min(left);
            has_room
        })
        .collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Unit = Unit { worth: [1.0, 0.5], name: "µs/request" };

    fn stacks(text: &str) -> Stacks {
        Stacks::read_folded(text.as_bytes()).unwrap()
    }

    #[test]
    fn boxes_stand_on_their_callers_and_within_them() {
        let stacks = stacks("main;b;c 30\nmain;a 10\nmain 20\nother 40\n");
        let unit = Unit { worth: [1.0, 0.0], ..TIME };
        let graph = Graph::new(&stacks, unit, Screen::Wide).unwrap();
        let place = |name: &str| {
            let index = (0..stacks.nodes().len()).find(|&index| stacks.name(index) == name);
            graph.boxes[index.unwrap()].unwrap()
        };
        let (main, a, b, c) = (place("main"), place("a"), place("b"), place("c"));
        assert_eq!((main.level, a.level, b.level, c.level, graph.levels), (1, 2, 2, 3, 4));
        assert!((main.width - 932.0 * 0.6).abs() < 1e-9);
        assert_eq!((a.left, b.left, c.left), (main.left, main.left + a.width, b.left));
        assert!((place("other").left - (main.left + main.width)).abs() < 1e-9);
    }

    #[test]
    fn vanished_frames_keep_their_place_and_noise_gets_no_colour() {
        // A sample counts 1 in the first profile and 0.5 in the second.
        let ours = stacks("main;new 400\nmain;same 1000\n");
        let both = ours.beside(&stacks("main;gone 900\nmain;same 2010\n"));
        let graph = Graph::new(&both, TIME, Screen::Wide).unwrap();
        let of = |name: &str| {
            let index = (0..both.nodes().len()).find(|&index| both.name(index) == name).unwrap();
            (graph.change(index), graph.figures(index, true), graph.boxes[index].is_some())
        };
        let gone = "0.00 µs/request, baseline 450, \u{2212}450".to_owned();
        assert_eq!(of("gone"), ("less3", gone, true));
        assert_eq!((of("new").0, of("same").0), ("more3", "same"));
    }

    #[test]
    fn names_of_any_kind_make_well_formed_drawings() {
        let text = "main;<script>alert(1)</script>;\"&'>: 50\nmain;日本語日本語日本語;f_[k] 50\n";
        let stacks = stacks(text);
        let drawings = [
            flame(&stacks, TIME, "<&\">").unwrap(),
            flame_difference(&stacks.beside(&stacks), TIME, "x").unwrap(),
        ];
        for drawing in drawings {
            let page = format!("<p>{drawing}</p>");
            let document = roxmltree::Document::parse(&page).unwrap();
            let texts: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
            assert!(texts.contains(&"<script>alert(1)</script>"), "{texts:?}");
            assert!(texts.iter().any(|text| text.starts_with("f (kernel): ")), "{texts:?}");
        }
        assert!(flame(&Stacks::default(), TIME, "x").is_none());
    }

    #[test]
    fn a_page_stays_small_whatever_is_sampled() {
        let mut stacks = Stacks::default();
        for number in 0..50_000 {
            stacks.add(["main", &format!("f{}", number % 300), &number.to_string()], 1);
        }
        let drawing = flame(&stacks, TIME, "x").unwrap();
        assert!(drawing.matches("<rect").count() <= 4000 && drawing.len() < 2_000_000);
    }

    #[test]
    fn labels_fit() {
        for (name, width, label) in
            [("tcp_ack", 60.0, "tcp_ack"), ("tcp_ack", 50.0, "tcp_…"), ("tcp_ack", 30.0, "")]
        {
            assert_eq!(fit(name, width), label);
        }
        assert_eq!(fit("日本語日本語", 50.0), "日本…");
    }
}
