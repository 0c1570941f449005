//! Parts of HTTP to backends that do not depend on the version.
//!
//! `attempt` is one request to one backend, with the settings of its route. `reply_head` passes
//! reply heads on, and `rewrite` rewrites redirects and cookies in them. `prefix` has the fields that
//! change with a prefix of the path. `variables` is the head for our own host
//! of Rack applications, `scope_line` the one for our own host of ASGI applications.

pub mod attempt;
pub mod prefix;
pub mod reply_head;
pub mod rewrite;
pub mod scope_line;
pub mod variables;
