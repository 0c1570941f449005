//! Lists the keys of a site or route that come from other tables, for `forebay explain`.

use super::Context;
use crate::merge::Filled;
use crate::plan::Inherited;

/// The longest value that is shown, in characters.
const LONGEST: usize = 80;

pub(super) fn inherited(context: &Context<'_>, filled: Option<&Vec<Filled>>) -> Vec<Inherited> {
    let sources = context.sources;
    let shown = |Filled { key, table, span }: &Filled| {
        let typed = sources.excerpt(span);
        let cut: String = typed.chars().take(LONGEST).collect();
        Inherited {
            key: key.clone(),
            typed: if cut.len() < typed.len() { format!("{cut}...") } else { cut },
            table: table.clone(),
            line: sources.line(span.start),
            file: sources.included(span.start).map(str::to_owned),
        }
    };
    filled.into_iter().flatten().map(shown).collect()
}
