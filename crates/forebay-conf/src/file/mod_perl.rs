//! The tables that only an application of kind `mod-perl` has, as the user types them.

use std::collections::BTreeMap;

use forebay_conf_derive::Table;

use crate::key::{At, OneOrMany};
use crate::plan::Satisfy;

/// Handlers of the phases of a request, and of the life of a process.
#[derive(Debug, Default, Table)]
pub struct Phases {
    /// PerlPostReadRequestHandler: before everything else.
    pub post_read_request: Option<At<OneOrMany<String>>>,
    /// PerlTransHandler: turns the path into a file name.
    pub trans: Option<At<OneOrMany<String>>>,
    /// PerlMapToStorageHandler: looks the file up.
    pub map_to_storage: Option<At<OneOrMany<String>>>,
    /// PerlHeaderParserHandler, and PerlInitHandler of a directory or location.
    pub header_parser: Option<At<OneOrMany<String>>>,
    /// PerlAccessHandler: decides by facts other than the user.
    pub access: Option<At<OneOrMany<String>>>,
    /// PerlAuthenHandler: finds out who the user is. Runs only with `auth.require`.
    pub authen: Option<At<OneOrMany<String>>>,
    /// PerlAuthzHandler: decides whether this user may. Runs only with `auth.require`.
    pub authz: Option<At<OneOrMany<String>>>,
    /// PerlTypeHandler: sets the type of the content.
    #[key(name = "type")]
    pub type_: Option<At<OneOrMany<String>>>,
    /// PerlFixupHandler: the last phase before the response.
    pub fixup: Option<At<OneOrMany<String>>>,
    /// PerlInputFilterHandler: changes the body before the handler reads it.
    pub input_filter: Option<At<OneOrMany<String>>>,
    /// PerlOutputFilterHandler: changes what the handler, or a file, answers.
    pub output_filter: Option<At<OneOrMany<String>>>,
    /// PerlLogHandler: after the response.
    pub log: Option<At<OneOrMany<String>>>,
    /// PerlCleanupHandler: after the log.
    pub cleanup: Option<At<OneOrMany<String>>>,
    /// PerlChildInitHandler: once in each process, before its first request.
    pub child_init: Option<At<OneOrMany<String>>>,
    /// PerlChildExitHandler: once in each process, at its end.
    pub child_exit: Option<At<OneOrMany<String>>>,
}

impl Phases {
    /// Returns the directive of mod_perl for each phase that has handlers, and the handlers.
    pub fn all(&self) -> Vec<(&'static str, &At<OneOrMany<String>>)> {
        let phases = [
            ("PerlPostReadRequestHandler", &self.post_read_request),
            ("PerlTransHandler", &self.trans),
            ("PerlMapToStorageHandler", &self.map_to_storage),
            ("PerlHeaderParserHandler", &self.header_parser),
            ("PerlAccessHandler", &self.access),
            ("PerlAuthenHandler", &self.authen),
            ("PerlAuthzHandler", &self.authz),
            ("PerlTypeHandler", &self.type_),
            ("PerlFixupHandler", &self.fixup),
            ("PerlInputFilterHandler", &self.input_filter),
            ("PerlOutputFilterHandler", &self.output_filter),
            ("PerlLogHandler", &self.log),
            ("PerlCleanupHandler", &self.cleanup),
            ("PerlChildInitHandler", &self.child_init),
            ("PerlChildExitHandler", &self.child_exit),
        ];
        phases.into_iter().filter_map(|(name, typed)| Some((name, typed.as_ref()?))).collect()
    }
}

/// What handlers of the phases `authen` and `authz` find as AuthType, AuthName and Require.
#[derive(Debug, Default, Table)]
pub struct PerlAuth {
    /// AuthType, such as "Basic" or the name of a module. Default: none.
    #[key(name = "type")]
    pub type_: Option<At<String>>,
    /// AuthName: the realm. Default: none.
    pub name: Option<At<String>>,
    /// Require: who may, such as "valid-user" or ["user anna", "group staff"]. Default: nobody has
    /// to log in; the phases authen and authz do not run.
    pub require: Option<At<OneOrMany<String>>>,
    /// PerlAddAuthzProvider: handlers by the first word of the lines of `require` that they decide.
    #[key(default)]
    pub providers: BTreeMap<String, At<String>>,
    /// PerlAddAuthnProvider and AuthBasicProvider: handlers that check passwords, asked in this
    /// order until one knows the user. Default: none; only the phase authen checks passwords.
    pub passwords: Option<At<OneOrMany<String>>>,
    /// Satisfy: with "any", who passes the handlers of the phase `access` needs no login. Default:
    /// none; then both decide, as with "all".
    pub satisfy: Option<At<Satisfy>>,
}
