//! Server-side includes (`ssi` of a route): evaluates the commands of a page, as Apache's
//! mod_include and nginx's SSI module do.
//!
//! Forebay reads the whole page into memory, evaluates the page, and then sends the result. An
//! included path is requested in the same way as a client's request: the same site selects the
//! route, with all its rules. The reply for an included path stays in memory
//! (`stream/included.rs`), so none of its fields can reach the client.
//!
//! Commands come only from pages. The text of an included reply or a variable is never searched for
//! commands.

mod expression;
mod fetch;
mod lifetime;
mod parse;
mod variables;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_conf::{EncodedSlashes, Level};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::exchange::Exchange;
use crate::filter::{SsiPage, fields, forbid_sharing, is};
use crate::reply::Length;
use crate::stream::{IncludeState, Stream};
use expression::evaluate;
use parse::{Command, PagePart, parse};
use variables::{Document, format_time};

/// Maximum length of an expression, a name or the text of an error in bytes.
const LONGEST_TEXT: usize = 4096;
/// Maximum length of the value of a variable in bytes.
const LONGEST_VALUE: usize = 64 * 1024;
/// Number of commands after which other tasks of the thread may run.
const TURN: usize = 32;
/// Default text in place of a command that fails.
const ERROR_TEXT: &[u8] = b"[an error occurred while processing this directive]";
/// Default text for a variable without a value.
const ECHO_TEXT: &[u8] = b"(none)";
/// Default format of times, as in Apache and nginx.
const TIME_FORMAT: &str = "%A, %d-%b-%Y %H:%M:%S %Z";

/// Lets the routes of a site answer a request.
pub trait Routes {
    /// Answers the request of `exchange`, whose reply goes to `stream`.
    fn answer<'a>(
        &'a self,
        stream: &'a Stream,
        exchange: &'a mut Exchange,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>>;

    /// Returns the site's treatment of encoded slashes.
    fn encoded_slashes(&self) -> EncodedSlashes;
}

/// Reason why a command fails.
type SsiFailure = String;

/// Evaluates `page` and sends the result.
pub async fn answer(
    stream: &Stream,
    exchange: &mut Exchange,
    page: SsiPage,
    routes: &dyn Routes,
) -> Result<(), Fault> {
    let request = &exchange.request;
    let (state, chain) = match stream {
        Stream::Included(included) => (included.state.clone(), included.chain.clone()),
        _ => {
            let state = IncludeState::new(request.clone(), page.modified);
            (Rc::new(state), vec![request.target().to_vec()])
        }
    };
    let mut evaluation = Evaluation::new(stream, request, routes, (state, chain), page.limit);
    evaluation.run(&page.body).await?;
    let Evaluation { out, state, .. } = evaluation;
    let reply = &mut exchange.reply;
    reply.begin(page.status, b"");
    let mut lines = page.lines;
    if let Some(seconds) = state.lifetime.get() {
        lifetime::limit(&mut lines, page.status, seconds);
    }
    if state.is_uncacheable.get() {
        forbid_sharing(&mut lines, 0, b"private, no-store");
    } else if state.is_private.get() {
        forbid_sharing(&mut lines, 0, b"private");
    }
    reply.field_lines().extend_from_slice(&lines);
    reply.skip_sendfile_scan();
    reply.end_head(Length::Known(out.len() as u64), page.has_date);
    reply.push(&out).await?;
    reply.finish().await
}

/// The evaluation of one page.
struct Evaluation<'a> {
    stream: &'a Stream,
    /// The request whose reply is the page.
    request: &'a Request,
    routes: &'a dyn Routes,
    state: Rc<IncludeState>,
    /// Targets of the page and of all pages that include it.
    chain: Vec<Vec<u8>>,
    limit: usize,
    out: Vec<u8>,
    error_text: Vec<u8>,
    echo_text: Vec<u8>,
    time_format: String,
    /// True for sizes in bytes, false for short sizes such as `1.5K`.
    has_exact_sizes: bool,
    conditions: Vec<Condition>,
}

/// An `if` that has not ended.
struct Condition {
    /// True if the current branch is shown.
    is_shown: bool,
    /// True if a branch of this `if` was shown.
    was_shown: bool,
    /// True if the text around the `if` is shown.
    is_outer_shown: bool,
}

impl expression::VariableValues for Document<'_> {
    fn fill(&self, text: &[u8]) -> Vec<u8> {
        Document::fill(self, text, LONGEST_VALUE)
    }
}

impl<'a> Evaluation<'a> {
    fn new(
        stream: &'a Stream,
        request: &'a Request,
        routes: &'a dyn Routes,
        (state, chain): (Rc<IncludeState>, Vec<Vec<u8>>),
        limit: usize,
    ) -> Self {
        Self {
            stream,
            request,
            routes,
            state,
            chain,
            limit,
            out: Vec::new(),
            error_text: ERROR_TEXT.to_vec(),
            echo_text: ECHO_TEXT.to_vec(),
            time_format: TIME_FORMAT.to_owned(),
            has_exact_sizes: false,
            conditions: Vec::new(),
        }
    }

    async fn run(&mut self, page: &[u8]) -> Result<(), Fault> {
        for (number, part) in parse(page).into_iter().enumerate() {
            match part {
                PagePart::Text(range) if self.is_shown() => self.push(&page[range])?,
                PagePart::Text(_) => {}
                PagePart::Malformed if self.is_shown() => {
                    self.fail(&SsiFailure::from("a command cannot be read"))?;
                }
                PagePart::Malformed => {}
                PagePart::Command(command) => {
                    if let Err(failure) = self.command(&command).await {
                        self.fail(&format!("`{}`: {failure}", command.name))?;
                    }
                    if self.out.len() > self.limit {
                        return Err(self.too_large());
                    }
                }
            }
            if number % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
        if self.conditions.is_empty() { Ok(()) } else { self.fail("an `if` has no `endif`") }
    }

    fn is_shown(&self) -> bool {
        self.conditions.last().is_none_or(|condition| condition.is_shown)
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.out.len() + bytes.len() > self.limit {
            return Err(self.too_large());
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn too_large(&self) -> Fault {
        let limit = self.limit;
        Fault::us(
            500,
            format!("a page with its includes is larger than {limit} bytes (`max_size` of `ssi`)"),
        )
    }

    /// Logs the failure of a command, and writes the configured error text in its place.
    fn fail(&mut self, failure: &str) -> Result<(), Fault> {
        // Log the target and not the decoded path, which may have line ends.
        let page = String::from_utf8_lossy(self.request.target());
        self.stream.thread().log_limited(Level::Warn, &format!("ssi: {failure}: in {page}"));
        let text = std::mem::take(&mut self.error_text);
        let pushed = self.push(&text);
        self.error_text = text;
        pushed
    }

    fn document(&self) -> Document<'_> {
        let state = &self.state;
        let modified = state.modified.and_then(|time| Timestamp::try_from(time).ok());
        Document { request: &state.document, modified, state, time_format: &self.time_format }
    }

    fn fill(&self, text: &[u8]) -> Vec<u8> {
        self.document().fill(text, LONGEST_VALUE)
    }

    async fn command(&mut self, command: &Command) -> Result<(), SsiFailure> {
        match &command.name[..] {
            "if" | "elif" | "else" | "endif" => self.condition(command),
            _ if !self.is_shown() => Ok(()),
            "echo" => self.echo(command),
            "set" => self.set(command),
            "config" => self.config(command),
            "printenv" => {
                self.print_all();
                Ok(())
            }
            "include" => self.include(command).await,
            "fsize" | "flastmod" => self.describe(command).await,
            "exec" => {
                Err("Forebay runs no commands of pages: include a CGI script by `virtual`".into())
            }
            _ => Err("there is no such command".into()),
        }
    }

    fn condition(&mut self, command: &Command) -> Result<(), SsiFailure> {
        let evaluated = |this: &Self| {
            let expression = command.get("expr").ok_or("`expr` is missing")?;
            if expression.len() > LONGEST_TEXT {
                return Err("`expr` is too long");
            }
            evaluate(expression, &this.document())
        };
        if command.name == "if" {
            let is_outer_shown = self.is_shown();
            let value = if is_outer_shown { evaluated(self) } else { Ok(false) };
            let is_shown = *value.as_ref().unwrap_or(&false);
            self.conditions.push(Condition { is_shown, was_shown: is_shown, is_outer_shown });
            return value.map(drop).map_err(SsiFailure::from);
        }
        let Some(condition) = self.conditions.last() else { return Err("there is no `if`".into()) };
        let may_show = condition.is_outer_shown && !condition.was_shown;
        let value = match &command.name[..] {
            "endif" => {
                self.conditions.pop();
                return Ok(());
            }
            "else" => Ok(may_show),
            _ if may_show => evaluated(self),
            _ => Ok(false),
        };
        let is_shown = *value.as_ref().unwrap_or(&false);
        if let Some(condition) = self.conditions.last_mut() {
            condition.is_shown = is_shown;
            condition.was_shown |= is_shown;
        }
        value.map(drop).map_err(SsiFailure::from)
    }

    fn echo(&mut self, command: &Command) -> Result<(), SsiFailure> {
        let mut encoding = Encoding::Entity;
        for (name, value) in &command.attributes {
            match &name[..] {
                "encoding" => encoding = Encoding::of(value)?,
                "default" | "decoding" => {}
                "var" => {
                    let found = self.document().value(value).map(std::borrow::Cow::into_owned);
                    let default = || command.get("default").unwrap_or(&self.echo_text).to_vec();
                    let value = found.map_or_else(default, |value| encoding.encoded(&value));
                    self.out.extend_from_slice(&value);
                }
                _ => return Err(format!("there is no attribute `{name}`")),
            }
        }
        if command.get("var").is_some() { Ok(()) } else { Err("`var` is missing".into()) }
    }

    fn set(&mut self, command: &Command) -> Result<(), SsiFailure> {
        let mut names = None;
        for (name, value) in &command.attributes {
            match &name[..] {
                "var" => names = Some(variable_name(value)?),
                "value" => {
                    let name = names.clone().ok_or("`var` is missing")?;
                    let value = self.fill(value);
                    if !self.state.set(&name, value) {
                        return Err("there are too many variables".into());
                    }
                }
                _ => return Err(format!("there is no attribute `{name}`")),
            }
        }
        Ok(())
    }

    fn config(&mut self, command: &Command) -> Result<(), SsiFailure> {
        for (name, value) in &command.attributes {
            if value.len() > LONGEST_TEXT {
                return Err(format!("`{name}` is too long"));
            }
            match &name[..] {
                "errmsg" => self.error_text = self.fill(value),
                "echomsg" => self.echo_text = self.fill(value),
                "timefmt" => {
                    let format = String::from_utf8_lossy(&self.fill(value)).into_owned();
                    format_time(Timestamp::UNIX_EPOCH, TimeZone::UTC, &format)
                        .ok_or("`timefmt` is no format of times")?;
                    self.time_format = format;
                }
                "sizefmt" => self.has_exact_sizes = value.eq_ignore_ascii_case(b"bytes"),
                _ => return Err(format!("there is no attribute `{name}`")),
            }
        }
        Ok(())
    }

    fn print_all(&mut self) {
        let names = self.document().names();
        for name in names {
            let value = self.document().value(name.as_bytes()).map(std::borrow::Cow::into_owned);
            let Some(value) = value else { continue };
            self.out.extend_from_slice(&Encoding::Entity.encoded(name.as_bytes()));
            self.out.push(b'=');
            self.out.extend_from_slice(&Encoding::Entity.encoded(&value));
            self.out.push(b'\n');
        }
    }

    async fn include(&mut self, command: &Command) -> Result<(), SsiFailure> {
        let (mut found, mut failure) = (false, None);
        for (name, value) in &command.attributes {
            let target = match &name[..] {
                "virtual" => self.virtual_target(&self.fill(value)),
                "file" => self.file_target(&self.fill(value)),
                // Ignore `wait`, because Forebay always waits for a reply before the next request.
                "wait" | "set" | "onerror" => continue,
                _ => return Err(format!("there is no attribute `{name}`")),
            };
            found = true;
            let reply = match target {
                Ok(target) => self.fetch(&target).await,
                Err(failure) => Err(failure),
            };
            match (reply, command.get("set")) {
                (Ok(body), None) => self.out.extend_from_slice(&body),
                (Ok(mut body), Some(name)) => {
                    body.truncate(LONGEST_VALUE);
                    if !self.state.set(&variable_name(name)?, body) {
                        return Err("there are too many variables".into());
                    }
                }
                (Err(why), _) => failure = Some(why),
            }
        }
        if let (Some(_), Some(page)) = (&failure, command.get("onerror")) {
            let target = self.virtual_target(&self.fill(page))?;
            let body = self.fetch(&target).await?;
            self.out.extend_from_slice(&body);
            return Ok(());
        }
        match failure {
            Some(failure) => Err(failure),
            None if found => Ok(()),
            None => Err("`virtual` or `file` is missing".into()),
        }
    }

    /// Writes the size of a file, or the time of the file's last change.
    async fn describe(&mut self, command: &Command) -> Result<(), SsiFailure> {
        for (name, value) in &command.attributes {
            let target = match &name[..] {
                "virtual" => self.virtual_target(&self.fill(value))?,
                "file" => self.file_target(&self.fill(value))?,
                _ => return Err(format!("there is no attribute `{name}`")),
            };
            let lines = self.probe(&target).await?;
            let of = |wanted: &[u8]| {
                let mut fields = fields(&lines);
                let value = fields.find(|(name, _)| is(name, wanted)).map(|(_, value)| value);
                value.and_then(|value| std::str::from_utf8(value).ok())
            };
            if command.name == "fsize" {
                let size = of(b"content-length").and_then(|length| length.parse().ok());
                let size = size.ok_or("the size is not known")?;
                self.out.extend_from_slice(size_text(size, self.has_exact_sizes).as_bytes());
            } else {
                let time = of(b"last-modified").and_then(|t| httpdate::parse_http_date(t).ok());
                let time = time.and_then(|time| Timestamp::try_from(time).ok());
                let text = time
                    .and_then(|time| format_time(time, TimeZone::system(), &self.time_format))
                    .ok_or("the time of the last change is not known")?;
                self.out.extend_from_slice(&Encoding::Entity.encoded(&text));
            }
        }
        Ok(())
    }
}

/// Returns `name` as text. Fails if a page may not set a variable of this name.
fn variable_name(name: &[u8]) -> Result<String, SsiFailure> {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if name.is_empty() || name.len() > 128 || !name.iter().all(is_name) {
        return Err("the name of a variable has letters, digits and underscores".into());
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Returns a size as Apache shows it.
fn size_text(bytes: u64, is_exact: bool) -> String {
    if is_exact {
        let digits = bytes.to_string();
        let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
        return groups.collect::<Vec<_>>().join(",");
    }
    if bytes < 973 {
        return format!("{bytes:>3} ");
    }
    let (mut size, mut unit) = (bytes as f64 / 1024.0, 0);
    while size >= 973.0 {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    let unit = ["K", "M", "G", "T", "P", "E"][unit];
    if size < 9.95 { format!("{size:.1}{unit}") } else { format!("{size:>3.0}{unit}") }
}

/// The escaping of a variable's value in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    None,
    Url,
    Form,
    Entity,
}

impl Encoding {
    fn of(name: &[u8]) -> Result<Self, SsiFailure> {
        match name {
            b"none" => Ok(Self::None),
            b"url" => Ok(Self::Url),
            b"urlencoded" => Ok(Self::Form),
            b"entity" => Ok(Self::Entity),
            _ => Err("`encoding` is none, url, urlencoded or entity".into()),
        }
    }

    fn encoded(self, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(value.len());
        for &byte in value {
            match (self, byte) {
                (Self::Entity, b'&') => out.extend_from_slice(b"&amp;"),
                (Self::Entity, b'<') => out.extend_from_slice(b"&lt;"),
                (Self::Entity, b'>') => out.extend_from_slice(b"&gt;"),
                (Self::Entity, b'"') => out.extend_from_slice(b"&quot;"),
                (Self::Entity, b'\'') => out.extend_from_slice(b"&#39;"),
                // Replace control bytes, because some browsers read escape sequences of ISO-2022 in
                // pages without a charset.
                (Self::Entity, byte) if byte.is_ascii_control() && !b"\t\r\n".contains(&byte) => {
                    out.extend_from_slice(b"&#xFFFD;");
                }
                (Self::Url, b'/' | b':' | b'@' | b'&' | b'=' | b'+' | b'$' | b',' | b';') => {
                    out.push(byte);
                }
                (Self::Form, b' ') => out.push(b'+'),
                (Self::Url | Self::Form, byte)
                    if !byte.is_ascii_alphanumeric() && !b"-._~!*'()".contains(&byte) =>
                {
                    out.extend_from_slice(format!("%{byte:02X}").as_bytes());
                }
                _ => out.push(byte),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        for (encoding, expected) in [
            (Encoding::Entity, "a&lt;b&gt;&amp;&quot;&#39;/?é"),
            (Encoding::Url, "a%3Cb%3E&%22'/%3F%C3%A9"),
            (Encoding::Form, "a%3Cb%3E%26%22'%2F%3F%C3%A9"),
            (Encoding::None, "a<b>&\"'/?é"),
        ] {
            let encoded = encoding.encoded("a<b>&\"'/?é".as_bytes());
            assert_eq!(String::from_utf8_lossy(&encoded), expected);
        }
    }

    #[test]
    fn no_control_character_is_sent_for_a_value() {
        assert_eq!(
            Encoding::Entity.encoded(b"\x1b(J\0\x7f\t\n"),
            b"&#xFFFD;(J&#xFFFD;&#xFFFD;\t\n"
        );
    }

    #[test]
    fn sizes_are_as_in_apache() {
        for (bytes, short, exact) in [
            (0, "  0 ", "0"),
            (972, "972 ", "972"),
            (1536, "1.5K", "1,536"),
            (20_480, " 20K", "20,480"),
            (1_234_567, "1.2M", "1,234,567"),
        ] {
            assert_eq!((&*size_text(bytes, false), &*size_text(bytes, true)), (short, exact));
        }
    }
}
