//! A listing from a template of the administrator.

use forebay_conf::{ListingPart, ListingTemplate, ListingValue};

use super::entries::{Column, Entries, ListingEntry};
use super::text::{escape, shown_size, shown_time};

/// Returns the page. Values are appended once and never parsed, so that a name cannot contain a
/// placeholder.
pub fn fill(template: &ListingTemplate, found: &Entries<'_>) -> String {
    let mut page = String::new();
    push(&mut page, &template.before, found, None);
    for entry in &found.entries {
        push(&mut page, &template.entry, found, Some(entry));
    }
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

/// Returns the value; `None` for a value of an entry.
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
