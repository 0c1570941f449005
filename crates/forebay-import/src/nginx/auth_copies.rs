//! Finds the fields of an `auth_request` answer that nginx passes on (`auth_request_set`).

use super::scope::Scope;
use crate::keys;

/// A field of the answer to `auth_request` that a backend gets as a request field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthCopy {
    /// The name of the request field.
    pub name: String,
    /// The name of the answer's field.
    pub answer: String,
}

/// Returns the fields that Forebay copies from the answer to `auth_request` to the request for the
/// backend. A field that no directive sends to the backend is copied under its own name. Without
/// this copy, the backend would get a field of this name from the client.
pub fn auth_copies(scope: &Scope<'_>) -> Vec<AuthCopy> {
    let mut copies: Vec<AuthCopy> = Vec::new();
    let mut add = |name: String, answer: &str| {
        let is_new = copies.iter().all(|copy| !copy.name.eq_ignore_ascii_case(&name));
        if is_new && keys::of(&name, "").is_none() {
            copies.push(AuthCopy { name, answer: answer.to_owned() });
        }
    };
    let sent = sent(scope);
    for set in scope.all("auth_request_set") {
        let Some(answer) = answered(scope, set.arg(0)) else { continue };
        let names: Vec<_> = sent.iter().filter(|(_, value)| *value == set.arg(0)).collect();
        if names.is_empty() && answer != "Set-Cookie" {
            add(answer.clone(), &answer);
        }
        for (name, _) in names {
            add(name.clone(), &answer);
        }
    }
    copies
}

/// Returns true if `copy` of `forward_auth` sets the request field `name` to the value of
/// `variable`. Returns false if the variable contains no field of the answer.
pub fn is_copied(scope: &Scope<'_>, name: &str, variable: &str) -> bool {
    answered(scope, variable).is_some_and(|answer| {
        let mut copies = auth_copies(scope).into_iter();
        copies.any(|copy| copy.name.eq_ignore_ascii_case(name) && copy.answer == answer)
    })
}

/// Returns the name of the request field, such as `X-User`, for a parameter such as `HTTP_X_USER`.
/// Returns `None` if the parameter does not begin with `HTTP_`.
pub fn field_of_parameter(name: &str) -> Option<String> {
    Some(words(&name.strip_prefix("HTTP_")?.to_ascii_lowercase()))
}

/// Returns the fields that directives send to a backend, each with its value.
fn sent<'a>(scope: &Scope<'a>) -> Vec<(String, &'a str)> {
    let fields = scope.peek(&["proxy_set_header", "grpc_set_header"]);
    let fields = fields.into_iter().map(|set| (set.arg(0).replace('_', "-"), set.arg(1)));
    let params = scope.peek(&["fastcgi_param", "scgi_param", "uwsgi_param"]);
    let params =
        params.into_iter().filter_map(|set| Some((field_of_parameter(set.arg(0))?, set.arg(1))));
    fields.chain(params).collect()
}

/// Returns the field of the answer to `auth_request` that a directive copies to this variable.
/// Returns `None` if there is no such directive.
fn answered(scope: &Scope<'_>, variable: &str) -> Option<String> {
    scope.value("auth_request").filter(|path| *path != "off")?;
    let sets = scope.all("auth_request_set");
    copied(sets.iter().find(|set| set.arg(0) == variable)?.arg(1))
}

/// Returns the name of the field in `$upstream_http_NAME`. Returns `None` for other texts.
pub fn copied(value: &str) -> Option<String> {
    value.strip_prefix("$upstream_http_").map(words)
}

/// Returns a name such as `X-User` for `x_user`.
fn words(name: &str) -> String {
    let word = |word: &str| {
        let mut chars = word.chars();
        let first = chars.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(chars).collect::<String>()
    };
    name.split('_').map(word).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use crate::{Language, import};

    #[test]
    fn fields_of_the_answer_get_the_names_that_nginx_gives_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nginx.conf");
        let text = "events {}\nhttp { server { listen 8080;\n\
            location = /auth { internal; proxy_pass http://127.0.0.1:1/verify; }\n\
            location / { auth_request /auth;\n\
            auth_request_set $mail $upstream_http_x_mail;\n\
            auth_request_set $groups $upstream_http_x_groups;\n\
            auth_request_set $cookie $upstream_http_set_cookie;\n\
            auth_request_set $status $upstream_status;\n\
            proxy_set_header X_Email $mail; proxy_set_header Host $mail;\n\
            proxy_set_header X-Email $groups; proxy_set_header X-Mail-2 $mail;\n\
            proxy_pass http://127.0.0.1:2; }\n\
            location /app/ { auth_request /auth;\n\
            auth_request_set $mail $upstream_http_x_mail;\n\
            fastcgi_param HTTP_X_EMAIL $mail; fastcgi_pass 127.0.0.1:3; } } }\n";
        std::fs::write(&file, text).unwrap();
        let toml = import(Language::Nginx, &file).unwrap().toml;
        let copy = "copy = { X-Email = \"X-Mail\", X-Mail-2 = \"X-Mail\" }";
        assert!(toml.contains(copy), "{toml}");
        assert!(toml.contains("copy = { X-Email = \"X-Mail\" }"), "{toml}");
        // The second value of one field has no translation.
        assert!(toml.contains("NOT TRANSLATED") && toml.contains("X-Email $groups"), "{toml}");
        assert!(!toml.contains("Set-Cookie") && !toml.contains("HTTP_X_EMAIL ="), "{toml}");
    }
}
