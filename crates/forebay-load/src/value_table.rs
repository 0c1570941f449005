//! Table of values for requests, from a CSV file (RFC 4180).

use std::ops::Range;

/// Table of values for placeholders in requests.
#[derive(Debug, PartialEq)]
pub struct ValueTable {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl ValueTable {
    /// Parses a CSV file, whose first row has the names of the columns.
    ///
    /// # Errors
    /// Returns an error message with the number of the row.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut records = records(text.strip_prefix('\u{feff}').unwrap_or(text))?.into_iter();
        let columns = records.next().ok_or("it is empty: the first row has the columns' names")?;
        let columns: Vec<String> = columns.iter().map(|name| name.trim().to_owned()).collect();
        for (index, name) in columns.iter().enumerate() {
            if name.is_empty() || name.contains(['{', '}']) || columns[..index].contains(name) {
                return Err(format!(
                    "column {} has no name of its own in the first row",
                    index + 1
                ));
            }
        }
        let rows: Vec<Vec<String>> = records.collect();
        if rows.is_empty() {
            return Err("it has no row of values after the columns' names".to_owned());
        }
        for (index, row) in rows.iter().enumerate() {
            if row.len() != columns.len() {
                let (has, needed) = (row.len(), columns.len());
                return Err(format!("row {}: it has {has} values, not {needed}", index + 2));
            }
        }
        Ok(Self { columns, rows })
    }

    /// Returns row number `place`, counted from 0. After the last row, the first row follows again.
    pub(crate) fn row(&self, place: u64) -> &[String] {
        &self.rows[(place % self.rows.len() as u64) as usize]
    }

    /// Returns the longest value of each column, as a row.
    pub(crate) fn longest(&self) -> Vec<String> {
        let longest =
            |column: usize| self.rows.iter().map(|row| &row[column]).max_by_key(|v| v.len());
        (0..self.columns.len()).filter_map(longest).cloned().collect()
    }

    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    pub(crate) fn name(&self, column: usize) -> &str {
        &self.columns[column]
    }

    /// Returns the names of all columns, for a message.
    pub(crate) fn names(&self) -> String {
        self.columns.join(", ")
    }

    /// Returns the number of the first row whose value in `column` is `wrong`. Rows are counted as
    /// in the file, so the first row of values has the number 2. Returns `None` if no value is
    /// wrong.
    pub(crate) fn find(&self, column: usize, wrong: impl Fn(&str) -> bool) -> Option<usize> {
        self.rows.iter().position(|row| wrong(&row[column])).map(|row| row + 2)
    }
}

/// Returns true if `text` may have a placeholder. With a table, any opening brace may begin a
/// placeholder.
pub(crate) fn has_placeholder(text: &[u8], table: Option<&ValueTable>) -> bool {
    let contains = |part: &[u8]| memchr::memmem::find(text, part).is_some();
    contains(b"{n}") || contains(b"{random:") || table.is_some() && contains(b"{")
}

/// Divides a body at the ranges in `fixed`, which are sent unchanged. Each returned pair contains a
/// text that may have placeholders, and the range after this text. In the last pair, the range is
/// empty.
pub(crate) fn divided<'a>(body: &'a [u8], fixed: &[Range<usize>]) -> Vec<(&'a [u8], &'a [u8])> {
    let (mut parts, mut at) = (Vec::new(), 0);
    for range in fixed {
        let start = range.start.clamp(at, body.len());
        let end = range.end.clamp(start, body.len());
        parts.push((&body[at..start], &body[start..end]));
        at = end;
    }
    parts.push((&body[at..], &[]));
    parts
}

/// Splits a file into records of values. Empty lines are no records.
fn records(text: &str) -> Result<Vec<Vec<String>>, String> {
    let mut records = Vec::new();
    let mut record = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (value, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_value(quoted)
                .ok_or_else(|| format!("row {}: a quote is not closed", records.len() + 1))?,
            None => {
                let end = rest.find([',', '\n']).unwrap_or(rest.len());
                (rest[..end].trim_end_matches('\r').to_owned(), &rest[end..])
            }
        };
        let is_empty_line = record.is_empty() && value.is_empty() && !after.starts_with(',');
        if !is_empty_line || rest.starts_with('"') {
            record.push(value);
        }
        let after_break = after.strip_prefix("\r\n").or_else(|| after.strip_prefix('\n'));
        rest = match (after.strip_prefix(','), after_break) {
            (Some(next), _) => {
                if next.is_empty() {
                    record.push(String::new());
                }
                next
            }
            (_, Some(next)) => {
                if !record.is_empty() {
                    records.push(std::mem::take(&mut record));
                }
                next
            }
            _ if after.is_empty() => after,
            _ => {
                return Err(format!("row {}: text follows a closing quote", records.len() + 1));
            }
        };
    }
    if !record.is_empty() {
        records.push(record);
    }
    Ok(records)
}

/// Returns the value up to the closing quote, and the text after this quote. Returns `None` if the
/// closing quote is missing.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"')?;
        value.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(next) => {
                value.push('"');
                rest = next;
            }
            None => return Some((value, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_commas_and_line_breaks() {
        let text = "\u{feff}a, b\r\n1,2\r\n\n\"x,\"\"y\"\"\nz\",\n\"\",last";
        let table = ValueTable::parse(text).unwrap();
        assert_eq!(table.columns, ["a", "b"]);
        assert_eq!(table.rows, [["1", "2"], ["x,\"y\"\nz", ""], ["", "last"]]);
        assert_eq!(table.row(4), ["x,\"y\"\nz", ""]);
    }

    #[test]
    fn mistakes_are_named_with_their_row() {
        for (text, why) in [
            ("", "it is empty"),
            ("a,b\n", "no row of values"),
            ("a,\n1,2", "column 2 has no name"),
            ("a,a\n1,2", "column 2 has no name of its own"),
            ("{n}\n1", "column 1"),
            ("a,b\n1,2\n3", "row 3: it has 1 values, not 2"),
            ("a\n\"x", "row 2: a quote is not closed"),
            ("a\n\"x\"y", "row 2: text follows"),
        ] {
            let error = ValueTable::parse(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
