//! Parts of HTTP to backends that do not depend on the version.
//!
//! `attempt` is one request to one backend, with the settings of its route. `reply_head` passes
//! reply heads on, and `rewrite` rewrites redirects and cookies in them. If a route removes a
//! prefix from the path, `prefix` changes the fields that depend on the prefix. `variables` writes
//! the head for `hosts/rack.rb`, which runs Rack applications. `scope_line` writes the head for
//! `hosts/asgi.py`, which runs ASGI applications.

pub mod attempt;
pub mod prefix;
pub mod reply_head;
pub mod rewrite;
pub mod scope_line;
pub mod variables;
