//! Forebay's own page of a listing.

use std::fmt::Write;

use super::entries::{Column, Entries};
use super::text::{escape, shown_size, shown_time};

/// Returns the page.
pub fn html(found: &Entries<'_>) -> String {
    let title = escape(found.path);
    let mut page = format!(
        "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Index of {title}</title>\n\
         <style>:root{{color-scheme:light dark}}body{{font-family:sans-serif}}\
         td,th{{padding:0 1em 0 0;text-align:left}}td+td,th+th{{text-align:right}}</style>\n\
         <h1>Index of {title}</h1>\n<table>\n<tr>"
    );
    for (column, _, text) in Column::ALL {
        let mark = match (column == found.order.by, found.order.is_descending) {
            (false, _) => "",
            (true, false) => " ↑",
            (true, true) => " ↓",
        };
        let link = found.sort_link(column);
        let _ = write!(page, "<th><a href=\"{link}\">{text}</a>{mark}</th>");
    }
    page.push_str("</tr>\n");
    if found.path != b"/" {
        page.push_str("<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n");
    }
    for entry in &found.entries {
        let size = if entry.is_directory { String::new() } else { shown_size(entry.size) };
        let _ = writeln!(
            page,
            "<tr><td><a href=\"{}\">{}</a></td><td>{size}</td><td>{}</td></tr>",
            entry.link(),
            escape(&entry.name),
            entry.modified.map(shown_time).unwrap_or_default(),
        );
    }
    page.push_str("</table>\n");
    if found.is_incomplete {
        let _ = writeln!(page, "<p>{}", found.note());
    }
    page
}
