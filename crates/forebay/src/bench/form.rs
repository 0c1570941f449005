//! Bodies of forms: `-F` and `--data-urlencode`, as in curl.

use std::ops::Range;
use std::path::Path;

use crate::body_file;

/// Body of a form, with its `Content-Type`.
#[derive(Debug)]
pub struct Form {
    pub content_type: String,
    pub body: Vec<u8>,
    /// Ranges of the body that come from files and are sent as they are.
    pub fixed: Vec<Range<usize>>,
}

/// Maximum size of a body in bytes.
const LARGEST: usize = 64 << 20;

impl Form {
    /// Creates a `multipart/form-data` body (RFC 7578) from fields such as `name=value`,
    /// `name=@FILE`, `name=<FILE`, with `;type=TYPE` and `;filename=NAME`. The load generator
    /// replaces placeholders such as `{n}` in the body, but placeholders in files only if
    /// `fills_files` is true.
    pub fn multipart(fields: &[String], fills_files: bool) -> Result<Self, String> {
        let parts =
            fields.iter().map(|field| FormPart::parse(field)).collect::<Result<Vec<_>, _>>()?;
        let is_in_use = |boundary: &str| {
            let contains = |part: &FormPart| find(&part.content, boundary.as_bytes());
            parts.iter().any(contains)
        };
        let boundary = (0..).map(|n| format!("------------------------forebay{n:09}"));
        let boundary = boundary.into_iter().find(|boundary| !is_in_use(boundary));
        let boundary = boundary.ok_or("no boundary is free")?;
        let (mut body, mut fixed) = (Vec::new(), Vec::new());
        for part in &parts {
            let FormPart { name, file, content_type, content, is_of_file } = part;
            body.extend_from_slice(
                format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"")
                    .as_bytes(),
            );
            if let Some(file) = file {
                body.extend_from_slice(format!("; filename=\"{file}\"").as_bytes());
            }
            if let Some(content_type) = content_type {
                body.extend_from_slice(format!("\r\nContent-Type: {content_type}").as_bytes());
            }
            body.extend_from_slice(b"\r\n\r\n");
            if *is_of_file && !fills_files {
                fixed.push(body.len()..body.len() + content.len());
            }
            body.extend_from_slice(content);
            body.extend_from_slice(b"\r\n");
            if body.len() > LARGEST {
                return Err("-F: the form is larger than 64 MiB".to_owned());
            }
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        let content_type = format!("multipart/form-data; boundary={boundary}");
        Ok(Self { content_type, body, fixed })
    }

    /// Creates an `application/x-www-form-urlencoded` body from fields such as `name=value`,
    /// `name@FILE`, `=value` or `value`. Does not encode placeholders such as `{n}` in values, so
    /// that the load generator can replace them. Encodes placeholders in files unless `fills_files`
    /// is true.
    pub fn urlencoded(fields: &[String], fills_files: bool) -> Result<Self, String> {
        let mut body = String::new();
        for field in fields {
            if !body.is_empty() {
                body.push('&');
            }
            let mut fills = true;
            let (name, content) = match (field.split_once('='), field.split_once('@')) {
                (Some((name, content)), None) => (name, content.as_bytes().to_vec()),
                (Some((name, content)), Some((before, _))) if name.len() < before.len() => {
                    (name, content.as_bytes().to_vec())
                }
                (_, Some((name, file))) => {
                    fills = fills_files;
                    (name, read("--data-urlencode", file)?)
                }
                _ => ("", field.as_bytes().to_vec()),
            };
            if !name.is_empty() {
                body += name;
                body.push('=');
            }
            encode(&content, fills, &mut body);
            if body.len() > LARGEST {
                return Err("--data-urlencode: the form is larger than 64 MiB".to_owned());
            }
        }
        let content_type = "application/x-www-form-urlencoded".to_owned();
        Ok(Self { content_type, body: body.into_bytes(), fixed: Vec::new() })
    }
}

/// Field of a multipart form.
struct FormPart {
    name: String,
    file: Option<String>,
    content_type: Option<String>,
    content: Vec<u8>,
    is_of_file: bool,
}

impl FormPart {
    fn parse(field: &str) -> Result<Self, String> {
        let wrong = || format!("-F {field:?}: write name=value or name=@FILE");
        let (name, rest) =
            field.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
        let is_file = rest.starts_with(['@', '<']);
        let mut part = Self {
            name: quoted(name),
            file: None,
            content_type: None,
            content: Vec::new(),
            is_of_file: is_file,
        };
        let mut value = rest;
        let mut file_name = None;
        // As in curl, `;type=` and `;filename=` may follow the value.
        while let Some(at) = value.rfind(';') {
            let option = value[at + 1..].trim();
            if let Some(text) = option.strip_prefix("type=") {
                if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
                    return Err(wrong());
                }
                part.content_type = Some(text.to_owned());
            } else if let Some(text) = option.strip_prefix("filename=") {
                file_name = Some(quoted(text));
            } else {
                break;
            }
            value = &value[..at];
        }
        if is_file {
            let path = &value[1..];
            part.content = read("-F", path)?;
            if value.starts_with('@') {
                let base = Path::new(path).file_name().unwrap_or_default();
                part.file = Some(quoted(&base.to_string_lossy()));
                part.content_type.get_or_insert_with(|| "application/octet-stream".to_owned());
            }
        } else {
            part.content = value.as_bytes().to_vec();
        }
        part.file = file_name.or(part.file);
        Ok(part)
    }
}

/// Escapes a name for a quoted parameter, as browsers do.
fn quoted(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

/// Percent-encodes `content`, except unreserved characters. If `fills` is true, does not encode
/// placeholders such as `{n}`.
fn encode(content: &[u8], fills: bool, out: &mut String) {
    let is_placeholder = |rest: &[u8]| {
        let end = rest.iter().position(|&b| b == b'}')?;
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || b"_-:".contains(b);
        (end > 1 && rest[1..end].iter().all(is_name)).then_some(end + 1)
    };
    let mut rest = content;
    while let Some(&byte) = rest.first() {
        if fills
            && byte == b'{'
            && let Some(length) = is_placeholder(rest)
        {
            out.push_str(&String::from_utf8_lossy(&rest[..length]));
            rest = &rest[length..];
            continue;
        }
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        rest = &rest[1..];
    }
}

fn read(option: &str, file: &str) -> Result<Vec<u8>, String> {
    body_file::read(Path::new(file)).map_err(|error| format!("{option} {file}: {error}"))
}

fn find(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn multipart(fields: &[&str]) -> Result<String, String> {
        let fields: Vec<String> = fields.iter().map(|&field| field.to_owned()).collect();
        Form::multipart(&fields, false).map(|form| {
            let boundary = form.content_type.split_once("boundary=").unwrap().1.to_owned();
            String::from_utf8(form.body).unwrap().replace(&boundary, "B")
        })
    }

    #[test]
    fn multipart_forms_have_values_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a;b\".txt");
        std::fs::write(&file, "from a file").unwrap();
        let file = file.to_str().unwrap();
        let [upload, text] =
            [format!("f=@{file};type=text/plain"), format!("t=<{file};type=text/x")];
        let body = multipart(&["a=1;2", &upload, &text, "q\"=x;filename=n"]).unwrap();
        let expected = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1;2\r\n\
            --B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a;b%22.txt\"\r\n\
            Content-Type: text/plain\r\n\r\nfrom a file\r\n\
            --B\r\nContent-Disposition: form-data; name=\"t\"\r\nContent-Type: text/x\r\n\r\n\
            from a file\r\n\
            --B\r\nContent-Disposition: form-data; name=\"q%22\"; filename=\"n\"\r\n\r\nx\r\n--B--\r\n";
        assert_eq!(body, expected);
        for wrong in ["a", "=x", "f=@/nonexistent", "f=@/dev/zero", "a=b;type=x\r\ny"] {
            assert!(multipart(&[wrong]).is_err(), "{wrong}");
        }
        assert!(
            multipart(&["a=------------------------forebay000000000"]).unwrap().contains("--B")
        );
    }

    #[test]
    fn urlencoded_forms_keep_placeholders() {
        let fields = ["u={user}&x", "=a b", "c d", "n={n}{random:1-9}", "e=a@b", "j={ }"];
        let form = Form::urlencoded(&fields.map(str::to_owned), false).unwrap();
        let body = String::from_utf8(form.body).unwrap();
        assert_eq!(body, "u={user}%26x&a%20b&c%20d&n={n}{random:1-9}&e=a%40b&j=%7B%20%7D");
        assert!(Form::urlencoded(&["x@/nonexistent".to_owned()], false).is_err());
    }

    #[test]
    fn placeholders_in_files_are_replaced_only_on_demand() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "a{n}").unwrap();
        let file = file.to_str().unwrap();
        let fields = ["x={n}".to_owned(), format!("f=@{file}"), format!("t=<{file}")];
        let form = Form::multipart(&fields, false).unwrap();
        let fixed: Vec<_> = form.fixed.iter().map(|range| &form.body[range.clone()]).collect();
        assert_eq!(fixed, [b"a{n}"; 2]);
        assert!(Form::multipart(&fields, true).unwrap().fixed.is_empty());
        let fields = ["x={n}".to_owned(), format!("f@{file}")];
        for (fills, text) in [(false, "x={n}&f=a%7Bn%7D"), (true, "x={n}&f=a{n}")] {
            let form = Form::urlencoded(&fields, fills).unwrap();
            assert_eq!((&*String::from_utf8(form.body).unwrap(), form.fixed), (text, vec![]));
        }
    }
}
