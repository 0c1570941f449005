//! Translates configurations of nginx, Apache and Caddy into a configuration of Forebay.
//!
//! Each language has a parser and a translator, which fill a `draft::Draft`. The draft is printed
//! as TOML. A line without a translation becomes a [`Note`] with its file, its number and the next
//! step. If a line that restricts access has no translation, its route is closed: Forebay refuses
//! all requests of the route (403). So the new site is never more open than the old one.
//!
//! The crate only reads files: the configuration and the files that it includes. It also checks
//! that the paths in the configuration exist.
#![forbid(unsafe_code)]

mod accept;
mod apache;
mod caddy;
mod complement;
mod directive;
mod draft;
mod expect;
mod files;
mod keys;
mod matcher;
mod network;
mod nginx;
mod pattern;
mod print;
mod refusals;
mod source;
mod template;
mod units;
mod unread;
mod value;

use std::path::Path;

pub use draft::Note;
pub use refusals::{Refusals, refusals};
pub use source::ImportError;

/// The language of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// nginx.
    Nginx,
    /// Apache httpd.
    Apache,
    /// Caddy's Caddyfile.
    Caddy,
}

/// A translated configuration.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The configuration of Forebay, in TOML, with comments.
    pub toml: String,
    /// The lines without a translation, in the order of the files.
    pub notes: Vec<Note>,
}

/// Translates the configuration in `file`. Returns an error if a file cannot be read or parsed.
pub fn import(language: Language, file: &Path) -> Result<Imported, ImportError> {
    let keys = keys::Keys::shared();
    let mut draft = match language {
        Language::Nginx => nginx::translate(file, keys)?,
        Language::Apache => apache::translate(file, keys)?,
        Language::Caddy => caddy::translate(file, keys)?,
    };
    print::reduce(&mut draft);
    accept::accept(&mut draft, keys);
    print::reduce(&mut draft);
    accept::name_sites(&mut draft);
    Ok(print::print(draft, file, keys))
}
