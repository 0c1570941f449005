//! Translates `limit_except`, whose rules apply to all methods that it does not name.

use super::Cx;
use super::access::{Gate, gate, guard};
use super::here::Here;
use super::scope::Scope;
use super::server::TranslatedServer;
use crate::draft::DraftRoute;
use crate::matcher::Matcher;
use crate::value::Value;

/// The limit on the methods of a location.
pub struct Limit {
    /// The methods that the location's own rules apply to.
    methods: Matcher,
    /// The rules on other methods.
    pub others: Gate,
}

impl Limit {
    /// Returns the limit on methods of a location. Returns `None` if the location has no
    /// `limit_except`.
    pub fn of(cx: &mut Cx<'_>, scope: &Scope<'_>) -> Option<Self> {
        let limit = scope.of_own("limit_except")?;
        // nginx reads the names of methods without regard to case.
        let mut methods: Vec<String> =
            limit.args.iter().map(|method| method.to_ascii_uppercase()).collect();
        if methods.iter().any(|method| method == "GET") && !methods.iter().any(|m| m == "HEAD") {
            methods.push("HEAD".into());
        }
        let methods = Matcher::default().with_methods(methods);
        let others = gate(cx, &scope.inside(limit.inside()));
        Some(Self { methods, others })
    }

    /// Narrows routes to the methods that the limit names. Removes routes without a remaining
    /// request.
    pub fn narrow(&self, routes: &mut Vec<DraftRoute>) {
        narrow(&self.methods, routes);
    }

    /// Returns the routes for the methods that `limit_except` does not name. In these routes, the
    /// access rules inside `limit_except` replace `rules`, the access rules of the location.
    pub fn rest(
        &self,
        server: &TranslatedServer<'_>,
        here: &Here<'_, '_>,
        routes: Vec<DraftRoute>,
        rules: &Gate,
    ) -> Vec<DraftRoute> {
        if let Some(comment) = self.others.closed.clone() {
            return vec![here.route(server).closed(comment)];
        }
        if self.denies_others() {
            return vec![here.route(server).respond(403)];
        }
        let change = |mut route: DraftRoute| {
            rules.keys.0.iter().for_each(|(key, _)| route.keys.remove(key));
            guard(&mut route, &self.others);
            route
        };
        routes.into_iter().map(change).collect()
    }

    /// Returns true if no client may use the methods that the limit does not name.
    fn denies_others(&self) -> bool {
        let keys = &self.others.keys;
        keys.get("deny") == Some(&Value::from("all")) && keys.get("satisfy").is_none()
    }
}

/// Narrows routes to these methods. Removes routes without a remaining request.
pub fn only(methods: &[String], routes: &mut Vec<DraftRoute>) {
    narrow(&Matcher::default().with_methods(methods.to_vec()), routes);
}

fn narrow(methods: &Matcher, routes: &mut Vec<DraftRoute>) {
    routes.retain_mut(|route| match route.matcher.and(methods) {
        Some(both) => {
            route.matcher = both;
            true
        }
        None => false,
    });
}

#[cfg(test)]
mod tests {
    use crate::{Language, import};

    /// Returns the routes of a server with these directives.
    fn routes_of(text: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nginx.conf");
        let text =
            format!("events {{}}\nhttp {{ server {{ listen 8080; root /srv;\n{text}\n}} }}\n");
        std::fs::write(&file, text).unwrap();
        let toml = import(Language::Nginx, &file).unwrap().toml;
        toml.split("[[site.route]]").skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn a_return_answers_only_the_methods_of_limit_except_in_any_order() {
        for text in [
            "location = /x { return 200 secret; limit_except GET { deny all; } }",
            "location = /x { limit_except get { deny all; } return 200 secret; }",
        ] {
            let routes = routes_of(text);
            let all: Vec<_> = routes.iter().filter(|route| route.contains("\"/x\"")).collect();
            let open: Vec<_> = all.iter().filter(|route| route.contains("secret")).collect();
            assert_eq!(open.len(), 1, "{routes:?}");
            assert!(open[0].contains("methods = [\"GET\", \"HEAD\"]"), "{routes:?}");
            let last = all.last().unwrap();
            assert!(last.contains("403") && !last.contains("methods"), "{routes:?}");
        }
    }

    #[test]
    fn limit_except_never_adds_methods_that_a_condition_excludes() {
        let routes = routes_of(
            "location /x/ { if ($request_method !~ ^(GET)$) { return 405; }\n\
             limit_except GET POST { deny all; } proxy_pass http://10.0.0.1; }",
        );
        assert!(!routes.iter().any(|route| route.contains("proxy =")), "{routes:?}");
    }
}
