//! Requests with placeholders, such as `{n}`, which are replaced for each request.

use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_wire::http1::is_field_value;

use crate::cookies::SharedJar;
use crate::redirect::Redirect;
use crate::value_table::divided;
use crate::{Error, Shard, Spec, ValueTable};

/// Request with placeholders, as HTTP/1.1. Its head gets the field `Content-Length` when the values
/// and so the length of the body are known.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    method: String,
    /// Target of the request line. Values in it are percent-encoded.
    target: Text,
    /// Fields without Content-Length and Cookie.
    fields: Text,
    /// Cookies that the user gave.
    cookies: Text,
    body: Text,
    /// Message of a WebSocket.
    message: Text,
    /// Encoding of values in the body.
    body_encoding: Encoding,
    sends_length: bool,
}

/// Text with placeholders.
#[derive(Clone, Debug, Default)]
struct Text(Vec<Piece>);

#[derive(Clone, Debug)]
enum Piece {
    Fixed(Vec<u8>),
    /// Number of the request.
    Number,
    /// Random number in this range.
    Random(u64, u64),
    /// Value in this column of the table.
    Column(usize),
    /// Value that an earlier step of the scenario has extracted.
    Extracted(usize),
}

/// Encoding of the values that replace placeholders. For example, a space in a value must not end
/// the request target, and a quotation mark must not end a JSON string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    None,
    /// Percent-encoding, for targets and forms.
    Percent,
    /// Escapes for a JSON string. Only values from replies are escaped.
    Json,
    /// For fields: drops control characters of values from replies.
    Field,
}

/// Names that a placeholder can have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Names<'a> {
    pub table: Option<&'a ValueTable>,
    /// Names of the values that a scenario extracts; `None` without a scenario.
    pub extracted: Option<&'a [String]>,
    /// Ranges of bodies and messages, in ascending order. Braces in them stay as they are.
    pub fixed: &'a [Range<usize>],
}

/// Values that one thread inserts for the placeholders of its requests.
#[derive(Debug)]
pub(crate) struct Values {
    /// Number of requests that all threads have rendered.
    rendered: Arc<AtomicU64>,
    /// Number of virtual users that have taken a row.
    users: Arc<AtomicU64>,
    table: Option<Arc<ValueTable>>,
    /// A shard uses every `step`th number, from `first` on.
    first: u64,
    step: u64,
    random: fastrand::Rng,
}

/// Values for the placeholders of one request.
pub(crate) struct Draw<'a> {
    number: u64,
    row: &'a [String],
    extracted: &'a [Vec<u8>],
    random: &'a mut fastrand::Rng,
}

/// Maximum length in bytes of a value that a scenario extracts.
pub(crate) const LONGEST_VALUE: usize = 4096;

/// Longest placeholder in bytes.
const LONGEST_NAME: usize = 128;

/// Values of a step of a scenario: number of the iteration, row of the table, and values of
/// earlier replies.
pub(crate) struct StepValues<'a> {
    pub number: u64,
    pub row: u64,
    pub extracted: &'a [Vec<u8>],
}

/// Encoded request of a step, with its target.
pub(crate) struct RenderedStep<R> {
    pub request: R,
    pub target: String,
}

impl Values {
    /// Returns the values of each of `threads` threads.
    pub fn of(spec: &Spec, threads: usize) -> Vec<Self> {
        let [rendered, users] = [Arc::<AtomicU64>::default(), Arc::default()];
        let place = |shard: &Shard| (u64::from(shard.number) - 1, u64::from(shard.count));
        let (first, step) = spec.shard.as_ref().map_or((0, 1), place);
        let values = |_| Self {
            rendered: rendered.clone(),
            users: users.clone(),
            table: spec.values.clone(),
            first,
            step,
            random: fastrand::Rng::new(),
        };
        (0..threads).map(values).collect()
    }

    /// Draws the values of the next request.
    fn next(&mut self) -> Draw<'_> {
        let place = self.rendered.fetch_add(1, Ordering::Relaxed) * self.step + self.first;
        let row = self.table.as_deref().map_or(&[][..], |table| table.row(place));
        Draw { number: place + 1, row, extracted: &[], random: &mut self.random }
    }

    /// Returns the number of the next iteration of a scenario, from 1.
    pub fn next_number(&mut self) -> u64 {
        self.rendered.fetch_add(1, Ordering::Relaxed) * self.step + self.first + 1
    }

    /// Returns the row of the table for the next virtual user.
    pub fn next_row(&mut self) -> u64 {
        self.users.fetch_add(1, Ordering::Relaxed) * self.step + self.first
    }

    /// Returns the values for the placeholders of a step's request.
    pub fn draw<'a>(&'a mut self, given: StepValues<'a>) -> Draw<'a> {
        let StepValues { number, row, extracted } = given;
        let row = self.table.as_deref().map_or(&[][..], |table| table.row(row));
        Draw { number, row, extracted, random: &mut self.random }
    }
}

impl Template {
    /// Finds the placeholders of an HTTP/1.1 request and of a WebSocket message.
    ///
    /// # Errors
    /// Fails for a placeholder without a value, and for values that a field cannot contain.
    pub fn of(http: &[u8], message: &[u8], names: Names<'_>) -> Result<Self, String> {
        let end = memchr::memmem::find(http, b"\r\n\r\n").map_or(http.len(), |at| at + 2);
        let (head, body) = http.split_at(end);
        let body = body.get(2..).unwrap_or_default();
        let head = String::from_utf8_lossy(head);
        let mut lines = head.split_inclusive("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (mut fields, mut cookies) = (String::new(), Vec::new());
        let (mut sends_length, mut body_encoding) = (false, Encoding::None);
        for line in lines {
            let (name, value) = line.split_once(':').unwrap_or_default();
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                sends_length = true;
                continue;
            }
            if name.eq_ignore_ascii_case("cookie") {
                cookies.push(value);
                continue;
            }
            if name.eq_ignore_ascii_case("content-type") {
                body_encoding = Encoding::of(value);
            }
            fields.push_str(line);
        }
        let template = Self {
            method: method.to_owned(),
            target: Text::parse(target.as_bytes(), names)?,
            fields: Text::parse(fields.as_bytes(), names)?,
            cookies: Text::parse(cookies.join("; ").as_bytes(), names)?,
            body: Text::of_body(body, names)?,
            message: Text::of_body(message, names)?,
            body_encoding,
            sends_length,
        };
        template.fields.check_fields(names.table)?;
        template.cookies.check_fields(names.table)?;
        Ok(template)
    }

    /// Returns true if there is at least one placeholder.
    pub fn has_placeholders(&self) -> bool {
        let texts = [&self.target, &self.fields, &self.cookies, &self.body, &self.message];
        texts.iter().any(|text| text.0.iter().any(|piece| !matches!(piece, Piece::Fixed(_))))
    }

    /// Returns the next HTTP/1.1 request with the cookies of `jar`, and the WebSocket message.
    pub fn render(&self, values: &mut Values, jar: Option<&SharedJar>) -> [Vec<u8>; 2] {
        self.render_with(values.next(), (jar, &None))
    }

    /// Returns the request with the longest possible values, to check that it can be sent.
    pub fn render_longest(&self, names: Names<'_>) -> [Vec<u8>; 2] {
        let row = names.table.map(ValueTable::longest).unwrap_or_default();
        let longest = vec![b'x'; LONGEST_VALUE];
        let extracted = vec![longest; names.extracted.map_or(0, <[String]>::len)];
        let mut random = fastrand::Rng::new();
        let draw = Draw { number: u64::MAX, row: &row, extracted: &extracted, random: &mut random };
        self.render_with(draw, (None, &None))
    }

    /// Returns the HTTP/1.1 request with the cookies of a jar, and the WebSocket message. With a
    /// redirect, returns the request that follows the redirect. The target, the fields and the
    /// method of this request may differ from those of the template.
    fn render_with(
        &self,
        mut draw: Draw<'_>,
        (jar, redirect): (Option<&SharedJar>, &Option<Redirect>),
    ) -> [Vec<u8>; 2] {
        let sends_body = redirect.as_ref().is_none_or(|redirect| !redirect.is_get);
        let mut out = Vec::with_capacity(512);
        let is_get = !sends_body && self.method != "HEAD";
        out.extend_from_slice(if is_get { b"GET" } else { self.method.as_bytes() });
        out.push(b' ');
        let start = out.len();
        match redirect {
            Some(redirect) => out.extend_from_slice(redirect.target.as_bytes()),
            None => self.target.render(&mut draw, Encoding::Percent, &mut out),
        }
        let target = start..out.len();
        out.extend_from_slice(b" HTTP/1.1\r\n");
        let fields = out.len();
        self.fields.render(&mut draw, Encoding::Field, &mut out);
        if let Some(redirect) = redirect {
            let changed = redirected_fields(&out[fields..], redirect);
            out.truncate(fields);
            out.extend_from_slice(&changed);
        }
        let mut cookies = Vec::new();
        if redirect.as_ref().is_none_or(Redirect::sends_credentials) {
            self.cookies.render(&mut draw, Encoding::Field, &mut cookies);
        }
        if let Some(jar) = jar {
            jar.append(&out[target], &mut cookies);
        }
        if !cookies.is_empty() {
            out.extend_from_slice(b"Cookie: ");
            out.extend_from_slice(&cookies);
            out.extend_from_slice(b"\r\n");
        }
        let mut body = Vec::new();
        if sends_body {
            self.body.render(&mut draw, self.body_encoding, &mut body);
        }
        if self.sends_length && sends_body {
            // Writing to memory does not fail.
            let _ = write!(out, "Content-Length: {}\r\n", body.len());
        }
        out.extend_from_slice(b"\r\n");
        out.append(&mut body);
        let mut message = Vec::new();
        self.message.render(&mut draw, Encoding::None, &mut message);
        [out, message]
    }
}

impl Text {
    fn of_body(text: &[u8], names: Names<'_>) -> Result<Self, String> {
        let mut all = Self::default();
        for (open, fixed) in divided(text, names.fixed) {
            all.0.extend(Self::parse(open, names)?.0);
            if !fixed.is_empty() {
                all.0.push(Piece::Fixed(fixed.to_vec()));
            }
        }
        Ok(all)
    }

    fn parse(text: &[u8], names: Names<'_>) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut fixed = Vec::new();
        let mut rest = text;
        while let Some(at) = memchr::memchr(b'{', rest) {
            let inner = &rest[at + 1..];
            let end = memchr::memchr(b'}', &inner[..inner.len().min(LONGEST_NAME)]);
            let name = end.and_then(|end| std::str::from_utf8(&inner[..end]).ok());
            match name.map(|name| placeholder(name, names)).transpose()?.flatten() {
                Some(piece) => {
                    fixed.extend_from_slice(&rest[..at]);
                    if !fixed.is_empty() {
                        pieces.push(Piece::Fixed(std::mem::take(&mut fixed)));
                    }
                    pieces.push(piece);
                    rest = &inner[end.map_or(0, |end| end + 1)..];
                }
                None => {
                    fixed.extend_from_slice(&rest[..=at]);
                    rest = inner;
                }
            }
        }
        fixed.extend_from_slice(rest);
        if !fixed.is_empty() {
            pieces.push(Piece::Fixed(fixed));
        }
        Ok(Self(pieces))
    }

    /// Checks that header fields can contain all values of the columns that they use.
    fn check_fields(&self, table: Option<&ValueTable>) -> Result<(), String> {
        let Some(table) = table else { return Ok(()) };
        for piece in &self.0 {
            let Piece::Column(column) = piece else { continue };
            if let Some(row) = table.find(*column, |value| !is_field_value(value.as_bytes())) {
                let name = table.name(*column);
                return Err(format!("row {row}: a header field cannot contain its {name}"));
            }
        }
        Ok(())
    }

    fn render(&self, draw: &mut Draw<'_>, encoding: Encoding, out: &mut Vec<u8>) {
        for piece in &self.0 {
            match piece {
                Piece::Fixed(bytes) => out.extend_from_slice(bytes),
                Piece::Number => drop(write!(out, "{}", draw.number)),
                Piece::Random(low, high) => drop(write!(out, "{}", draw.random.u64(*low..=*high))),
                Piece::Column(column) => {
                    let value = draw.row.get(*column).map_or(&b""[..], |value| value.as_bytes());
                    match encoding {
                        Encoding::Percent => percent_encode(value, out),
                        Encoding::None | Encoding::Json | Encoding::Field => {
                            out.extend_from_slice(value);
                        }
                    }
                }
                Piece::Extracted(index) => {
                    let value = draw.extracted.get(*index).map_or(&b""[..], Vec::as_slice);
                    match encoding {
                        Encoding::Percent => percent_encode(value, out),
                        Encoding::Json => escape_json(value, out),
                        Encoding::None => out.extend_from_slice(value),
                        // A value that a field of the scenario uses was checked when it was
                        // extracted. A value that only a field of the command line uses was not
                        // checked. So drop the bytes that a field cannot contain.
                        Encoding::Field => {
                            out.extend(value.iter().filter(|byte| is_field_value(&[**byte])));
                        }
                    }
                }
            }
        }
    }
}

/// Parses the text between braces. Returns `None` if the text is no placeholder, as in a JSON body.
/// A placeholder without a value is an error.
fn placeholder(name: &str, names: Names<'_>) -> Result<Option<Piece>, String> {
    let Names { table, extracted, .. } = names;
    let known = extracted.unwrap_or_default();
    if let Some(index) = known.iter().position(|known| known == name) {
        return Ok(Some(Piece::Extracted(index)));
    }
    if let Some(column) = table.and_then(|table| table.column(name)) {
        return Ok(Some(Piece::Column(column)));
    }
    if name == "n" {
        return Ok(Some(Piece::Number));
    }
    if let Some(range) = name.strip_prefix("random:") {
        let number = |text: &str| {
            text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
        };
        let range = range.split_once('-').and_then(|(a, b)| Some((number(a)?, number(b)?)));
        return match range {
            Some((low, high)) if low <= high => Ok(Some(Piece::Random(low, high))),
            _ => Err(format!("{{{name}}} is no range: write {{random:1-1000}}")),
        };
    }
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    let is_name = !name.is_empty() && name.bytes().all(is_name);
    match table {
        Some(table) if is_name => {
            Err(format!("no column has the name {name:?}: there are {}", table.names()))
        }
        None if is_name && extracted.is_some() => Err(format!(
            "no value has the name {name:?}: extract it in an earlier step, or give --values"
        )),
        _ => Ok(None),
    }
}

/// Appends `value`. Percent-encodes all bytes except the unreserved ones (RFC 3986, section 2.3).
fn percent_encode(value: &[u8], out: &mut Vec<u8>) {
    for &byte in value {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// Appends `value` as a part of a JSON string.
fn escape_json(value: &[u8], out: &mut Vec<u8>) {
    for character in String::from_utf8_lossy(value).chars() {
        match character {
            '"' | '\\' => out.extend_from_slice(&[b'\\', character as u8]),
            c if c.is_control() => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Returns the fields of a request that follows a redirect. If the request has no body, drops the
/// fields that describe the body. For another host, replaces Host, and drops credentials that may
/// not be shared with other hosts.
fn redirected_fields(fields: &[u8], redirect: &Redirect) -> Vec<u8> {
    let mut out = Vec::with_capacity(fields.len());
    for line in fields.split_inclusive(|&b| b == b'\n') {
        let name = line.split(|&b| b == b':').next().unwrap_or_default().to_ascii_lowercase();
        match (name.as_slice(), &redirect.host) {
            (b"content-type" | b"content-encoding" | b"transfer-encoding" | b"expect", _)
                if redirect.is_get => {}
            (b"authorization" | b"proxy-authorization", Some(_)) if !redirect.has_credentials => {}
            (b"host", Some(host)) => out.extend_from_slice(format!("Host: {host}\r\n").as_bytes()),
            _ => out.extend_from_slice(line),
        }
    }
    out
}

impl Encoding {
    /// Returns the encoding of values in a body of this type.
    fn of(content_type: &str) -> Self {
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        match media_type.to_ascii_lowercase().as_str() {
            "application/x-www-form-urlencoded" => Self::Percent,
            "application/json" => Self::Json,
            other if other.ends_with("+json") => Self::Json,
            _ => Self::None,
        }
    }
}

/// Requests of a run by their indices, encoded for their protocol. A request with placeholders or
/// cookies is encoded each time it is sent.
pub(crate) struct RequestSource<R> {
    fixed: Arc<[R]>,
    templates: Option<Arc<Templates<R>>>,
    jar: Option<SharedJar>,
}

/// Converts an HTTP/1.1 request and a message to the encoding of a protocol. Fails if the values
/// make this impossible, for example because the head is too long.
pub(crate) type Encode<R> = Box<dyn Fn([Vec<u8>; 2]) -> Result<R, Error> + Send + Sync>;

struct Templates<R> {
    all: Vec<Template>,
    encode: Vec<Encode<R>>,
}

impl<R: Clone> RequestSource<R> {
    /// Creates the source of requests without placeholders.
    pub fn fixed(fixed: Arc<[R]>) -> Self {
        Self { fixed, templates: None, jar: None }
    }

    /// Adds the templates of all requests, with the conversion of each.
    pub fn with_templates(self, all: Vec<Template>, encode: Vec<Encode<R>>) -> Self {
        Self { templates: Some(Arc::new(Templates { all, encode })), ..self }
    }

    /// Returns the source for one connection, which keeps its cookies in `jar`.
    pub fn for_connection(&self, jar: Option<SharedJar>) -> Self {
        Self { fixed: self.fixed.clone(), templates: self.templates.clone(), jar }
    }

    /// Returns the first request. Its placeholders are not replaced by values.
    pub fn first(&self) -> R {
        self.fixed[0].clone()
    }

    /// Inserts the next values into the request with the index `index`. Encodes the request, and
    /// passes it to `set`.
    ///
    /// # Errors
    /// Fails if the request cannot be encoded with its values and cookies.
    pub fn select(
        &self,
        index: usize,
        values: &mut Values,
        set: impl FnOnce(&R),
    ) -> Result<(), Error> {
        match &self.templates {
            None => set(&self.fixed[index]),
            Some(templates) => {
                let rendered = templates.all[index].render(values, self.jar.as_ref());
                set(&templates.encode[index](rendered)?);
            }
        }
        Ok(())
    }

    /// Returns the request of a step, with cookies. With a redirect, returns the request that
    /// follows the redirect.
    ///
    /// # Errors
    /// Fails if the request cannot be encoded with its values and cookies.
    pub fn render_step(
        &self,
        index: usize,
        draw: Draw<'_>,
        context: (Option<&SharedJar>, &Option<Redirect>),
    ) -> Result<RenderedStep<R>, Error> {
        let Some(templates) = &self.templates else {
            return Ok(RenderedStep { request: self.fixed[index].clone(), target: "/".to_owned() });
        };
        let [http, message] = templates.all[index].render_with(draw, context);
        let mut words = http.split(|&b| b == b' ');
        let target = String::from_utf8_lossy(words.nth(1).unwrap_or_default()).into_owned();
        let request = templates.encode[index]([http, message])?;
        Ok(RenderedStep { request, target })
    }
}

impl<R> fmt::Debug for RequestSource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestSource").field("fixed", &self.fixed.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Url;

    fn values(table: Option<&str>) -> Values {
        let values = table.map(|text| Arc::new(ValueTable::parse(text).unwrap()));
        let spec = Spec { values, ..Spec::new(Url::parse("http://h/").unwrap()) };
        Values::of(&spec, 1).remove(0)
    }

    fn render(http: &str, table: Option<&str>) -> Result<String, String> {
        let mut values = values(table);
        let template = Template::of(
            http.as_bytes(),
            b"",
            Names { table: values.table.as_deref(), ..Names::default() },
        )?;
        let [http, _] = template.render(&mut values, None);
        Ok(String::from_utf8(http).unwrap())
    }

    #[test]
    fn values_cannot_leave_their_place_in_a_request() {
        let table = "user,text\n\"a b&c=/\r\nX: y\",\u{fc}";
        let http = "POST /u/{user}?q={text}&n={n} HTTP/1.1\r\nX-N: {n}\r\nContent-Length: 9\r\n\
                    Content-Type: application/x-www-form-urlencoded\r\n\r\nu={user}&{{}{x y}";
        let rendered = render(http, Some(table)).unwrap();
        let expected = "POST /u/a%20b%26c%3D%2F%0D%0AX%3A%20y?q=%C3%BC&n=1 HTTP/1.1\r\nX-N: 1\r\n\
                        Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 45\r\n\r\n\
                        u=a%20b%26c%3D%2F%0D%0AX%3A%20y&{{}{x y}";
        let length = "u=a%20b%26c%3D%2F%0D%0AX%3A%20y&{{}{x y}".len();
        assert_eq!(rendered, expected.replace("45", &length.to_string()));
        let field = "GET / HTTP/1.1\r\nX-U: {user}\r\n\r\n";
        let error = render(field, Some(table)).unwrap_err();
        assert_eq!(error, "row 2: a header field cannot contain its user");
    }

    #[test]
    fn a_value_from_a_reply_adds_no_field() {
        let extracted = ["v".to_owned()];
        let names = Names { extracted: Some(&extracted), ..Names::default() };
        let http = b"GET / HTTP/1.1\r\nX: {v}\r\nCookie: c={v}\r\n\r\n";
        let template = Template::of(http, b"", names).unwrap();
        let (mut values, found) = (values(None), [b"a\r\nEvil: \0b".to_vec()]);
        let draw = values.draw(StepValues { number: 1, row: 0, extracted: &found });
        let [http, _] = template.render_with(draw, (None, &None));
        assert_eq!(
            String::from_utf8(http).unwrap(),
            "GET / HTTP/1.1\r\nX: aEvil: b\r\nCookie: c=aEvil: b\r\n\r\n"
        );
    }

    #[test]
    fn other_braces_stay_and_misspelt_names_are_named() {
        let json = "POST / HTTP/1.1\r\n\r\n{\"a\": {}, \"n\": {n}, \"b\": {random:7-7}";
        let expected = "POST / HTTP/1.1\r\n\r\n{\"a\": {}, \"n\": 1, \"b\": 7";
        assert_eq!(render(json, None).unwrap(), expected);
        for (http, table, why) in [
            ("GET /{random:9-1} HTTP/1.1\r\n\r\n", None, "write {random:1-1000}"),
            ("GET /{random:-} HTTP/1.1\r\n\r\n", None, "write {random:1-1000}"),
            ("GET /{usr} HTTP/1.1\r\n\r\n", Some("user\n1"), "\"usr\": there are user"),
        ] {
            assert!(render(http, table).unwrap_err().contains(why), "{http}");
        }
    }

    #[test]
    fn ranges_from_files_are_sent_as_they_are() {
        let http = b"POST / HTTP/1.1\r\n\r\n{n}{n}{n}{n}";
        let names = Names { fixed: &[3..6, 9..usize::MAX], ..Names::default() };
        let [http, message] =
            Template::of(http, b"{n}{n}", names).unwrap().render(&mut values(None), None);
        assert!(http.ends_with(b"\r\n\r\n1{n}1{n}"), "{}", http.escape_ascii());
        assert_eq!(message, b"1{n}");
    }

    #[test]
    fn cookies_of_the_server_follow_those_of_the_user() {
        let http = b"GET /a HTTP/1.1\r\nCookie: a={n}\r\n\r\n";
        let template = Template::of(http, b"{n}", Names::default()).unwrap();
        let (mut values, jar) = (values(None), SharedJar::default());
        jar.store(b"id=7; Path=/");
        let [http, message] = template.render(&mut values, Some(&jar));
        assert_eq!(http, b"GET /a HTTP/1.1\r\nCookie: a=1; id=7\r\n\r\n");
        assert_eq!(message, b"1");
        assert!(template.has_placeholders());
    }
}
