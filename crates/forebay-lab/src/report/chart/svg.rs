//! Builder of the charts' SVG elements. The builder escapes all text.

use std::fmt::Write;

use minijinja::HtmlEscape;

use super::Screen;

/// SVG element under construction.
pub struct Svg {
    screen: Screen,
    height: f64,
    label: String,
    body: String,
}

/// Point in the chart's own units.
pub type At = (f64, f64);

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
