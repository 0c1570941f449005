//! Parsers of keys that occur in several tables: commands and optional durations.

use std::time::Duration;

use toml::Spanned;

use super::Problem;
use super::parse::Reader;

impl Reader<'_> {
    pub(super) fn command(
        &self,
        typed: Option<Spanned<Vec<String>>>,
    ) -> Result<Vec<String>, Problem> {
        let Some(typed) = typed else { return Ok(Vec::new()) };
        if typed.get_ref().first().is_none_or(String::is_empty) {
            let help = "give it as a list: [\"sh\", \"-c\", \"...\"]; leave the key out for none";
            return Err(self.at(typed.span(), "an empty command", help));
        }
        Ok(typed.into_inner())
    }

    pub(super) fn optional_duration(
        &self,
        typed: &Option<Spanned<String>>,
    ) -> Result<Option<Duration>, Problem> {
        typed.as_ref().map(|typed| self.time(typed.get_ref(), typed.span())).transpose()
    }
}
