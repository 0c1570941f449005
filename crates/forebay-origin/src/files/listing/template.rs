//! A listing from a template of the administrator.

use forebay_conf::{ListingPart, ListingTemplate, ListingValue};

use super::entries::{Column, Entries, ListingEntry};
use super::text::{escape, shown_size, shown_time};

/// Size in bytes at which no further entry is added to a page, because a page is built in memory.
const LARGEST: usize = 8 << 20;

/// Returns the page. Placeholders in values, for example in the name of a file, are not replaced.
/// If the entries exceed [`LARGEST`], leaves out the rest, and sets `is_incomplete`.
pub fn fill(template: &ListingTemplate, found: &mut Entries<'_>) -> String {
    let mut entries = String::new();
    for entry in &found.entries {
        if entries.len() >= LARGEST {
            found.is_incomplete = true;
            break;
        }
        push(&mut entries, &template.entry, found, Some(entry));
    }
    let mut page = String::new();
    push(&mut page, &template.before, found, None);
    page.push_str(&entries);
    push(&mut page, &template.after, found, None);
    page
}

fn push(
    page: &mut String,
    parts: &[ListingPart],
    found: &Entries<'_>,
    entry: Option<&ListingEntry>,
) {
    for part in parts {
        match part {
            ListingPart::Text(text) => page.push_str(text),
            ListingPart::Value(value) => match (of_directory(*value, found), entry) {
                (Some(text), _) => page.push_str(&text),
                (None, Some(entry)) => page.push_str(&of_entry(*value, entry)),
                (None, None) => {}
            },
        }
    }
}

/// Returns the text of a placeholder that is about the whole directory, such as its path. Returns
/// `None` for a placeholder that is about one entry, such as its size.
fn of_directory(value: ListingValue, found: &Entries<'_>) -> Option<String> {
    let order = found.order;
    Some(match value {
        ListingValue::Path => escape(found.path),
        ListingValue::Parent => found.parent().into(),
        ListingValue::SortName => found.sort_link(Column::Name),
        ListingValue::SortSize => found.sort_link(Column::Size),
        ListingValue::SortTime => found.sort_link(Column::Time),
        ListingValue::Sort => {
            let column = Column::ALL.iter().find(|(column, ..)| *column == order.by);
            column.map_or("name", |(_, name, _)| name).into()
        }
        ListingValue::Order => if order.is_descending { "desc" } else { "asc" }.into(),
        ListingValue::Note => found.note().into(),
        _ => return None,
    })
}

fn of_entry(value: ListingValue, entry: &ListingEntry) -> String {
    match value {
        ListingValue::Name => escape(&entry.name),
        ListingValue::Href => entry.link(),
        ListingValue::Size | ListingValue::Bytes if entry.is_directory => String::new(),
        ListingValue::Size => shown_size(entry.size),
        ListingValue::Bytes => entry.size.to_string(),
        ListingValue::Modified => entry.modified.map(shown_time).unwrap_or_default(),
        ListingValue::Kind => entry.kind().into(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::Order;
    use super::*;

    #[test]
    fn a_page_with_large_entries_ends_and_says_so() {
        let entry = |number: usize| ListingEntry {
            name: format!("{number:0255}").into_bytes(),
            is_directory: false,
            size: 1,
            modified: None,
        };
        let mut found = Entries {
            path: b"/",
            entries: (0..10_000).map(entry).collect(),
            order: Order::of_query(b""),
            is_incomplete: false,
        };
        let value = ListingPart::Value;
        let template = |size: usize| ListingTemplate {
            file: "list.html".into(),
            before: vec![value(ListingValue::Note)],
            entry: vec![ListingPart::Text("x".repeat(size)), value(ListingValue::Href)],
            after: vec![ListingPart::Text("</ul>".into())],
        };
        let page = fill(&template(1), &mut found);
        assert!(page.starts_with("x./000") && page.ends_with("9999</ul>"));
        let page = fill(&template(8000), &mut found);
        assert!(page.len() < LARGEST + 10_000, "{}", page.len());
        assert!(page.starts_with("This directory has more entries") && page.ends_with("</ul>"));
    }
}
