//! Requests of an access log or a HAR file, to be sent again in their order.

mod access_log;
mod har;

use std::collections::HashMap;
use std::io::BufRead;
use std::time::Duration;

use crate::{Part, Replay, Url};

/// Requests that are read from a file.
#[derive(Debug, Default)]
struct Reading {
    parts: Vec<Part>,
    replay: Replay,
    indices: HashMap<(String, String), u32>,
}

/// Reason why a line or entry cannot be sent.
type Skip = &'static str;

/// Maximum number of requests. Each takes 24 bytes.
const MOST_ENTRIES: usize = 20_000_000;

const TOO_MANY: Skip = "it is after the first 20 million requests";
const TARGET: Skip = "its target cannot be sent in a request";

/// Reads an access log in the common or combined format, or a HAR file. Returns the different
/// requests, on the server of `base`, and their order.
///
/// # Errors
/// Returns an error message if the file cannot be read, or has no request that can be sent.
pub fn read_replay(mut file: impl BufRead, base: &Url) -> Result<(Vec<Part>, Replay), String> {
    let start = file.fill_buf().map_err(|error| error.to_string())?;
    if start.starts_with(&[0x1f, 0x8b]) || start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Err("it is compressed: decompress it first, for example with zcat".to_owned());
    }
    let is_har = start.iter().find(|b| !b.is_ascii_whitespace() && !b"\xef\xbb\xbf".contains(b));
    let mut reading = Reading::default();
    if is_har == Some(&b'{') {
        har::read(file, base, &mut reading)?;
    } else {
        access_log::read(file, base, &mut reading)?;
    }
    reading.finish()
}

impl Reading {
    /// Adds a request without fields and body. `time` is the time since an instant that is the same
    /// for all requests of the file. Fails if the request cannot be sent.
    fn add_plain(
        &mut self,
        (method, target): (String, String),
        time: Duration,
        base: &Url,
    ) -> Result<(), Skip> {
        if let Some(&index) = self.indices.get(&(method.clone(), target.clone())) {
            return self.push(index, time);
        }
        let url = base.with_target(&target).map_err(|_| TARGET)?;
        let part =
            Part { url, method: method.clone(), headers: Vec::new(), body: Vec::new(), weight: 1 };
        let index = self.add_part(part);
        self.indices.insert((method, target), index);
        self.push(index, time)
    }

    fn add_part(&mut self, part: Part) -> u32 {
        self.parts.push(part);
        (self.parts.len() - 1) as u32
    }

    fn push(&mut self, index: u32, time: Duration) -> Result<(), Skip> {
        if self.replay.entries.len() == MOST_ENTRIES {
            return Err(TOO_MANY);
        }
        self.replay.entries.push((index, time));
        Ok(())
    }

    /// Counts a line or entry that cannot be sent. `number` is its number in the file.
    fn skip(&mut self, why: Skip, number: u64) {
        self.replay.skipped.entry(why).or_insert((0, number)).0 += 1;
    }

    /// Sorts the requests by time, and makes their times relative to the first one. Fails if there
    /// is no request.
    fn finish(mut self) -> Result<(Vec<Part>, Replay), String> {
        let entries = &mut self.replay.entries;
        // A log is sorted by the ends of requests, not by their starts.
        entries.sort_by_key(|(_, time)| *time);
        let Some(&(_, first)) = entries.first() else {
            let skipped = self.replay.skipped_text().unwrap_or_default();
            return Err(format!("it has no request that can be sent {skipped}").trim().to_owned());
        };
        entries.iter_mut().for_each(|(_, time)| *time -= first);
        Ok((self.parts, self.replay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<(Vec<Part>, Replay), String> {
        read_replay(text, &Url::parse("http://h:1/").unwrap())
    }

    fn sent((parts, replay): &(Vec<Part>, Replay)) -> Vec<(String, u64)> {
        let text = |(index, time): &(u32, Duration)| {
            let part = &parts[*index as usize];
            (format!("{} {}", part.method, part.url.target()), time.as_millis() as u64)
        };
        replay.entries.iter().map(text).collect()
    }

    #[test]
    fn logs_of_nginx_and_apache_are_read() {
        let log =
            br#"1.2.3.4 - - [10/Oct/2026:13:55:36 +0000] "GET /a?b=c HTTP/1.1" 200 12 "-" "curl/8"
::1 - u [10/Oct/2026:15:55:38 +0200] "HEAD /b HTTP/2.0" 200 0
site:80 ::1 - - [10/Oct/2026:13:55:37 +0000] "GET /a?b=c HTTP/1.1" 200 12
1.2.3.4 - - [10/Oct/2026:13:55:38 +0000] "GET /q\"\x22\x01 HTTP/1.0" 400 0
1.2.3.4 - - [10/Oct/2026:13:55:38 +0000] "GET http://other/x HTTP/1.1" 200 0
"#;
        let read_back = read(log).unwrap();
        let (parts, replay) = &read_back;
        assert_eq!(replay.skipped.len(), 1, "{replay:?}");
        assert_eq!(replay.skipped[TARGET], (1, 4));
        // Requests of the same second are spread evenly over this second.
        let expected =
            [("GET /a?b=c", 0), ("GET /a?b=c", 1000), ("HEAD /b", 2000), ("GET /x", 2666)];
        assert_eq!(sent(&read_back), expected.map(|(text, ms)| (text.to_owned(), ms)));
        assert_eq!(parts.len(), 3);
    }

    #[test]
    fn lines_that_cannot_be_sent_are_counted_by_reason() {
        let line =
            |request: &str| format!("h - - [10/Oct/2026:13:55:36 +0000] \"{request}\" 200 1\n");
        let mut log = line("GET / HTTP/1.1");
        for request in
            ["POST /a HTTP/1.1", "PUT /a HTTP/1.1", "-", "\\x16\\x03", "OPTIONS * HTTP/1.1"]
        {
            log += &line(request);
        }
        log += "no log line\nh - - [99/Foo/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 1\n\n";
        let mut log = log.into_bytes();
        log.extend_from_slice(
            b"h - - [10/Oct/2026:13:55:36 +0000] \"GET /\xff\xfe HTTP/1.1\" 200 1\n",
        );
        log.extend_from_slice(&vec![b'x'; 200_000]);
        log.extend_from_slice(b"\nh - - [10/Oct/2026:13:55:36 +0000] \"GET /last HTTP/1.1\" 200 1");
        let (_, replay) = read(&log).unwrap();
        assert_eq!(replay.entries.len(), 2, "{replay:?}");
        let count: u64 = replay.skipped.values().map(|(count, _)| count).sum();
        assert_eq!(count, 9, "{replay:?}");
        let text = replay.skipped_text().unwrap();
        assert!(text.contains("2 and 1 more: a log has no bodies"), "{text}");
        assert!(text.contains("11: the line is longer than 64 KiB"), "{text}");
    }

    #[test]
    fn a_har_file_has_fields_and_bodies() {
        let har = br#"{"log": {"entries": [
            {"startedDateTime": "2026-10-10T13:55:36.250Z", "request": {"method": "POST",
             "url": "https://shop.example/cart?x=1", "headers": [
                {"name": ":authority", "value": "shop.example"}, {"name": "Host", "value": "s"},
                {"name": "Content-Length", "value": "3"}, {"name": "X-A", "value": "b"}],
             "postData": {"mimeType": "text/plain", "text": "a=b"}}},
            {"startedDateTime": "2026-10-10T15:55:36+02:00", "request": {"method": "GET",
             "url": "https://shop.example", "headers": []}},
            {"startedDateTime": "2026-10-10T13:55:37Z", "request": {"method": "GET",
             "url": "https://cdn.example/x.js", "headers": []}},
            {"startedDateTime": "soon", "request": {"method": "GET", "url": "https://shop.example/"}},
            {"request": {"method": "G T", "url": "https://shop.example/"}},
            7
        ]}}"#;
        let read_back = read(har).unwrap();
        assert_eq!(sent(&read_back), [("GET /".to_owned(), 0), ("POST /cart?x=1".to_owned(), 250)]);
        let (parts, replay) = &read_back;
        let post = &parts[0];
        assert_eq!(post.headers, [("X-A".to_owned(), "b".to_owned())]);
        assert_eq!(post.body, b"a=b");
        assert_eq!(replay.skipped.values().map(|(count, _)| count).sum::<u64>(), 4);
        assert_eq!(replay.skipped["it is for another host than the first entry"], (1, 3));
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        for (text, why) in [
            (&b""[..], "no request"),
            (b"hello\n", "no request that can be sent (not sent: 1; number 1: "),
            (b"{", "no HAR"),
            (b"{}", "no HAR"),
            (b"{\"log\": {\"entries\": 5}}", "no HAR"),
            (b"{\"log\": {\"entries\": []}}", "no request"),
            (b"\x1f\x8b\x08", "zcat"),
            (&[0; 300_000], "no request"),
            (&b"[".repeat(100_000), "no request"),
            (&b"{\"a\":".repeat(100_000), "no HAR"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
