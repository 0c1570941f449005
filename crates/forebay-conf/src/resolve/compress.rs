//! Resolves `compress`: the replies to compress, and the codings.

use super::Resolution;
use super::value::{size, text, within};
use crate::error::Problem;
use crate::file::{self, At, BoolOr};
use crate::plan::{ALGORITHMS, Algorithm, Compress, ContentCoding, MIN_SIZE, MediaPattern, TYPES};

/// Checks `compress`. Returns `None` if replies are not compressed.
pub(super) fn compress(typed: &Option<At<BoolOr<file::Compress>>>) -> Resolution<Option<Compress>> {
    let default = file::Compress::default();
    let table = match typed {
        None | Some(At { value: BoolOr::Bool(false), .. }) => return Ok(None),
        Some(At { value: BoolOr::Bool(true), .. }) => &default,
        Some(At { value: BoolOr::Table(table), .. }) => table,
    };
    let codings = codings(table)?;
    let mut algorithms = Vec::new();
    for &coding in &codings {
        algorithms.push(Algorithm { coding, level: level(table, coding)? });
    }
    for coding in ALGORITHMS.into_iter().filter(|coding| !codings.contains(coding)) {
        if let Some(at) = typed_level(table, coding) {
            let message = format!("a level of {} has no effect", coding.coding());
            return Err(Problem::new(&at.span, message)
                .help("it is not among `algorithms`: add it there, or leave the level out"));
        }
    }
    let min_size = size(&table.min_size)?.unwrap_or(MIN_SIZE);
    Ok(Some(Compress { algorithms, types: types(table)?, min_size }))
}

/// Returns the listed algorithms, or the default ones. A repeated algorithm is an error.
fn codings(table: &file::Compress) -> Resolution<Vec<ContentCoding>> {
    let Some(list) = &table.algorithms else { return Ok(ALGORITHMS.to_vec()) };
    let mut found = Vec::new();
    for at in &list.value {
        let coding = match at.value {
            file::Coding::Zstd => ContentCoding::Zstandard,
            file::Coding::Br => ContentCoding::Brotli,
            file::Coding::Gzip => ContentCoding::Gzip,
        };
        if found.contains(&coding) {
            let message = format!("\"{}\" is given twice", coding.coding());
            return Err(Problem::new(&at.span, message).help("leave one out"));
        }
        found.push(coding);
    }
    if found.is_empty() {
        return Err(Problem::new(&list.span, "this list is empty, so that nothing is compressed")
            .help("name \"zstd\", \"br\" or \"gzip\", or say compress = false"));
    }
    Ok(found)
}

fn level(table: &file::Compress, coding: ContentCoding) -> Resolution<u32> {
    match typed_level(table, coding) {
        Some(at) => within(at, Algorithm::levels(coding)),
        None => Ok(Algorithm::default_level(coding)),
    }
}

fn typed_level(table: &file::Compress, coding: ContentCoding) -> Option<&At<u32>> {
    let levels = table.levels.as_ref()?;
    match coding {
        ContentCoding::Zstandard => levels.zstd.as_ref(),
        ContentCoding::Brotli => levels.br.as_ref(),
        ContentCoding::Gzip => levels.gzip.as_ref(),
    }
}

fn types(table: &file::Compress) -> Resolution<Vec<MediaPattern>> {
    let Some(list) = &table.types else {
        return Ok(TYPES.iter().filter_map(|text| MediaPattern::parse(text)).collect());
    };
    if list.items().is_empty() {
        return Err(Problem::new(&list.span, "this list is empty, so that nothing is compressed")
            .help("name media types such as \"text/*\", or leave the key out"));
    }
    list.items().iter().map(media_pattern).collect()
}

pub(super) fn media_pattern(typed: &At<&String>) -> Resolution<MediaPattern> {
    let text = text(typed)?;
    MediaPattern::parse(text).ok_or_else(|| {
        Problem::new(&typed.span, format!("\"{text}\" is not a media type"))
            .help("write one such as \"text/html\", or several: \"text/*\", \"*+json\"")
    })
}
