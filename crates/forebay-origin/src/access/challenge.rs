//! `challenge`: the browser of a new visitor solves a task before the route answers.
//!
//! Limits by address cannot see a crowd of addresses. A task makes each network of the crowd pay:
//! with CPU time, or, without JavaScript, with the patience of one waiting request. The page names
//! a signed task. The answer returns to the same URL in a parameter, and gets a signed cookie and a
//! redirect to the URL without the parameter. Tasks, answers and cookies hold only for the host,
//! the client's network and its `User-Agent`, so nothing has to be stored: who repeats an answer
//! gets the cookie that he has, and another network cannot use it.
//!
//! As with Anubis, a visitor who opens a page gets the task with status 200, because crawlers
//! take an error as a reason to come again from another address. Requests that show no page (forms,
//! scripts, images, WebSocket) get 403.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::{constant_time, digest, hmac, rand};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_conf::{Challenge, Crawler};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_server::exchange::Exchange;
use forebay_server::reply::Length;
use forebay_wire::http1::{encode, host_of};

/// The parameter of the query with the answer to a task.
const PARAMETER: &[u8] = b"forebay-challenge";
/// The time in seconds for which a task can be answered.
const TASK_LIFETIME: u64 = 3600;
/// The largest difference in seconds between the clocks of machines that share a secret.
const CLOCK_SKEW: u64 = 60;
/// Maximum length of an answer or cookie: a time, a signature and a number need 60 bytes.
const MAX_LENGTH: usize = 100;
/// Bytes of a signature.
const TAG: usize = 16;

const PAGE: &str = include_str!("challenge.html");
const SCRIPT: &str = include_str!("challenge.js");

/// The challenge of a route, with its key.
pub struct Challenger {
    settings: Challenge,
    key: hmac::Key,
}

/// The reply to a request that does not pass.
#[derive(Debug, PartialEq, Eq)]
pub enum Task {
    /// A task. `is_repeated` is true if the request has an answer that is wrong or too early.
    Given { is_repeated: bool },
    /// The request has a right answer. The client gets this cookie.
    Solved(String),
}

/// Returns true if requests for the path must never be challenged: their clients run no scripts,
/// and ask for little. `/.well-known/..;/admin` is not such a path, because servers may remove
/// parameters from it.
fn is_exempt(settings: &Challenge, path: &[u8]) -> bool {
    const FEEDS: [&[u8]; 5] = [b".rss", b".atom", b"/feed", b"/rss", b"/atom"];
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(byte);
    let is_well_known = || {
        path.starts_with(b"/.well-known/")
            && path.iter().all(is_plain)
            && memchr::memmem::find(path, b"..").is_none()
    };
    matches!(path, b"/robots.txt" | b"/favicon.ico")
        || is_well_known()
        || !settings.feeds && FEEDS.iter().any(|end| path.ends_with(end))
}

/// Returns true if the route challenges requests like this one, unless they have a cookie.
pub fn applies(settings: &Challenge, request: &Request) -> bool {
    let before_rewrite = request.requested_target();
    let end = memchr::memchr(b'?', before_rewrite).unwrap_or(before_rewrite.len());
    !settings.exempts(request.client.ip())
        && !is_exempt(settings, &request.path)
        && !is_exempt(settings, &before_rewrite[..end])
        && settings.when.as_ref().is_none_or(|when| request.meets_conditions(when))
}

impl Challenger {
    /// Creates the challenge of a route. `key` is the key of routes without a secret.
    pub fn new(settings: Challenge, key: &[u8; 32]) -> Self {
        let key = match &settings.secret {
            Some(secret) => hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()),
            None => hmac::Key::new(hmac::HMAC_SHA256, key),
        };
        Self { settings, key }
    }

    /// Returns what a request gets in place of the route's answer. `None` if it passes.
    pub fn check(&self, request: &Request) -> Option<Task> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        self.check_at(request, now)
    }

    /// Returns the crawlers as which the request may pass, if DNS verifies one of them.
    pub fn claimed(&self, request: &Request) -> impl Iterator<Item = Crawler> {
        let agent = match self.settings.verified[..] {
            [] => Cow::Borrowed(&b""[..]),
            _ => request.joined_field("user-agent"),
        };
        self.settings.verified.iter().copied().filter(move |one| one.is_claimed(&agent))
    }

    fn check_at(&self, request: &Request, now: u64) -> Option<Task> {
        if !applies(&self.settings, request) || self.has_cookie(request, now) {
            return None;
        }
        // The page appends its answer, so only the last one counts.
        let answers = parameters(request.original_target()).filter_map(|(_, answer)| answer);
        let answer = answers.last();
        let solved = answer.and_then(|answer| self.solved(request, answer, now));
        Some(solved.map_or(Task::Given { is_repeated: answer.is_some() }, Task::Solved))
    }

    /// Returns true if the request has a valid cookie. A cookie names the time of its task and the
    /// work that it took.
    fn has_cookie(&self, request: &Request, now: u64) -> bool {
        let name = cookie_name(request.client.ip());
        request.cookie(name).is_some_and(|cookie| self.is_valid(request, cookie, now))
    }

    fn is_valid(&self, request: &Request, cookie: &[u8], now: u64) -> bool {
        let Some([issued, work, tag]) = parts(cookie) else { return false };
        let (Some(time), Some(work)) = (hex(issued), Work::of(work)) else { return false };
        let age = (now + CLOCK_SKEW).checked_sub(time);
        age.is_some_and(|age| age <= self.settings.lifetime.as_secs() + CLOCK_SKEW)
            && self.suffices(work)
            && self.fits(request, &[b"cookie", issued, work.text().as_bytes()], tag)
    }

    fn suffices(&self, work: Work) -> bool {
        match (work, self.settings.delay) {
            (Work::Bits(bits), _) => bits >= u64::from(self.settings.difficulty),
            (Work::Seconds(waited), Some(delay)) => waited >= delay.as_secs(),
            (Work::Seconds(_), None) => false,
        }
    }

    /// Returns the cookie for a right answer.
    fn solved(&self, request: &Request, answer: &[u8], now: u64) -> Option<String> {
        if answer.len() > MAX_LENGTH {
            return None;
        }
        let mut of_answer = answer.splitn(3, |&byte| byte == b'.');
        let (issued, tag) = (of_answer.next()?, of_answer.next()?);
        let time = hex(issued)?;
        let age = (now + CLOCK_SKEW).checked_sub(time)?;
        if age > TASK_LIFETIME + CLOCK_SKEW || !self.fits(request, &[b"task", issued], tag) {
            return None;
        }
        let work = match of_answer.next() {
            Some(_) => Work::Bits(leading_zeros(answer)),
            // Without a number, the visitor has waited.
            None => Work::Seconds(now.saturating_sub(time)),
        };
        if !self.suffices(work) {
            return None;
        }
        // Other routes of the site may ask for more, so the cookie names no more than was asked.
        let work = match (work, self.settings.delay) {
            (Work::Bits(_), _) => Work::Bits(self.settings.difficulty.into()),
            (Work::Seconds(_), delay) => Work::Seconds(delay?.as_secs()),
        };
        let issued = str::from_utf8(issued).ok()?;
        let tag = self.tag(request, &[b"cookie", issued.as_bytes(), work.text().as_bytes()]);
        let name = cookie_name(request.client.ip());
        let left = (time + self.settings.lifetime.as_secs()).saturating_sub(now);
        let secure = if request.https { "; Secure" } else { "" };
        Some(format!(
            "{name}={issued}.{}.{tag}; Path=/; Max-Age={left}; HttpOnly; SameSite=Lax{secure}",
            work.text()
        ))
    }

    /// Returns a new task for the client of `request`.
    fn task(&self, request: &Request, now: u64) -> String {
        let issued = format!("{now:x}");
        let tag = self.tag(request, &[b"task", issued.as_bytes()]);
        format!("{issued}.{tag}")
    }

    fn fits(&self, request: &Request, values: &[&[u8]], tag: &[u8]) -> bool {
        let own = self.tag(request, values);
        constant_time::verify_slices_are_equal(own.as_bytes(), tag).is_ok()
    }

    /// Returns the signature of these values for the client of `request`.
    fn tag(&self, request: &Request, values: &[&[u8]]) -> String {
        let mut context = hmac::Context::with_key(&self.key);
        let mut update = |value: &[u8]| {
            context.update(&(value.len() as u64).to_be_bytes());
            context.update(value);
        };
        values.iter().for_each(|value| update(value));
        let host = request.head.authority.map(|span| span.of(&request.bytes)).unwrap_or_default();
        update(&host_of(host).to_ascii_lowercase());
        update(&network(request.client.ip()));
        update(&request.joined_field("user-agent"));
        URL_SAFE_NO_PAD.encode(&context.sign().as_ref()[..TAG])
    }

    /// Answers a request that does not pass.
    pub async fn answer(&self, exchange: &mut Exchange, task: Task) -> Result<(), Fault> {
        let request = &exchange.request;
        let mut lines = b"Cache-Control: no-store\r\n".to_vec();
        if !matches!(request.method(), b"GET" | b"HEAD") {
            return self.refuse(exchange).await;
        }
        if let Task::Solved(cookie) = task {
            let reply = &mut exchange.reply;
            reply.set_rules(None);
            let location = without_answers(&exchange.request);
            encode::field(&mut lines, "Set-Cookie", cookie.as_bytes());
            reply.begin(303, b"");
            reply.field("Location", &location);
            reply.field_lines().extend_from_slice(&lines);
            reply.end_head(Length::Known(0), false);
            return reply.finish().await;
        }
        if !shows_page(request) {
            return exchange.respond_error_with(403, &lines).await;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let page = self.page(request, task == Task::Given { is_repeated: true }, now);
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'unsafe-inline'; \
             base-uri 'none'; form-action 'none'",
            base64::engine::general_purpose::STANDARD
                .encode(digest::digest(&digest::SHA256, SCRIPT.as_bytes()))
        );
        encode::field(&mut lines, "Content-Security-Policy", policy.as_bytes());
        respond(exchange, 200, &lines, &page).await
    }

    /// Refuses a request that may have a body. The browser keeps the body, and sends it again when
    /// the visitor reloads the page.
    async fn refuse(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let lines = b"Cache-Control: no-store\r\n";
        if !shows_page(&exchange.request) || exchange.reply.is_to_grpc() {
            return exchange.respond_error_with(403, lines).await;
        }
        let page = "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
                    <title>Not sent yet</title>\n<h1>Not sent yet</h1>\n\
                    <p>This site has to check your browser first: <a href=\"?\" \
                    target=\"_blank\">open this page in a new tab</a> and wait until it shows \
                    something else. Then return to this tab, and reload it to send your data.</p>\n\
                    </html>\n";
        respond(exchange, 403, lines, page.as_bytes()).await
    }

    /// Returns the page with a task.
    fn page(&self, request: &Request, is_repeated: bool, now: u64) -> Vec<u8> {
        let task = self.task(request, now);
        let mut query = vec![b'?'];
        append_query(request, &mut query);
        let own = html_attribute(&query);
        let with_answer = {
            let end = if query.len() > 1 { "&amp;" } else { "" };
            format!("{own}{end}forebay-challenge={task}")
        };
        let state = if is_repeated {
            format!(
                "The answer of your browser came too early or too late, or from another address. \
                 <a href=\"{own}\">Try again</a>."
            )
        } else {
            "This site checks that you are using a browser. This takes a few seconds, and is not \
             repeated for a while."
                .to_owned()
        };
        let seconds = self.settings.delay.map(|delay| delay.as_secs());
        let noscript = match seconds {
            _ if is_repeated => String::new(),
            // A second more, because the page may be a second old when its time is rounded down.
            Some(seconds) => format!(
                "<noscript><meta http-equiv=\"refresh\" content=\"{};url={with_answer}\">\n\
                 <p>Your browser runs no JavaScript. The page opens after {seconds} seconds. If it \
                 does not, then <a href=\"{with_answer}\">open it</a>.</p></noscript>",
                seconds + 1
            ),
            None => "<noscript><p>The check needs JavaScript.</p></noscript>".to_owned(),
        };
        let bits = if is_repeated { 0 } else { self.settings.difficulty };
        let mut page = String::with_capacity(PAGE.len() + SCRIPT.len() + 1024);
        let mut rest = PAGE;
        let values = [
            ("TASK", &task[..]),
            ("BITS", &bits.to_string()),
            ("STATE", &state),
            ("NOSCRIPT", &noscript),
            ("SCRIPT", SCRIPT),
        ];
        for (name, value) in values {
            let (before, after) = rest.split_once(name).expect("the page has each name once");
            page.push_str(before);
            page.push_str(value);
            rest = after;
        }
        page.push_str(rest);
        page.into_bytes()
    }
}

async fn respond(
    exchange: &mut Exchange,
    status: u16,
    lines: &[u8],
    page: &[u8],
) -> Result<(), Fault> {
    let reply = &mut exchange.reply;
    // The route's fields, such as `expires` or a policy for its own scripts, are not for this page.
    reply.set_rules(None);
    reply.respond_page(status, "text/html; charset=utf-8", lines, page).await
}

/// The work that a cookie proves.
#[derive(Clone, Copy)]
enum Work {
    /// Leading zero bits of a hash.
    Bits(u64),
    /// Seconds of waiting.
    Seconds(u64),
}

impl Work {
    fn of(text: &[u8]) -> Option<Self> {
        let (kind, number) = text.split_first()?;
        let number = hex(number)?;
        match kind {
            b'b' => Some(Self::Bits(number)),
            b's' => Some(Self::Seconds(number)),
            _ => None,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Bits(bits) => format!("b{bits:x}"),
            Self::Seconds(seconds) => format!("s{seconds:x}"),
        }
    }
}

/// Returns true if the client will show a page. Browsers say what a request is for; other clients
/// say nothing, and are taken for browsers unless they want WebSocket or gRPC.
fn shows_page(request: &Request) -> bool {
    let mode = request.joined_field("sec-fetch-mode");
    let opens_page = mode.is_empty() || &mode[..] == b"navigate";
    opens_page && request.joined_field("upgrade").is_empty() && !request.is_included
}

/// The name of the cookie, which differs between IPv4 and IPv6: browsers use both in turn.
fn cookie_name(client: Option<IpAddr>) -> &'static str {
    match client.map(|address| address.to_canonical()) {
        Some(IpAddr::V4(_)) => "forebay-visitor4",
        Some(IpAddr::V6(_)) => "forebay-visitor6",
        None => "forebay-visitor",
    }
}

/// Returns the first bytes of the client's address: its /24 or /64.
fn network(client: Option<IpAddr>) -> Vec<u8> {
    match client.map(|address| address.to_canonical()) {
        Some(IpAddr::V4(address)) => address.octets()[..3].to_vec(),
        Some(IpAddr::V6(address)) => address.octets()[..8].to_vec(),
        None => Vec::new(),
    }
}

/// Returns the parts of a cookie between its two dots.
fn parts(text: &[u8]) -> Option<[&[u8]; 3]> {
    let mut parts = text.splitn(3, |&byte| byte == b'.');
    let all = [parts.next()?, parts.next()?, parts.next()?];
    (text.len() <= MAX_LENGTH).then_some(all)
}

/// Returns a number of at most ten hexadecimal digits.
fn hex(digits: &[u8]) -> Option<u64> {
    let is_plain = (1..=10).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(str::from_utf8(digits).ok().filter(|_| is_plain)?, 16).ok()
}

/// Returns the number of zero bits at the beginning of the text's hash.
fn leading_zeros(text: &[u8]) -> u64 {
    let hash = digest::digest(&digest::SHA256, text);
    let zero_bytes = hash.as_ref().iter().take_while(|byte| **byte == 0).count();
    let next = hash.as_ref().get(zero_bytes).map_or(0, |byte| byte.leading_zeros());
    8 * zero_bytes as u64 + u64::from(next)
}

/// Returns the parameters of a target's query, with the answer in each parameter that has one.
fn parameters(target: &[u8]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    let query = memchr::memchr(b'?', target).map_or(&b""[..], |at| &target[at + 1..]);
    query.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        let value = pair.strip_prefix(PARAMETER).and_then(|rest| rest.strip_prefix(b"="));
        (pair, value)
    })
}

/// Appends the client's query without answers.
fn append_query(request: &Request, out: &mut Vec<u8>) {
    let own = parameters(request.original_target()).filter(|(_, answer)| answer.is_none());
    for (number, (pair, _)) in own.enumerate() {
        if number > 0 {
            out.push(b'&');
        }
        out.extend_from_slice(pair);
    }
}

/// Returns a part of a URL as the value of an HTML attribute.
fn html_attribute(url: &[u8]) -> String {
    let mut text = String::with_capacity(url.len());
    for byte in url {
        match byte {
            b'&' => text.push_str("&amp;"),
            b'"' | b'\'' | b'<' | b'>' | b'`' | b'\\' | 0..=b' ' | 0x7f.. => {
                text.push_str(&format!("%{byte:02X}"));
            }
            _ => text.push(char::from(*byte)),
        }
    }
    text
}

/// Returns the client's target without answers. It has one slash at its beginning: with two, it
/// would lead to another site.
fn without_answers(request: &Request) -> Vec<u8> {
    let target = request.original_target();
    let path = &target[..memchr::memchr(b'?', target).unwrap_or(target.len())];
    let slashes = path.iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
    let mut location = vec![b'/'];
    location.extend_from_slice(&path[slashes..]);
    let end = location.len();
    location.push(b'?');
    append_query(request, &mut location);
    if location.len() == end + 1 {
        location.pop();
    }
    location
}

/// Returns a key for challenges without a secret.
pub fn random_key() -> [u8; 32] {
    let mut key = [0; 32];
    rand::fill(&mut key).expect("the system has random bytes");
    key
}
