//! The page of one application, and the restart of its processes. Over TCP, a restart requires
//! `admin_token`.

use std::fmt::Write as _;
use std::hint::black_box;

use super::request::{AdminRequest, Method};
use super::{Admin, AdminAnswer, AppStatus, Peer, Status, escape, shell};

impl Admin {
    /// Returns the answer for paths below /apps/. Returns `None` for other paths.
    pub(super) fn answer_for_app(&self, request: &AdminRequest) -> Option<AdminAnswer> {
        let rest = request.path.strip_prefix("/apps/")?;
        let (name, what) = rest.split_once('/').unwrap_or((rest, ""));
        let name = decode_name(name);
        Some(match (&request.method, what) {
            (Method::Get | Method::Head, "") => self.page_of(&name, request),
            (Method::Post, "restart") => self.restart(&name, request),
            (_, "restart") => {
                AdminAnswer::text(405, "POST is answered here\n").with("Allow", "POST")
            }
            (_, "") => AdminAnswer::text(405, "GET and HEAD are answered here\n")
                .with("Allow", "GET, HEAD"),
            _ => AdminAnswer::text(404, "there are /apps/NAME and /apps/NAME/restart\n"),
        })
    }

    fn restart(&self, name: &str, request: &AdminRequest) -> AdminAnswer {
        if let Some(refusal) = self.refuse_token(request, "to restart applications here") {
            return refusal;
        }
        if !self.meters.control.restart(name) {
            return AdminAnswer::text(404, "there is no such application\n");
        }
        if request.accepts_html {
            let page = format!("/apps/{}", encode_name(name));
            return AdminAnswer::text(303, "its processes are replaced\n").with("Location", page);
        }
        AdminAnswer::text(202, "its processes are replaced\n")
    }

    /// Returns the refusal of a request that does not have the right `admin_token`. Returns `None`
    /// if the request is accepted. A request over the Unix socket needs no token, because the
    /// permissions of the socket file decide who may connect.
    pub(super) fn refuse_token(
        &self,
        request: &AdminRequest,
        purpose: &str,
    ) -> Option<AdminAnswer> {
        if matches!(request.peer, Peer::Local(_)) {
            return None;
        }
        let Some(token) = &self.token else {
            let text = format!("give admin_token in [server] {purpose}\n");
            return Some(AdminAnswer::text(403, text));
        };
        let given = if request.bearer.is_empty() { &request.form_token } else { &request.bearer };
        let is_right = is_same(given.as_bytes(), token.as_bytes());
        (!is_right).then(|| AdminAnswer::text(403, "this is not the admin_token of [server]\n"))
    }

    /// The status for the client of `request`. Queries have passwords and tokens of visitors, so only
    /// a client that may change everything sees them.
    pub(super) fn status_for(&self, request: &AdminRequest) -> Status {
        let mut status = self.meters.control.status();
        if self.refuse_token(request, "").is_some() {
            let workers = status.apps.iter_mut().flat_map(|app| &mut app.workers);
            workers.filter_map(|worker| worker.current_request.as_mut()).for_each(hide_query);
        }
        status
    }

    /// Returns the HTML page of an application, or a 404 answer if there is no such application. If
    /// `admin_token` is set, the page has a button to restart the application.
    fn page_of(&self, name: &str, request: &AdminRequest) -> AdminAnswer {
        let apps = self.status_for(request).apps;
        let Some(app) = apps.iter().find(|app| app.name == name) else {
            return AdminAnswer::text(404, "there is no such application\n");
        };
        let mut page = shell::head(name, "");
        page.push_str("<body>\n");
        let _ = writeln!(page, "<h1>{}</h1>", escape(name));
        append_app(&mut page, app);
        // Without a token, show no button. Only clients of the Unix socket may then restart an
        // application, and browsers do not connect to Unix sockets.
        if self.token.is_some() {
            let _ = writeln!(
                page,
                "<form method=\"post\" action=\"/apps/{}/restart\"><label>Token \
                 <input type=\"password\" name=\"token\" required></label> \
                 <button>Restart</button></form>",
                encode_name(name)
            );
        }
        page.push_str("<p><a href=\"/status\">All</a></p>\n</html>\n");
        shell::secured(page)
    }
}

/// Replaces the query in `GET /a?b=c` or `GET /a?b=c and 2 more` by three dots.
fn hide_query(line: &mut String) {
    let Some(start) = line.find('?') else { return };
    let end = line[start..].find(' ').map_or(line.len(), |length| start + length);
    line.replace_range(start + 1..end, "...");
}

/// Appends the processes of an application, and counts of starts and crashes.
pub(super) fn append_app(page: &mut String, app: &AppStatus) {
    page.push_str(
        "<table><tr><th>Process</th><th>State</th><th>Requests</th>\
         <th>Age</th><th>Memory</th><th>CPU</th><th class=\"text\">Request</th></tr>\n",
    );
    for worker in &app.workers {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{} s</td><td>{:.1} MB</td>\
             <td>{:.1} s</td><td class=\"text\">{}</td></tr>",
            worker.pid,
            worker.state,
            worker.requests,
            worker.age.as_secs(),
            worker.rss as f64 / 1e6,
            worker.cpu.as_secs_f64(),
            escape(worker.current_request.as_deref().unwrap_or_default()),
        );
    }
    page.push_str("</table>\n");
    let _ = writeln!(
        page,
        "<p>{} requests wait. {} processes started, {} ended unexpectedly.</p>",
        app.waiting, app.starts, app.crashes
    );
    if let Some(note) = &app.note {
        let _ = writeln!(page, "<p>{}</p>", escape(note));
    }
    if let Some(lines) = &app.crash_loop {
        let what = "Processes end as soon as they are started:";
        let _ = writeln!(page, "<p>{what}</p>\n<pre>{}</pre>", escape(lines));
    }
}

/// Returns true if both texts are equal. The time of the comparison depends only on their lengths,
/// so that it reveals nothing about a token.
fn is_same(given: &[u8], wanted: &[u8]) -> bool {
    let differences = given.iter().zip(wanted).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
    given.len() == wanted.len() && differences == 0
}

/// Encodes a name as one path segment.
pub(super) fn encode_name(name: &str) -> String {
    let mut path = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            path.push(byte.into());
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
    path
}

/// Decodes a path segment to a name.
fn decode_name(segment: &str) -> String {
    // `decode` replaces a plus sign by a space, but a plus sign in a path means itself.
    let decoded = forebay_wire::forms::decode(segment.replace('+', "%2B").as_bytes()).into_owned();
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_from_its_path() {
        for name in ["shop", "a b/c+d%?", "Jürgen", ".."] {
            let path = encode_name(name);
            assert!(!path.contains(['/', '?', ' ', '.']), "{path}");
            assert_eq!(decode_name(&path), name);
        }
    }

    #[test]
    fn only_the_query_of_a_request_is_hidden() {
        for (line, shown) in [
            ("GET /a", "GET /a"),
            ("GET /a?b=c?d", "GET /a?..."),
            ("GET /a? and 2 more", "GET /a?... and 2 more"),
            ("GET /a?b=c and 2 more", "GET /a?... and 2 more"),
        ] {
            let mut line = line.to_owned();
            hide_query(&mut line);
            assert_eq!(line, shown);
        }
    }

    #[test]
    fn a_token_is_compared_whole() {
        assert!(is_same(b"0123456789abcdef", b"0123456789abcdef"));
        for wrong in ["", "0123456789abcde", "0123456789abcdeg", "0123456789abcdef0"] {
            assert!(!is_same(wrong.as_bytes(), b"0123456789abcdef"), "{wrong}");
        }
    }
}
